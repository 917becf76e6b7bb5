"""Every method in both engines against the plain re-implementation in tests/oracle: weights,
accuracies, memories."""

import csv
import json
import zlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fedmes
from fedmes.data import catalog, synthetic
from fedmes.data.dataset import Dataset
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Stream
from oracle import simulate
from oracle.federation import METHODS

# SMALL has options of several methods
pytestmark = pytest.mark.filterwarnings("ignore:.*has no such option")
NEAR = 1e-11  # of the largest weight of a tensor
SMALL = {"rounds": 2, "epochs": 1, "batch": 5, "memory": 6, "model": {"name": "mlp", "width": 6}}
# so that parts of A are small, and plain descent does not overshoot
SMALL["fedweit"] = {"l1": 0.02, "l2": 3}
SMALL["ewc"], SMALL["mas"] = {"lam": 2, "gamma": 0.7}, {"lam": 0.5, "gamma": 0.7}
SMALL["ccvr"] = {"samples": 3, "steps": 4}
NO_STATE = {"checkpoint": {"every": "never"}}  # nothing goes on from it
SGD, ADAM = {"name": "sgd", "lr": 0.3}, {"name": "adam", "lr": 0.03}

# Own data: the classes of each client's tasks; samples of a class for training are as many as its
# number in COUNTS.
APART = {"a": [(0, 1), (2, 3), (4, 5)], "b": [(5, 4), (0, 1), (3, 2)]}
AGAIN = {"a": [(0, 1), (1, 2), (0, 1)], "b": [(2, 3), (3, 2, 0)], "c": [(1, 3), (0,), (2, 3)]}
COUNTS = (3, 5, 4, 2, 6, 3, 4, 3)


def table(clients, images=False, first=0):
    """Own data of these clients; `first`: the number of its first task."""
    rng = np.random.RandomState(zlib.crc32(repr((clients, images)).encode()))
    columns = {"x": [], "y": [], "client": [], "task": [], "split": []}
    for client, tasks in clients.items():
        for task, classes in enumerate(tasks, first):
            for label in classes:
                for i in range(COUNTS[label] + 3):
                    x = 1.5 * np.eye(8)[label] + rng.randn(8)
                    grey = np.clip(
                        40 * np.resize(x, (8, 8, 1)) + 20 * rng.randn(8, 8, 1) + 100, 0, 255
                    )
                    columns["x"].append(grey.astype(np.uint8) if images else x.astype(np.float32))
                    columns["y"].append(label)
                    columns["client"].append(client)
                    columns["task"].append(task)
                    columns["split"].append(int(i >= COUNTS[label]))
    return {name: np.array(values) for name, values in columns.items()}


class Data:
    """What a run is given and the oracle, too."""

    def __init__(self, folder, clients=APART, images=False, then=None):
        parts = [table(clients, images)]
        if then is not None:
            parts.append(table(then, images, first=len(clients["a"])))
        self.paths = [folder / f"{i}.npz" for i in range(len(parts))]
        for path, part in zip(self.paths, parts, strict=True):
            np.savez(path, **part)
        self.x, self.y = (np.concatenate([part[name] for part in parts]) for name in "xy")
        self.fitted = None
        self.options = {"data": str(self.paths[0])}
        if then is None:
            self.options |= NO_STATE

    def run(self, out, **options):
        fedmes.run(out=out, **self.options, **options)
        if len(self.paths) > 1:
            short, out = out, out.with_name(f"{out.name}-longer")
            fedmes.extend(short, self.paths[1], out=out)
        return out


class Blocks(Data):
    """The synthetic benchmark: clients have some of a task's classes only, in an order of their
    own."""

    def __init__(self, **stream):
        made = {"classes": 3, "train": 20, "test": 4}
        shape = {
            "clients": 3,
            "tasks": 3,
            "data": {"image_size": 4},
            "stream": {"frac": 4.0, "classes_max": 2} | stream,
        }
        self.options = {"benchmark": "synthetic", "synthetic": made} | shape | NO_STATE
        dataset = synthetic.load(9, 4, 1, 20, 4, 1.0)
        self.x, self.y, self.fitted = dataset.x, dataset.y, list(range(9 * 20))
        self.paths = [None]


