"""Stacked clients train those rows of a head whose classes they meet."""

import pytest
import torch

from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.methods.fedmes_plus import FedMeSPlus
from helpers.frozen_front import clients, prepared

pytestmark = pytest.mark.usefixtures("unrehearsed")
THREE_TASKS = {
    "method": "fedmes-plus", "tasks": 3, "rounds": 2, "optim.name": "adam", "optim.lr": 0.01,
}  # fmt: skip


@pytest.fixture(autouse=True)
def features_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))


def stacked(made):
    return StackedEngine(made.method, made.federations, made.samples, 99, False)


@pytest.fixture
def threads():
    """Sets how many there are, which also says how many lanes; until the test is over."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("lanes", [1, 2])
def test_the_other_rows_change_nothing(lanes, threads):
    """Against one client after the other, which trains whole heads."""
    made = prepared(**THREE_TASKS)
    loop = LoopEngine(made.method, made.federations, made.samples)
    threads(lanes)
    engine = stacked(prepared(**THREE_TASKS))
    most = max(plan.seen[-1].sum() for federation in made.federations for plan in federation.plans)
    assert len(engine.lanes) == lanes
    assert {lane.slots.state["w.head.weight"].shape[2] for lane in engine.lanes} == {most}
    assert most < 15 == engine.state["w.head.weight"].shape[2]
    for g in range(6):
        for one, other in zip(loop.round(g), engine.round(g), strict=True):
            assert one.report == pytest.approx(other.report, rel=1e-12)
        assert [s.accuracy for s in loop.evaluate(g)] == [s.accuracy for s in engine.evaluate(g)]
    for mine, theirs in zip(clients(loop), clients(engine), strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() - engine.seats.shared:
            torch.testing.assert_close(theirs[name], mine[name], rtol=1e-10, atol=1e-12, msg=name)


class Changed(FedMeSPlus):
    """A custom method, which has not said that its steps leave other classes alone."""


@pytest.mark.parametrize(
    "options",
    [
        {"train.scope": "all"},
        {"memory": 0},
        {"model.train": "last:1"},
        {"privacy.sample_clip": 1.0},
        {"faults.attackers": 0.5, "faults.attack": "label-flip"},
        {"fedmesplus.pull": 0.1},
        {"method": "fedavg"},
    ],
    ids=str,
)
def test_whole_heads_where_the_other_rows_may_matter(options):
    engine = stacked(prepared(**THREE_TASKS | options))
    assert {len(lane.slots.state["w.head.bias"][0, 0]) for lane in engine.lanes} == {15}
    engine.round(0)


def test_a_custom_method_has_whole_heads():
    made = prepared(**THREE_TASKS)
    made.method.__class__ = Changed
    assert stacked(made).lanes[0].slots.state["w.head.bias"].shape[2] == 15
