"""The stacked engine gives what the loop gives: for every method, in every awkward situation."""

import dataclasses
import math
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import fedmes
from fedmes import config
from fedmes.engines import capacity
from fedmes.engines.capacity import (
    HEADROOM,
    activation_bytes,
    check,
    clients_side_by_side,
    clients_worked_on,
    replicas_that_fit,
    working_memory,
)
from fedmes.engines.client_data import Samples
from fedmes.engines.stacked import evaluation, seats
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS, fedstats
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import pick, put
from helpers.engine_runs import (
    AWKWARD,
    assert_equal_rows,
    assert_equal_runs,
    assert_equal_states,
    engines,
    prepared_with,
)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
def test_whole_runs_are_equal(method):
    """Staggered, which is harder than lock step; and with two clients of four on the device at a
    time. What a method says not to outlive a round is lost after it."""
    prepared = prepared_with({"method": method}, staggered=True)
    assert_equal_runs(prepared, stacks=(1000, 4), poisoned=True)


@pytest.mark.slow
def test_whole_runs_in_lock_step_are_equal():
    assert_equal_runs(prepared_with({"method": "fedavg", "epochs": 2}))


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
def test_weights_are_equal_after_a_round_in_float32(method, monkeypatch):
    # FedStats rounds features to a grid, which makes a step of it of a last bit that differs.
    monkeypatch.setattr(fedstats, "GRID", 2.0**-40)
    prepared = prepared_with({"method": method, "engine.precision": "float32", "optim.name": "sgd"})
    loop, stacked = engines(prepared)
    loop.round(0), stacked.round(0)
    assert_equal_states(loop, stacked, 1e-5)


@pytest.mark.slow
def test_chunks_change_nothing(monkeypatch):
    monkeypatch.setattr(seats, "clients_side_by_side", lambda *_: 3)
    assert_equal_runs(prepared_with({}, staggered=True), stacks=(1, 3, 6))


def test_a_snapshot_has_what_outlives_a_round(monkeypatch):
    prepared = prepared_with({})
    stacked = engines(prepared)[1]
    stacked.round(0)
    older = put("client", stacked.state) | stacked.snapshot()  # with all there is
    entries = pick(stacked.snapshot(), "client")
    assert set(entries) == set(filter(prepared.method.outlives_round, stacked.state))
    assert 3 * len(entries) < len(stacked.state)
    again = engines(prepared)[1]
    again.restore(older)
    stacked.round(1), again.round(1)
    assert all(t.equal(stacked.state[name]) for name, t in again.state.items())


def test_an_evaluation_times_no_convolutions(monkeypatch):
    """Sizes change from batch to batch."""
    seen = []

    def score(*_):
        seen.append(torch.backends.cudnn.benchmark)
        return []

    monkeypatch.setattr(evaluation, "score", score)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    stacked = engines(prepared_with({}))[1]
    stacked.evaluate(stacked.rota.rounds - 1)
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.benchmark


class Telling(FedAvg):
    """Reports of its optimizer, too."""

    round_only = FedAvg.round_only

    def report(self, state, broadcast):
        return super().report(state, broadcast) | {"moment": state["opt.v.head.bias"].sum()}


