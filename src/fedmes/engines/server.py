"""The server's half of a round: which updates are taken, and what they are averaged to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedmes.methods.base import Method
from fedmes.tensors import Tensors

# --- the server's half ----------------------------------------------------------------------------

TOO_FAR = 100
MISFIT = "wrong names or shapes"
# of `screen_updates`; the last one, of the round as a whole
REJECTIONS = ("", "not finite", "absurd norm", "no finite average")
NO_AVERAGE = 3


class Update(NamedTuple):
    """What came back from a client."""

    tensors: Tensors
    samples: float


def aggregate_round(
    method: Method, server: Tensors, updates: Mapping[int, Update], clients: int, expected: Tensors
) -> tuple[Tensors, dict[int, str]]:
    """The server's state after a round, and whose update it left out, and why. `expected`: an
    upload as it should be, for its names and shapes. With fewer good updates than
    `server.min_clients`, or if they make no finite state, the server keeps what it has."""
    left_out = {
        k: MISFIT for k, update in updates.items() if _form(update.tensors) != _form(expected)
    }
    usable = {k: update for k, update in updates.items() if k not in left_out}
    if usable:
        place = next(iter(expected.values()), torch.zeros(()))
        sent = torch.tensor([k in usable for k in range(clients)], device=place.device)
        samples = torch.tensor(
            [usable[k].samples if k in usable else 0 for k in range(clients)]
        ).to(place)
        stacked = {
            name: torch.stack(
                [
                    usable[k].tensors[name] if k in usable else torch.zeros_like(t)
                    for k in range(clients)
                ]
            )
            for name, t in expected.items()
        }
        verdict = screen_updates(server, stacked, sent)
        present = sent & (verdict == 0)
        if int(present.sum()) >= method.config.server.min_clients:
            new = method.aggregate(server, stacked, present, samples)
            if bool(finite(new, present)):
                server = server | new
            else:
                verdict = torch.where(present, NO_AVERAGE, verdict)
        left_out |= {
            k: REJECTIONS[code] for k, code in enumerate(verdict.tolist()) if k in usable and code
        }
    return server, left_out


def finite(state: Tensors, like: Tensor) -> Tensor:
    """Is everything a number? A tensor on the device of `like`, so that an engine may map it over
    federations."""
    found = torch.ones((), dtype=torch.bool, device=like.device)
    for t in state.values():
        found = found & torch.isfinite(t).all()
    return found


def screen_updates(server: Tensors, uploads: Tensors, sent: Tensor) -> Tensor:
    """For uploads stacked by client, [n, ...], an index into VERDICTS each; where nothing was sent
    [n], nothing counts.

    Absurd is what lies too far from the server's state: farther than TOO_FAR times the median of
    the round and than as many times that state's own norm. The first alone would catch the one who
    still learns among those who are done. Tensors throughout, so that an engine may map it over
    federations.
    """
    finite, square, own = torch.ones_like(sent), sent * 0.0, sent * 0.0
    for name, t in uploads.items():
        finite = finite & torch.isfinite(t).reshape(len(t), -1).all(1)
        if t.is_floating_point():
            was = server[name] if name in server else torch.zeros_like(t[0])
            moved = t - was
            if (part := uploads.get(f"{name}#mask")) is not None:
                moved = torch.where(part, moved, 0)
            square = square + moved.square().reshape(len(t), -1).sum(1)
            own = own + was.square().sum()
    usual = torch.where(sent & finite, square, torch.inf).sort().values
    middle = ((sent & finite).sum() - 1).clamp(min=0).div(2, rounding_mode="floor")
    median = usual.gather(0, middle[None])
    far = (square > TOO_FAR**2 * torch.maximum(median, own)) | ~torch.isfinite(square)
    return torch.where(finite, torch.where(far, 2, 0), 1)


def _form(tensors: Tensors) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (t.shape, t.dtype) for name, t in tensors.items()}