class Objects(Data):
    """CORe50 by object, made up: tasks share their classes, and a client has some of them in
    each."""

    def __init__(self, monkeypatch):
        rng, sessions, objects = np.random.RandomState(5), np.arange(550) // 50, np.arange(550) % 50
        self.y, self.fitted = np.tile(objects, 2), list(range(550))
        self.x = np.clip(
            rng.randint(60, 190, (50, 2, 2, 3))[self.y] + 30 * rng.randn(1100, 2, 2, 3), 0, 255
        )
        self.x = self.x.astype(np.uint8)
        dataset = Dataset(
            self.x, self.y, tuple(map(str, range(50))), 550, session=np.tile(sessions, 2)
        )
        monkeypatch.setattr(catalog, "load", lambda name, **options: dataset)
        shape = {
            "clients": 2,
            "tasks": 2,
            "stream": {"frac": 1.0, "classes_min": 20, "classes_max": 30},
        }
        self.options = (
            {"benchmark": "split-core50", "data": {"core50_labels": "objects"}} | shape | NO_STATE
        )
        self.paths = [None]


def agree(method, data, folder, **options):
    """Both engines come to what the oracle comes to."""
    given = SMALL | {"optim": SGD, "method": method} | options
    oracle = {}
    for engine in ("loop", "stacked"):
        out = data.run(folder / engine, **given, engine={"name": engine, "precision": "float64"})
        for seed in options.get("seeds", [0]):
            if seed not in oracle:  # it reads nothing of a run but what the run was given
                oracle[seed] = expected(method, data, out, seed)
            compare(out, seed, oracle[seed], f"{engine}, seed {seed}")


def expected(method, data, out, seed):
    tuned = 'theta = "tuned"' in (out / "config.toml").read_text()
    held_back = kept_back(out, seed, data.y) if tuned else None
    return simulate(method, out, seed, data.x, data.y, data.fitted, held_back)


def kept_back(out, seed, y):
    """Drawn, so taken as it is: the rows of each client and task on which theta is tuned."""
    stream = Stream.load(out / f"seed{seed}" / "split.json")
    work = Work(epochs=1, batch=1, memory_batch=1, hold_back=True)
    plans = [Plan(stream, k, 0, work, y) for k in range(len(stream.clients))]
    return [[plan.rows[numbers].tolist() for numbers in plan.held_back] for plan in plans]


