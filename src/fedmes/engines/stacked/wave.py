"""What clients that are on the device together do in a round, and the rows that tell of it."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray
from torch import Tensor

from fedmes.engines.base import RoundRow
from fedmes.engines.server import REJECTIONS
from fedmes.engines.stacked.batches import Grid
from fedmes.engines.stacked.lanes import LanePlan
from fedmes.engines.stacked.seats import Fetched
from fedmes.scenario.plan import Round
from fedmes.tensors import pick


class WavePlan(NamedTuple):
    """What happens in a round to the clients that are on the device together."""

    members: Grid  # their numbers
    plans: Grid
    works: Grid  # each client's part; None: it sits out
    lanes: list[LanePlan]
    fetched: Fetched | None  # what is kept of them; None: they are there


def rows_of(plan: WavePlan, numbers: dict[str, NDArray[Any]]) -> list[RoundRow]:
    """What the clients of a wave did; `numbers`: of each [seed, seat]."""
    rows = []
    for s, clients in enumerate(plan.members):
        for i, k in enumerate(clients):
            if (work := plan.works[s][i]) is not None:
                mine = {name: column[s, i].item() for name, column in numbers.items()}
                rows.append(_row(s, k, work, mine))
    return rows


def _row(s: int, k: int, work: Round, numbers: dict[str, float]) -> RoundRow:
    return RoundRow(
        seed=s,
        client=k,
        position=work.position,
        index=work.index,
        report=pick(numbers, "report"),
        up_bytes=int(numbers["up"]),
        down_bytes=int(numbers["each"] + work.first * numbers["first"]),
        seconds=0.0,
        reason=REJECTIONS[int(numbers.get("verdict", 0))],
    )


def beside_clients(sizes: Tensor) -> Tensor:
    """One number per seed, or one for all, to broadcast against numbers of [seed, client]."""
    if sizes.ndim == 0:
        return sizes
    return sizes[:, None]