@pytest.mark.parametrize("method", [FedAvg, Telling])
def test_seats_have_no_moments_unless_they_are_read_after_the_last_step(method, monkeypatch):
    """Three clients on two slots: one trains on both of them, and takes its moments along."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # one lane
    prepared = prepared_with({"clients": 3, "memory": 0, "method": "fedavg", "stream.frac": 9})
    prepared = dataclasses.replace(prepared, method=method(prepared.method.net, prepared.config))
    loop, stacked = engines(prepared)
    assert stacked.widths.slots == 2
    assert_equal_rows(stacked.round(0), loop.round(0))
    assert_equal_states(loop, stacked, 1e-12)
    own = {name for name in stacked.state if name.startswith("opt.")} - stacked.seats.shared
    assert own == ({"opt.v.head.bias"} if method is Telling else set())
    moments = stacked.state["opt.m.head.weight"]
    assert moments.untyped_storage().nbytes() == 8 * moments[:, 0].numel()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_lanes_change_nothing(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        prepared = prepared_with({"tasks": 2, "rounds": 1})
        assert len(engines(prepared)[1].lanes) == threads
        assert_equal_runs(prepared)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"knn.theta": "tuned"},
        # one sample
        {"knn.theta": "tuned", "stream.classes_min": 1, "stream.classes_max": 1, "stream.cap": 1},
        {"knn.memory": "before", "knn.kernel": "exp_d2"},
        {"train.scope": "block"},
        {"train.scope": "tasks", "stream.classes_max": 3, "eval.task_classes": "all"},
        {"train.scope": "all", "optim.name": "sgd"},
        {"fedmes.start": "continue", "fedmes.lambda": 0.5, "rounds": 2},
        {"memory": 0},
        {"fedmes.correction": "agem_margin"},
        {
            "method": "fedmes-plus",
            "model": "cnn2",
            "model.width": 6,
            "data.image_size": 8,
            "synthetic.channels": 3,
        },
        {"method": "fedmes-plus", "fedmesplus.pull": 0.1},
        {"method": "knn-per", "knnper.store": "all", "knn.theta": "tuned"},
        {"model": "linear", "model.width": None, "model.dropout": 0.0},
        {
            "model": "cnn2",
            "model.width": 6,
            "data.image_size": 5,
            "synthetic.channels": 2,
            "knn.features": "conv",
        },
    ],
    ids=str,
)
def test_options_are_equal(options):
    options = {key: value for key, value in options.items() if value is not None}
    base = AWKWARD | {"rounds": 1}
    if options.get("model") == "linear":
        base.pop("model.width")
    prepared = prepare(config.load(None, base | options))
    assert_equal_runs(prepared)


@pytest.mark.slow
def test_seeds_together_equal_seeds_alone(tmp_path):
    options = {key: value for key, value in AWKWARD.items() if key != "seeds"} | {
        "engine": "stacked"
    }
    together = fedmes.run(**options, seeds=[0, 1, 2], out=tmp_path / "all")
    for i, seed in enumerate((0, 1, 2)):
        alone = fedmes.run(**options, seeds=[seed], out=tmp_path / str(seed))
        for name, table in together.accuracy.items():
            np.testing.assert_array_equal(table[i], alone.accuracy[name][0])


class Broken(FedAvg):
    """Client 1 uploads NaN."""

    def upload(self, state, ctx):
        return {
            name: torch.where(ctx.client == 1, torch.nan, t)
            for name, t in super().upload(state, ctx).items()
        }


@pytest.mark.slow
def test_an_update_that_is_not_finite_is_left_out():
    assert_equal_runs(prepared_with({}, own={"method": Broken}))


class Grouped(nn.Module):
    """A convolution with GroupNorm."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Tanh()
        )
        self.head = nn.Linear(4 * math.prod(shape[1:]), classes)

    def features(self, x):
        return self.body(x)


@pytest.mark.slow
def test_a_module_of_ones_own():
    base = {key: value for key, value in AWKWARD.items() if not key.startswith("model")}
    prepared = prepare(config.load(None, base | {"model": "own.py:Grouped"}), {"model": Grouped})
    assert_equal_runs(prepared)


@pytest.mark.slow
def test_auto_takes_the_engine_that_the_docs_say():
    small = {"clients": 2, "tasks": 1, "rounds": 1, "epochs": 1, "device": "cpu"}
    chosen = {}
    for model in ("linear", "mlp", "cnn2", "cnn6"):
        chosen[model] = prepare(config.load(None, small | {"model": model})).config.engine
    assert {model: engine.name for model, engine in chosen.items()} == {
        "linear": "stacked", "mlp": "stacked", "cnn2": "loop", "cnn6": "loop",
    }  # fmt: skip
    assert chosen["mlp"].compile is False
    assert chosen["mlp"].stack == 2


def test_the_stack_is_estimated_from_memory(monkeypatch):
    prepared = prepared_with({"memory": 9, "engine": "stacked"})
    parts = (prepared.method, prepared.federations, prepared.samples)
    assert replicas_that_fit(*parts) == 8
    monkeypatch.setattr("fedmes.engines.capacity.free_bytes", lambda device: 1_000_000)
    few = replicas_that_fit(*parts)
    assert few in (1, 2, 4)
    assert not any(p.requires_grad for p in prepared.method.net.initial.values())


