"""The server's half of secure aggregation: it relays keys and shares, and opens one sum a round."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedmes.engines.flower import masks
from fedmes.engines.flower.answers import Good, Hidden, Refusal, Trained, Unmasked
from fedmes.engines.flower.fixed_point import FixedPoint, Ring
from fedmes.engines.flower.secure_site import fixed_point
from fedmes.engines.server import MISFIT, NO_AVERAGE, NOT_FINITE, REJECTIONS, finite
from fedmes.engines.summed import aggregate_sum, weight_of
from fedmes.methods.base import Method
from fedmes.tensors import Tensors

LOST = "lost before the sum was open"
LEAST = 2  # sites in a sum: what one adds would be the sum

Order = dict[str, Any]
# what is asked of each client, to its answers
Ask = Callable[[Mapping[int, Order]], Mapping[int, Good | Refusal]]


class NoSumError(Exception):
    """Why a round has no sum."""


@dataclass(frozen=True)
class Group:
    """The sites that are asked for a sum."""

    keys: Mapping[int, str]  # the public key of each client
    samples: int  # that a site has at most
    needed: int  # how many must have learned


class SecureRound:
    """One round's updates, masked, over sites that have been given each other's keys."""

    def __init__(self, method: Method, expected: Tensors, group: Group, ask: Ask) -> None:
        """`expected`: an upload as it should be."""
        self.method = method
        self.expected = expected
        self.keys = group.keys
        self.needed = max(group.needed, LEAST)
        self.ask = ask
        most = max(1, weight_of(method, group.samples))
        self.order: Order = {"secure": {"keys": group.keys, "most": most}}
        self.ring: FixedPoint = fixed_point(method, len(group.keys), most)
        self.masked: dict[int, Ring] = {}
        self.hidden: dict[int, Hidden] = {}
        self.working: set[int] = set()
        # bytes by client, in addition to the broadcast
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter(dict.fromkeys(group.keys, _size(self.order)))

    def take(self, k: int, facts: Trained, packed: Tensors) -> str:
        """A site's answer; why its masked update does not count."""
        found = packed.get("masked", torch.zeros(0)).numpy()
        ring = self.ring.ring
        fits = found.dtype == f"i{ring.itemsize}" and found.shape == (self._length() + 1,)
        if not fits or facts.hidden is None or facts.hidden.shares.keys() != self.keys.keys():
            return MISFIT
        self.masked[k] = found.view(ring)
        self.hidden[k] = facts.hidden
        self.up[k] += found.nbytes + _size(facts.hidden.model_dump())
        if not facts.hidden.finite:
            return REJECTIONS[NOT_FINITE]
        if facts.work is not None:
            self.working.add(k)
        return ""

    def aggregated(self, server: Tensors) -> tuple[Tensors, dict[int, str]]:
        """The server's state after the round, and the clients that are left out, and why."""
        sent = list(self.masked)
        try:
            total = self.opened()
        except NoSumError as error:
            return server, dict.fromkeys(sent, str(error))
        left_out = dict.fromkeys(set(sent) - self.masked.keys(), LOST)
        weight, flat = self.ring.decoded(total)
        shaped = _shaped(flat, self.expected)
        new = aggregate_sum(self.method, server, shaped, weight, self.expected)
        if not bool(finite(new, torch.zeros(()))):
            return server, left_out | dict.fromkeys(self.masked, REJECTIONS[NO_AVERAGE])
        return server | new, left_out

    def opened(self) -> Ring:
        """The sum without masks, over the sites of which `masked` has something at the end."""
        pairs = self._pairs()
        left = sorted(self.masked)
        seeds = self._own_seeds(left)
        total = np.zeros_like(self.masked[left[0]])
        for k in left:
            total += self.masked[k] - masks.mask(seeds[k], total)
        for (k, peer), seed in pairs.items():
            total -= masks.signed(k, peer, masks.mask(seed, total))
        return total

    def _length(self) -> int:
        """How many values an upload has."""
        return sum(t.numel() for name, t in self.expected.items() if not name.endswith("#mask"))

    def _pairs(self) -> dict[tuple[int, int], bytes]:
        """The seeds that sites share with those that are missing; who does not answer is missing,
        too, and the others are asked again."""
        pairs: dict[tuple[int, int], bytes] = {}
        asked: set[int] = set()
        while True:
            self._check_enough()
            missing = self.keys.keys() - self.masked.keys()
            if missing == asked:
                return {(k, peer): seed for (k, peer), seed in pairs.items() if k in self.masked}
            asked = missing
            answers = self._answers(dict.fromkeys(self.masked, missing), {})
            for k in list(self.masked):
                if k in answers and answers[k].pairs.keys() == missing:
                    for peer, seed in answers[k].pairs.items():
                        pairs[k, peer] = bytes.fromhex(seed)
                else:
                    del self.masked[k]

    def _check_enough(self) -> None:
        least = masks.threshold(len(self.keys))
        if len(self.masked) < least:
            raise NoSumError(f"{len(self.masked)} sites are left; a sum needs {least}")
        working = len(self.working & self.masked.keys())
        if working < self.needed:
            raise NoSumError(f"{working} sites have learned; a sum needs {self.needed}")

    def _own_seeds(self, left: list[int]) -> dict[int, bytes]:
        """The seeds of the sites' own masks, from the shares of the first sites that answer."""
        boxes = {}
        for k in left:
            boxes[k] = {peer: self.hidden[peer].shares[k] for peer in left}
        answers = self._answers(dict.fromkeys(left, ()), boxes)
        least = masks.threshold(len(self.keys))
        helpers = [k for k in left if k in answers and answers[k].shares.keys() == set(left)]
        if len(helpers) < least:
            raise NoSumError(f"{len(helpers)} sites have opened the sum; {least} are needed")
        places = {k: place for place, k in enumerate(sorted(self.keys))}
        seeds = {}
        for k in left:
            shares = {places[j]: bytes.fromhex(answers[j].shares[k]) for j in helpers[:least]}
            seeds[k] = _checked(shares, self.hidden[k].seal)
        return seeds

    def _answers(
        self, missing: Mapping[int, Collection[int]], boxes: Mapping[int, Mapping[int, str]]
    ) -> dict[int, Unmasked]:
        orders = {}
        for k, lost in missing.items():
            order = {"key": self.keys[k], "missing": sorted(lost), "shares": boxes.get(k, {})}
            self.down[k] += _size(order)
            orders[k] = order
        found = {}
        for k, answer in self.ask(orders).items():
            if not isinstance(answer, Refusal) and isinstance(facts := answer[0], Unmasked):
                self.up[k] += _size(facts.model_dump(include={"pairs", "shares"}))
                found[k] = facts
        return found


def _checked(shares: Mapping[int, bytes], seal: str) -> bytes:
    try:
        seed = masks.combined(shares)
    except ValueError:
        seed = b""
    if masks.sealed(seed).hex() != seal:
        raise NoSumError("a site has given a wrong share")
    return seed


def _shaped(flat: np.ndarray[Any, Any], expected: Tensors) -> Tensors:
    """Values one after the other as the entries of an upload."""
    found: Tensors = {}
    at = 0
    for name, like in expected.items():
        if not name.endswith("#mask"):
            part = torch.from_numpy(flat[at : at + like.numel()])
            found[name] = part.reshape(like.shape)
            at += like.numel()
    return found


def _size(content: Any) -> int:
    return len(json.dumps(content))
