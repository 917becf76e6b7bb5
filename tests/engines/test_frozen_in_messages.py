"""Networks of which a part is frozen: the same in a loop, in a stack and in Flower's messages, and
what is frozen is in no message, in no client directory and in no checkpoint."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from flwr.common.serde import recorddict_to_proto

from fedmes import config
from fedmes.common import plugins
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from helpers import inprocess, lite0_files
from helpers.frozen_front import Small

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock", "unrehearsed")]

FEW = ("fedavg", "fedmes", "fedmes-plus", "fedweit")
TINY = lite0_files.TINY | {
    "engine.precision": "float64", "model.weights": "none", "checkpoint.every": "round",
}  # fmt: skip
SMALL = TINY | {"model.name": plugins.reference(Small), "model.weights": None, "model.size": None}


class FirstFrozen(nn.Module):
    """As a user writes it: three layers, of which the first has requires_grad=False."""

    def __init__(self, shape, classes):
        super().__init__()
        self.first = nn.Linear(int(np.prod(shape)), 6).requires_grad_(False)
        ramp = torch.linspace(-0.1, 0.1, self.first.weight.numel())
        self.first.weight.copy_(ramp.reshape(self.first.weight.shape))
        nn.init.constant_(self.first.bias, 0.1)
        self.second, self.head = nn.Linear(6, 5), nn.Linear(5, classes)

    def features(self, x):
        return torch.tanh(self.second(torch.tanh(self.first(x.flatten(1)))))


@pytest.fixture(autouse=True)
def features_folder(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path_factory.mktemp("data")))


class Run:
    """A run in an engine, with the bytes of every message, if there were any."""

    def __init__(self, out, engine, options):
        self.out = out
        self.messages = []  # (names of tensors, serialised content)
        self.up = 0  # bytes of tensors in answers to rounds
        made = prepare(config.load(None, options | {"engine.name": engine}))
        self.net = made.method.net
        grid = self._grid(made.config.clients) if engine == "flower" else None
        self.result = runner.execute(made, out, grid=grid)

    def _grid(self, clients):
        grid = inprocess.simulated(self.out, clients)

        def sent(node, message):
            self._record(message.content)
            return False

        def answered(node, kind, content):
            arrays = self._record(content)
            if kind == "train":
                self.up += sum(array.numpy().nbytes for array in arrays.values())
            return content

        grid.away, grid.forged = sent, answered
        return grid

    def _record(self, content):
        arrays = content.array_records["tensors"]
        self.messages.append((set(arrays), recorddict_to_proto(content).SerializeToString()))
        return arrays

    def stored(self):
        """Names and bytes of all that was written."""
        for path in self.out.rglob("*.safetensors"):
            yield set(load_file(path)), path.read_bytes()
        for path in self.out.rglob("*.npz"):
            with np.load(path) as arrays:
                yield set(arrays), b"".join(arrays[name].tobytes() for name in arrays)

    def frozen(self):
        module = self.net.parts.module
        found = {name: p for name, p in module.named_parameters() if not p.requires_grad}
        return found | dict(module.named_buffers())


def refuse_frozen(run):
    """By names, and by the bytes of all frozen tensors that are more than a constant."""
    frozen = run.frozen()
    telling = [t for t in frozen.values() if t.numel() > 8 and (t != t.flatten()[0]).any()]
    assert telling
    patterns = []
    for dtype in (torch.float32, torch.float64):
        patterns += [t.to(dtype).numpy().tobytes() for t in telling]
    stored = list(run.stored())
    assert len(stored) > 4
    for names, content in run.messages + stored:
        assert not [name for name in names for hidden in frozen if hidden in name]
        assert not any(pattern in content for pattern in patterns)


def assert_close(mine, theirs):
    """Accuracies and traffic are equal, weights to the last digits."""
    assert mine.result.communication == theirs.result.communication
    for name, table in theirs.result.accuracy.items():
        np.testing.assert_array_equal(mine.result.accuracy[name], table)
    for path in sorted(theirs.out.glob("seed0/**/*.safetensors")):
        there = load_file(path)
        here = load_file(mine.out / path.relative_to(theirs.out))
        assert here.keys() == there.keys()
        for name, value in there.items():
            torch.testing.assert_close(here[name], value, rtol=1e-8, atol=1e-8)


def agree(tmp_path, options):
    loop, stacked, flower = (
        Run(tmp_path / engine, engine, options) for engine in ("loop", "stacked", "flower")
    )
    assert_close(stacked, loop)
    assert_close(flower, loop)
    assert loop.net.frozen_sha256 == flower.net.frozen_sha256 is not None
    assert flower.up == flower.result.communication["up_bytes"]
    assert len(flower.messages) > 8 and flower.result.left_out == 0
    for run in (loop, stacked, flower):
        refuse_frozen(run)
    return flower


def frozen_front(method):
    """Two methods are not for a head alone: they share a body, or decompose hidden layers."""
    return {"model.train": "last:1"} if method in ("fedrep", "fedweit") else {}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_with_a_frozen_front_and_kept_features(method, tmp_path):
    agree(tmp_path, SMALL | frozen_front(method) | {"method": method})


OFF = {"model.cache": "off"}
ADAPTERS = {"model.train": "adapters", "model.rank": 1}
CASES = [(method, network) for network in (OFF, ADAPTERS) for method in FEW]
ADAPTED = "fedstats", ADAPTERS | {"fedstats.adapt": 1, "rounds": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "network"), [*CASES, ("fedmes", {"model.train": "last:1"}), ADAPTED]
)
def test_the_front_in_every_step_and_more_than_a_head(method, network, tmp_path):
    agree(tmp_path, SMALL | frozen_front(method) | network | {"method": method})


@pytest.mark.slow
@pytest.mark.parametrize("method", FEW)
def test_a_module_with_requires_grad_false(method, tmp_path):
    own = {"model.name": plugins.reference(FirstFrozen)}
    agree(tmp_path, SMALL | own | {"method": method})


@pytest.mark.slow
@pytest.mark.usefixtures("short_lite0")
def test_an_upload_of_lite0_is_its_head_alone(tmp_path):
    """In bytes: 2 clients, 2 tasks of a round, 4 classes, 1,280 features in double precision."""
    run = agree(tmp_path, TINY | {"method": "fedavg"})
    head = {"w.head.weight", "w.head.bias"}
    assert {frozenset(names) for names, _ in run.messages} == {frozenset(), frozenset(head)}
    assert run.up == 2 * 2 * (1280 + 1) * 4 * 8