def test_gradients_of_single_samples_are_counted(monkeypatch):
    """DP-SGD has two for each of the 11 samples of a batch: 22 times the weights of a client."""
    options = {"method": "fedavg", "memory": 0}
    plain = prepared_with(options)
    private = prepared_with(options | {"privacy.sample_clip": 1.0})
    weights = sum(8 * t.numel() for t in plain.federations[0].initial.values())

    def least(enough, prepared):
        """Free bytes that are enough for it."""
        parts = prepared.method, prepared.federations, prepared.samples
        low, high = 0, 1 << 30
        while high - low > 1:
            middle = (low + high) // 2
            monkeypatch.setattr(capacity, "free_bytes", lambda device, free=middle: free)
            low, high = (low, middle) if enough(*parts) else (middle, high)
        return high

    def all_fit(*parts):
        return replicas_that_fit(*parts) == 8

    def one_fits(*parts):
        try:
            check(*parts)
        except fedmes.UserError as error:
            assert "gradients of a batch's samples" in str(error) or "states of 2" in str(error)
            return False
        return True

    more = least(all_fit, private) - least(all_fit, plain)
    assert more == pytest.approx(8 * 22 * weights / HEADROOM, abs=2)
    assert least(one_fits, private) - least(one_fits, plain) == 22 * weights


def test_activations_are_counted_without_the_weights():
    """linear saves its input alone: 64 doubles a sample."""
    base = {key: value for key, value in AWKWARD.items() if not key.startswith("model")}
    prepared = prepare(config.load(None, base | {"model": "linear"}))
    assert activation_bytes(prepared.method.net, prepared.samples) == 64 * 8
    # 128 samples of 3,000 clients fit in 200 MB, of 3,100 they do not
    assert 3000 < clients_side_by_side(prepared.method, prepared.samples, 128) < 3100
    assert clients_worked_on(prepared.method) > 1e6
    prepared.method.workspace = int(1.5e9)  # of two clients it fits in 4 GB
    assert clients_worked_on(prepared.method) == 2
    for seeds, each, together in ((1, 1, 1), (1, 9, 2), (5, 9, 5)):
        assert working_memory(prepared.method, seeds, each) == together * int(1.5e9)


def test_counting_activations_leaves_nothing_behind(monkeypatch):
    """A layer that keeps its own output could hold itself, and all before it, for good."""
    prepared = prepared_with({"model": "mlp"})
    taken: list[weakref.ref[torch.Tensor]] = []
    take = Samples.take

    def noted(*args):
        x = take(*args)
        taken.append(weakref.ref(x))
        return x

    monkeypatch.setattr(Samples, "take", noted)
    assert activation_bytes(prepared.method.net, prepared.samples) > 0
    assert len(taken) == 2 and not any(x() is not None for x in taken)


# a CPU without bf16 falls back, and torch says so at length
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mkldnn")
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions_run(tmp_path, precision):
    options = {
        "clients": 2,
        "tasks": 2,
        "rounds": 1,
        "epochs": 2,
        "model": {"name": "mlp", "width": 16},
    }
    result = fedmes.run(**options, engine={"precision": precision}, out=tmp_path / precision)
    exact = fedmes.run(**options, out=tmp_path / "float32")
    assert result.as_dict()["precision"] == precision
    assert result.metrics["masked"]["acc_all"]["mean"] == pytest.approx(
        exact.metrics["masked"]["acc_all"]["mean"], abs=0.1
    )
    assert torch.get_float32_matmul_precision() == "highest"


class Rows(nn.Module):
    """An LSTM over the rows of an image: torch has no rule to map it without a gradient."""

    def __init__(self, shape, classes):
        super().__init__()
        self.lstm = nn.LSTM(shape[2], 5, batch_first=True)
        self.head = nn.Linear(5, classes)

    def features(self, x):
        return self.lstm(x[:, 0])[0][:, -1]


@pytest.mark.slow
def test_a_network_that_cannot_be_stacked_is_trained_by_the_loop(tmp_path):
    options = {"clients": 2, "tasks": 1, "rounds": 1, "epochs": 1}
    result = fedmes.run(**options, model=Rows, out=tmp_path / "out")
    assert result.config.engine.name == "loop"
    with pytest.raises(fedmes.UserError, match="use --engine loop"):
        fedmes.run(**options, model=Rows, engine="stacked", out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_tasks_that_arrive_at_different_times():
    """Also rounds in which nobody has anything to do, and seeds that take longer than others."""
    prepared = prepared_with(
        {"method": "fedmes", "stream.arrival": "staggered", "clients": 2, "memory": 9, "rounds": 3}
    )
    assert any((f.stream.position < 0).all(axis=1).any() for f in prepared.federations)
    assert len({len(f.stream.position) for f in prepared.federations}) == 2
    assert_equal_runs(prepared)
