import importlib.util
import os
import signal
import sys
import warnings

# One thread: tiny tensors gain nothing from more, and results do not depend on who else uses the
# machine.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

import fedmes
from fedmes.cli import app as cli
from fedmes.models import efficientnet_lite

torch.set_num_threads(1)

# Nobody pulls the plug: a disk that others use, too, need not be waited for after each small file.
os.fsync = lambda descriptor: None

# Who is started in the background (`.ci/run &`) ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about who else uses the machine than about the program.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

# the longest one first
LONGEST = [
    "test_federation",
    "test_oracle",
    "test_stacked",
    "test_studies",
    "test_flower",
    "test_readme",
    "test_zoo",
    "test_networks_in_runs",
    "test_evaluation_protocols",
    "test_every_method",
    "test_page_in_browser",
    "test_several_devices",
    "test_examples",
    "test_export",
    "test_report_figures",
]


def pytest_configure(config):
    # pytest-xdist would begin with the files that hold the most tests
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """The longest files first, so that of several workers (`-n 2`) none is left alone with one of
    them at the end."""
    place = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.module.__name__, len(LONGEST)))


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs an NVIDIA GPU, and torch finds none")
    if item.get_closest_marker("flower") and importlib.util.find_spec("flwr") is None:
        pytest.skip("Flower is not installed (pip install 'fedmes[flower]')")


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line in this process: its status, what it printed, and what it said besides."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["fedmes", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    with warnings.catch_warnings():  # the command line has a way of its own to show them
        yield call


@pytest.fixture
def own_npz(tmp_path):
    """A small own data set of vectors: client a has three tasks, client b two; 2 classes each."""
    rng = np.random.RandomState(0)
    rows = []
    for client, tasks in (("a", 3), ("b", 2)):
        for task in range(tasks):
            for split, count in ((0, 6), (1, 3)):
                for label in (2 * task, 2 * task + 1):
                    rows += [(client, task, split, label)] * count
    y = np.array([row[3] for row in rows])
    x = (np.eye(6)[y] * 2 + rng.randn(len(rows), 6)).astype(np.float32)
    path = tmp_path / "own.npz"
    np.savez(
        path,
        x=x,
        y=y,
        client=np.array([row[0] for row in rows]),
        task=np.array([row[1] for row in rows]),
        split=np.array([row[2] for row in rows]),
    )
    return path


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory):
    """FedMeS on the digits, with two clients, three tasks and memories of twelve: to be read, not
    to be changed."""
    sizes = {
        "clients": 2,
        "tasks": 3,
        "rounds": 1,
        "epochs": 2,
        "batch": 80,
        "memory": 12,
        "model": {"width": 12},
    }
    out = tmp_path_factory.mktemp("run") / "out"
    fedmes.run(**sizes, optim={"lr": 0.02}, out=out)
    return out


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory):
    """Two methods really trained, with two seeds, in one folder: to be read, not to be changed."""
    sizes = {
        "clients": 3,
        "tasks": 3,
        "rounds": 2,
        "epochs": 1,
        "memory": 12,
        "model": {"name": "mlp", "width": 8},
    }
    folder = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "fedmes"):
        fedmes.run(**sizes, seeds=[0, 4], method=method, out=folder / method)
    return folder


@pytest.fixture
def unrehearsed(monkeypatch):
    """For methods that watch what is done with them, or lie: a rehearsal would be watched, too, or
    find them out. For networks that many runs share: it takes longer than a tiny run."""
    monkeypatch.setattr("fedmes.experiment.prepare.rehearse", lambda *_: None)


@pytest.fixture
def short_lite0(monkeypatch):
    """The network with the first of its seven stages only, for tests that make it many times."""
    monkeypatch.setattr(efficientnet_lite, "STAGES", efficientnet_lite.STAGES[:1])


@pytest.fixture
def clock(monkeypatch):
    """For the server of sites in this process: time passes only when it waits."""
    from fedmes.engines.flower import engine, exchange, gathering
    from helpers.inprocess import Clock

    clock = Clock()
    for module in (engine, exchange, gathering):
        monkeypatch.setattr(module, "time", clock)
    return clock