def compare(out, seed, oracle, where):
    folder, seeds = out / f"seed{seed}", json.loads((out / "result.json").read_text())["seeds"]
    with np.load(out / "accuracy.npz") as tables:
        assert set(tables) == set(oracle.accuracy), where
        for name, values in oracle.accuracy.items():
            np.testing.assert_array_equal(
                tables[name][seeds.index(seed)], values, err_msg=f"{where}: {name}"
            )
    if oracle.losses[0] is not None:  # a head that is solved for has none
        with (out / "rounds.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["seed"] == str(seed)]
        losses = [float(row["loss"]) for row in rows]
        assert losses == pytest.approx(oracle.losses, rel=NEAR), where
    assert (folder / "global.safetensors").exists() == bool(oracle.server)
    if oracle.server:
        near(load_file(folder / "global.safetensors"), oracle.server, f"{where}, server")
    for k, model in enumerate(oracle.models):
        client = folder / f"client{k}"
        near(load_file(client / "model.safetensors"), model, f"{where}, client {k}")
        about = json.loads((client / "client.json").read_text())
        assert (about["knn"] or {"theta": None})["theta"] == oracle.thetas[k], where
        with np.load(client / "memory.npz") as memory:
            assert memory["y"].tolist() == oracle.remembered[k], where


def near(found, wanted, where):
    assert set(found) == set(wanted), where
    for name, t in wanted.items():
        met = ~torch.isnan(t)  # of a task that was never met there is nothing to say
        far = (found[name] - t)[met].abs().max()
        assert far <= NEAR * t[met].abs().max(), f"{where}: {name} is off by {far:.1e}"


# --- all methods in every situation ---------------------------------------------------------------

ALL = sorted(METHODS)


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_tasks_that_share_and_revisit_classes(method, tmp_path):
    agree(method, Data(tmp_path, AGAIN), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_tasks_that_share_classes_of_which_a_client_has_some(method, tmp_path, monkeypatch):
    agree(method, Objects(monkeypatch), tmp_path, rounds=1, batch=20, memory=12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_adam_in_small_batches_with_a_memory_that_overflows(method, tmp_path):
    memory = {"size": [5, 7], "per_task": 4, "batch": 2, "policy": "fifo"}
    # their teacher agrees at first: a gradient of 0 but for rounding, which Adam divides by itself
    optim = SGD if method in ("icarl", "glfc") else ADAM
    agree(method, Data(tmp_path), tmp_path, optim=optim, rounds=1, epochs=2, batch=3, memory=memory)


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_clients_who_come_late_and_stay_away(method, tmp_path):
    agree(
        method,
        Blocks(arrival="staggered"),
        tmp_path,
        faults={"drop": 0.3},
        server={"fraction": 0.8},
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ALL)
def test_further_tasks_with_new_classes(method, tmp_path):
    then = {"a": [(6, 0)], "b": [(2, 5), (6, 7)]}
    agree(
        method,
        Data(tmp_path, {"a": [(0, 1), (2, 3)], "b": [(5, 4)]}, then=then),
        tmp_path,
        rounds=1,
    )


# --- options --------------------------------------------------------------------------------------

ON_BLOCKS = [
    ("fedavg", {"train": {"scope": "all"}}),
    ("fedavg", {"train": {"scope": "tasks"}, "eval": {"task_classes": "all"}}),
    ("fedmes", {"train": {"scope": "block"}, "eval": {"task_classes": "all"}}),
    ("fedmes-plus", {"train": {"scope": "tasks"}}),
    ("local-er", {"train": {"scope": "block"}}),
    ("fedweit", {"eval": {"task_classes": "all"}, "optim": {"name": "sgd", "lr": 0.01}}),
    ("fedavg", {"server": {"min_clients": 2}, "faults": {"drop": 0.5}}),
    (
        "fedweit",
        {"server": {"fraction": 0.5}, "fedweit": {"kb": "all_previous", "l1": 0.02, "l2": 3}},
    ),
    ("fedmes", {"seeds": [3, 0], "server": {"fraction": 0.6}}),
    (
        "fedmes",
        {"memory": {"size": [0, 9, 4]}, "stream": {"frac": 7.0, "partition": "dirichlet:0.5"}},
    ),
    ("joint", {"seeds": [1, 2], "stream": {"arrival": "staggered", "frac": 3.0}}),
    (
        "fedstats",
        {
            "fedstats": {"adapt": 2, "frequency": 2},
            "rounds": 4,
            "faults": {"drop": 0.3},
            "stream": {"arrival": "staggered"},
        },
    ),
    (
        "fedstats",
        {"rounds": 3, "faults": {"nan": 0.4, "drop": 0.2}, "server": {"min_clients": 2}},
    ),
    ("fedstats", {"fedstats": {"adapt": 1}, "rounds": 3, "faults": {"nan": 0.4}}),
]

ON_OWN_DATA = [
    ("fedavg", {"rounds": 2, "eval": {"model": "personal"}}),
    ("fedavg", {"model": {"name": "linear"}}),
    ("fedavg", {"rounds": 2, "faults": {"nan": 0.5}}),
    ("fedstats", {"rounds": 2, "faults": {"nan": 0.5}}),
    ("fedprox", {"fedprox": {"mu": 1.5}, "optim": ADAM}),
    ("ditto", {"eval": {"model": "global"}}),
    (
        "ditto",
        {
            "ditto": {"lam": 0.7},
            "model": {"name": "mlp", "width": 6, "dropout": 0.25},
            "optim": ADAM,
        },
    ),
    ("fedrep", {"epochs": 3, "optim": ADAM}),
    ("fedrep", {"rounds": 2, "epochs": 2, "eval": {"model": "personal"}}),
    ("fedagem", {"eval": {"model": "personal"}, "memory": {"size": 8, "policy": "ring"}}),
    ("fedmes", {"rounds": 2, "fedmes": {"start": "continue", "lambda": "rescaled"}}),
    (
        "fedmes",
        {"fedmes": {"lambda": 0.4, "correction": "agem_margin"}, "eval": {"model": "global"}},
    ),
    ("fedmes", {"fedmes": {"correction": "replay"}, "memory": {"size": 7, "policy": "reservoir"}}),
    ("fedmes", {"rounds": 2, "model": {"name": "mlp", "width": 6, "dropout": 0.25}}),
    ("fedmes", {"knn": {"k": 1, "theta": 1.0}}),
    ("fedmes", {"knn": {"kernel": "exp_d2", "memory": "before", "theta": 0.8}}),
    ("fedmes", {"knn": {"theta": "tuned", "k": 3}, "memory": {"size": 12}}),
    ("knn-per", {"knn": {"theta": "tuned"}, "knnper": {"store": "all"}}),
    ("knn-per", {"knnper": {"store": "all"}, "eval": {"model": "personal"}}),
    ("fedweit", {"fedweit": {"retroactive": True, "l1": 0.02, "l2": 3}}),
    ("fedweit", {"fedweit": {"sparsity": 0.6, "wd": 0.05, "l2": 3}, "eval": {"model": "global"}}),
    ("fedmes-plus", {"fedmesplus": {"balance": 0, "teach": 2.5}, "eval": {"model": "global"}}),
    ("fedmes-plus", {"fedmesplus": {"pull": 0.3}, "optim": ADAM}),
    (
        "fedmes-plus",
        {"fedmesplus": {"teach": 0}, "memory": {"size": 7, "policy": "fifo"}, "optim": ADAM},
    ),
    ("flwf", {"flwf": {"alpha": 1.5, "temp": 0.7}, "eval": {"model": "personal"}}),
    ("flwf-2t", {"flwf2t": {"alpha": 0.2, "beta": 0.7, "temp": 3.0}, "optim": ADAM}),
    ("regmean", {"model": {"name": "linear"}, "regmean": {"alpha": 0.3}}),
    ("lfedcon2", {"rounds": 3, "lfedcon2": {"members": 2, "local": 1, "drift": 0.9}}),
    ("lfedcon2", {"rounds": 3, "model": {"name": "linear"}, "eval": {"model": "global"}}),
    ("local", {"model": {"name": "mlp", "width": 6, "dropout": 0.25}}),
    ("local-er", {"memory": {"size": 5, "policy": "balanced", "per_task": 4, "batch": 3}}),
]

CNN = {"model": {"name": "cnn2", "width": 4}}
ON_IMAGES = [
    ("fedmes", CNN | {"knn": {"features": "conv", "k": 3, "theta": 0.9}}),
    ("fedweit", CNN),
    ("fedmes-plus", {"fedmesplus": {"augment": "flip"}}),
    (
        "fedmes-plus",
        {"fedmesplus": {"augment": "shift"}, "model": {"name": "mlp", "width": 6, "dropout": 0.25}},
    ),
]


def named(cases):
    """With names that say the options, such as `fedmes-knn-memory`."""
    return [pytest.param(*case, id="-".join([case[0], *case[1]])) for case in cases]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), named(ON_BLOCKS))
def test_options_where_clients_have_some_of_a_tasks_classes(method, options, tmp_path):
    data = Blocks(**options.pop("stream", {}))
    agree(method, data, tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), named(ON_OWN_DATA))
@pytest.mark.filterwarnings("ignore:.*is left out \\(not finite\\):RuntimeWarning")
def test_options(method, options, tmp_path):
    agree(method, Data(tmp_path), tmp_path, **({"rounds": 1} | options))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "options"), named(ON_IMAGES))
def test_options_of_images(method, options, tmp_path):
    agree(method, Data(tmp_path, images=True), tmp_path, rounds=1, **options)
