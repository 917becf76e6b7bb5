"""A site's half of secure aggregation.

1. With each answer a site sends a public key, which is used for one sum.
2. A round's order has the keys of all sites that take part. The site masks its update (masks.py)
   and sends shares of the seed of its own mask beside it, each encrypted for one site.
3. If sites are missing, the others hand over the seeds that they share with these: what the
   missing ones sent, if it comes late, is still hidden by their own masks.
4. At the end the sites hand over their shares of the own seeds of all whose masked updates are in
   the sum. Two thirds of the sites are enough for it.

For a peer, a site does either 3 or 4 and never both, which would reveal the peer's update. For one
round it opens one sum: two sums over sites that differ by one would give that one away.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel

from fedmes.common.files import replace_private
from fedmes.engines import summed
from fedmes.engines.flower import masks
from fedmes.engines.flower.answers import Hidden, Trained, Unmasked
from fedmes.engines.flower.fixed_point import FixedPoint, Ring
from fedmes.engines.flower.site import Answer, SiteClient
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.tensors import Tensors

FILE = "masking.json"
Order = dict[str, Any]


class Sum(BaseModel):
    """A sum that the site has sent a masked update to."""

    key: str  # private, in hexadecimal digits as all that follow
    own: str  # the seed of the own mask
    keys: dict[int, str]
    round: int
    digest: str  # of the update under the masks: no other one ever comes under them
    missing: list[int] = []  # the sites whose pair seeds were given
    opened: bool = False


class Kept(BaseModel):
    """What a site keeps of secure aggregation; only its owner can read the file."""

    next: str  # private key for the next sum
    current: Sum | None = None
    # the last round of which a sum was opened, and the sites in that sum
    opened_round: int = -1
    opened_sites: list[int] = []


class Masker:
    """Masks a client's updates, and helps to remove the masks of others."""

    def __init__(self, client: SiteClient) -> None:
        self.client = client
        self.me = int(client.site.index)
        self.path: Path = client.directory / FILE
        if self.path.exists():
            self.kept = Kept.model_validate_json(self.path.read_bytes())
        else:
            self.kept = Kept(next=masks.new_key().hex())
            self._save()

    def signed(self, answer: Answer) -> Answer:
        """With the public key for the next sum."""
        facts = answer.facts.model_copy(update={"key": _public(self.kept.next)})
        return Answer(facts, answer.upload)

    def check(self, order: Order) -> None:
        """Refuse a round whose keys are not those of this site and of enough others."""
        keys = self._keys(order)
        known = [self.kept.next]
        current = self.kept.current
        if current is not None and current.keys == keys:
            known.append(current.key)
        if keys.get(self.me, "") not in map(_public, known):
            raise UserError("secure aggregation: the key of this site is another one by now")
        if len(keys) < masks.threshold(len(keys)):
            raise UserError("secure aggregation: a sum over one site hides nothing")

    def hidden(self, order: Order, g: int, answer: Answer, broadcast: Tensors) -> Answer:
        """An answer to a round with its upload masked and without numbers about it."""
        facts = answer.facts
        assert isinstance(facts, Trained)
        method = self.client.method
        weight = 0
        upload = method.upload(self.client.state, self.client.site.ctx())  # if there is no other
        if facts.work is not None:
            weight = min(summed.weight_of(method, facts.work.samples), int(order["most"]))
            upload = answer.upload
            work = facts.work.model_copy(update={"samples": 0, "report": {}})
            facts = facts.model_copy(update={"work": work})
        values = _flat(summed.share(method, broadcast, upload))
        finite = bool(np.isfinite(values).all())
        if not finite or weight == 0:
            weight = 0
            values = np.zeros_like(values)
        ring = fixed_point(method, len(order["keys"]), int(order["most"]))
        masked, about = self._masked(order, g, ring.encoded(weight, weight * values), finite)
        facts = facts.model_copy(update={"hidden": about})
        return Answer(facts, {"masked": torch.from_numpy(masked.view(f"i{masked.itemsize}"))})

    def _masked(self, order: Order, g: int, sent: Ring, finite: bool) -> tuple[Ring, Hidden]:
        keys = self._keys(order)
        digest = sha256(sent.tobytes()).hexdigest()
        current = self.kept.current
        if current is None or keys[self.me] != _public(current.key):
            own = masks.new_seed().hex()
            current = Sum(key=self.kept.next, own=own, keys=keys, round=g, digest=digest)
            self.kept.current = current
            self.kept.next = masks.new_key().hex()
            self._save()
        if current.digest != digest:
            raise UserError("secure aggregation: these masks have hidden another update")
        party = self._party(current)
        own_seed = bytes.fromhex(current.own)
        shares = {peer: box.hex() for peer, box in party.shares(own_seed).items()}
        about = Hidden(finite=finite, seal=masks.sealed(own_seed).hex(), shares=shares)
        return party.masked(own_seed, sent), about

    def unmask(self, order: Order) -> Answer:
        """Seeds shared with sites that are missing, or shares of the own seeds of the others."""
        current = self.kept.current
        if current is None or order["key"] != _public(current.key):
            raise UserError("secure aggregation: this sum is not known here")
        party = self._party(current)
        missing = sorted(set(order["missing"]))
        boxes = {int(peer): bytes.fromhex(box) for peer, box in order["shares"].items()}
        self._agree_to(current, missing, sorted(boxes))
        pairs = {}
        shares = {}
        for peer in missing:
            pairs[peer] = party.pair_seed(peer).hex()
        for peer, box in boxes.items():
            try:
                shares[peer] = party.share_from(peer, box).hex()
            except ValueError as error:
                raise UserError(f"secure aggregation: {error}") from None
        sender = self.client.hello().facts
        return Answer(
            Unmasked(name=sender.name, version=sender.version, pairs=pairs, shares=shares)
        )

    def _agree_to(self, current: Sum, missing: list[int], opened: list[int]) -> None:
        """Remember what is handed over, or refuse: of a peer, only one of the two seeds."""
        given = sorted({*current.missing, *missing})
        left = sorted(current.keys.keys() - set(given))
        if self.me not in left or not set(given) <= current.keys.keys():
            raise UserError("secure aggregation: the sites that are missing are not others")
        if len(left) < masks.threshold(len(current.keys)):
            raise UserError("secure aggregation: too few sites are left for a sum")
        if current.opened and given != current.missing:
            raise UserError("secure aggregation: this sum is open, with these sites in it")
        if opened:
            if opened != left:
                raise UserError("secure aggregation: a sum is over all sites that are left")
            if self.kept.opened_round == current.round and self.kept.opened_sites != left:
                raise UserError(
                    "secure aggregation: the sum of this round was over other sites; a second one "
                    "would tell the difference"
                )
            current.opened = True
            self.kept.opened_round = current.round
            self.kept.opened_sites = left
        current.missing = given
        self._save()

    def _keys(self, order: Order) -> dict[int, str]:
        return {int(client): str(key) for client, key in order["keys"].items()}

    def _party(self, current: Sum) -> masks.Party:
        keys = {client: bytes.fromhex(key) for client, key in current.keys.items()}
        return masks.Party(self.me, bytes.fromhex(current.key), keys)

    def _save(self) -> None:
        replace_private(self.path, self.kept.model_dump_json().encode())


def fixed_point(method: Method, sites: int, most: int) -> FixedPoint:
    if method.aggregation == "sum":
        return FixedPoint.of_sums(sites)
    return FixedPoint.of_means(sites, most)


def _flat(values: Tensors) -> NDArray[np.float64]:
    return np.concatenate([np.zeros(0), *(t.flatten().cpu().numpy() for t in values.values())])


def _public(key: str) -> str:
    return masks.public_of(bytes.fromhex(key)).hex()
