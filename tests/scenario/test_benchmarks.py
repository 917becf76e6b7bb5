"""The paper's benchmarks, dealt out from official class counts alone: no image is needed to know
who gets which."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedmes import config
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.data import catalog
from fedmes.data.dataset import Dataset
from fedmes.scenario.benchmarks import fused, open_benchmark, partitioner
from fedmes.scenario.source import Source

COUNTS = {  # classes, training and test images a class
    "cifar100": (100, 500, 100), "emnist": (60, 1600, 400), "emnist-letters": (26, 4800, 800), "core50": (550, 240, 60),
    "miniimagenet": (100, 500, 100), "tinyimagenet": (200, 500, 50),
}  # fmt: skip
CONFIGS = Path(__file__).parents[2] / "configs"
PAPER = ["split-cifar100", "split-emnist", "split-core50", "split-miniimagenet", "fusion-40"]
BLOCK = {
    "split-cifar100": 10,
    "split-emnist": 6,
    "split-core50": 50,
    "split-miniimagenet": 10,
    "fusion-40": 10,
}
TASKS = {
    "split-cifar100": 10,
    "split-emnist": 10,
    "split-core50": 11,
    "split-miniimagenet": 10,
    "fusion-40": 40,
}
SHARE = {
    "split-cifar100": 50,
    "split-emnist": 160,
    "split-core50": 120,
    "split-miniimagenet": 50,
    "fusion-40": 50,
}

SHA256 = {
    "split-cifar100": [
        "5b2be14a70105a12",
        "1cf0de45dfbf02e5",
        "737a43f669c6248d",
        "50ac94c76eea1e8d",
        "e6480936a1436956",
    ],
    "split-emnist": [
        "9d743d2085ccb6c7",
        "f5e928ff048e758d",
        "62a7f3d9a2e195ac",
        "ffb0ddacabf15f86",
        "d4dec44bd6545104",
    ],
    "split-core50": [
        "7a85ec7f5a768c3f",
        "f23e7fcf18b0048d",
        "1356bb84aaa23b86",
        "1079ccf023169ded",
        "a2756eb4c038e1ef",
    ],
    "split-miniimagenet": [
        "5b2be14a70105a12",
        "1cf0de45dfbf02e5",
        "737a43f669c6248d",
        "50ac94c76eea1e8d",
        "e6480936a1436956",
    ],
    "fusion-40": [
        "d2fb26065e785ff9",
        "e9be8d81ffdfc74c",
        "cc894ad3aa79138b",
        "fd973a0cc112651e",
        "bf04508ce20b7c2a",
    ],
    "affcl-letters": [
        "96feb867211f59ba",
        "dc35366a1fb51286",
        "674feb25a904b080",
        "6a4fa79c3e9b3b6a",
        "488bb9fa6e2cd648",
    ],
    "affcl-cifar100": [
        "14b7799c6f47922c",
        "7b9e15413b08d775",
        "d651ad07d40f69d0",
        "2f303346002bd764",
        "aedb3ee07af57584",
    ],
}


def labels_only(name, objects=False):
    """A data set of the official counts, with pictures of one pixel."""
    classes, train, test = COUNTS[name]
    y = np.concatenate([np.repeat(np.arange(classes), train), np.repeat(np.arange(classes), test)])
    names = tuple(map(str, range(50 if objects else classes)))
    session = y // 50 if objects else None
    y = y % 50 if objects else y
    return Dataset(
        np.zeros((len(y), 1, 1, 1), np.uint8), y, names, classes * train, session=session
    )


@cache
def official(benchmark, objects=False):
    names = BENCHMARKS[benchmark].data
    parts = [labels_only(name, objects) for name in names]
    return parts[0] if len(parts) == 1 else fused(parts, names)


def dealt(benchmark, seed, objects=False, **options):
    settings = config.load(None, {"benchmark": benchmark, **options})
    return partitioner(settings, official(benchmark, objects), BENCHMARKS[benchmark].tasks)(seed)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", PAPER)
@pytest.mark.parametrize("clients", [10, 20])
def test_invariants(benchmark, clients):
    """What every split must satisfy."""
    data = official(benchmark)
    for seed in range(8):
        check_split(
            benchmark,
            data,
            dealt(benchmark, seed, clients=clients),
            clients,
            np.full(1000, SHARE[benchmark]),
        )


@pytest.mark.skipif(
    "FEDMES_TEST_DATA" not in os.environ, reason="FEDMES_TEST_DATA names no folder with real images"
)
@pytest.mark.parametrize("benchmark", ["split-cifar100", "split-emnist"])
def test_invariants_of_real_labels(benchmark, monkeypatch):
    """Of real files, with classes in any order and, in EMNIST, of unequal sizes."""
    root = Path(os.environ["FEDMES_TEST_DATA"])
    if not all(catalog.find(name, root) for name in BENCHMARKS[benchmark].data):
        pytest.skip("the data set is not there")
    monkeypatch.setenv("FEDMES_DATA", str(root))
    for clients in (10, 20):
        source = open_benchmark(config.load(None, {"benchmark": benchmark, "clients": clients}))
        shares = np.rint(0.1 * np.bincount(source.dataset.y[: source.dataset.train_count])).astype(
            int
        )
        for seed in range(20):
            check_split(benchmark, source.dataset, source.stream(seed), clients, shares)


def check_split(benchmark, data, made, clients, shares):
    tests = np.bincount(data.y[data.train_count :])
    assert len(made.clients) == clients
    blocks = {task.name: task.block for client in made.clients for task in client.tasks}
    assert sorted(c for block in blocks.values() for c in block) == list(
        range(len(data.class_names))
    )
    assert {len(block) for block in blocks.values()} == {BLOCK[benchmark]}
    # unique orders
    assert len({tuple(task.name for task in client.tasks) for client in made.clients}) == clients
    held, late = np.zeros(len(data.y), np.int64), any("hold images" in note for note in made.notes)
    for client in made.clients:
        assert len(client.tasks) == TASKS[benchmark]
        for task in client.tasks:
            assert 2 <= len(task.classes) <= 5
            assert set(task.classes) <= set(task.block) == set(blocks[task.name])
            assert task.train.max() < data.train_count <= task.test.min()
            assert (
                set(np.unique(data.y[task.train]))
                == set(np.unique(data.y[task.test]))
                == set(task.classes)
            )
            assert (
                len(np.unique(task.train))
                == len(task.train)
                == sum(shares[c] for c in task.classes)
            )
            assert len(task.test) == sum(tests[c] for c in task.classes)
            held[task.train] += 1
    assert late or held.max() == 1


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", [*PAPER, "affcl-letters", "affcl-cifar100"])
def test_split_files_are_the_same_on_every_machine(benchmark):
    assert [dealt(benchmark, seed).sha256()[:16] for seed in range(5)] == SHA256[benchmark]


def test_a_fusion_task_has_one_source_or_all():
    source = official("fusion-40").source
    of_class = np.zeros(400, np.int64)
    of_class[official("fusion-40").y] = source
    single, mixed = dealt("fusion-40", 0), dealt("fusion-40", 0, **{"data.fusion": "mixed"})
    count = [0, 0, 0]
    for task in single.clients[0].tasks:
        assert len({of_class[c] for c in task.block}) == 1
        count[of_class[task.block[0]]] += 1
    assert count == [10, 10, 20]
    assert max(len({of_class[c] for c in task.block}) for task in mixed.clients[0].tasks) == 3


def test_core50_by_object_shares_classes_between_sessions():
    made = dealt("split-core50", 0, objects=True, **{"data.core50_labels": "objects"})
    data = official("split-core50", objects=True)
    assert made.classes == 50
    for client in made.clients:
        assert all(task.block == tuple(range(50)) for task in client.tasks)
        for task in client.tasks:
            assert set(data.session[task.train]) == set(data.session[task.test]) == {int(task.name)}
            assert set(data.y[task.train]) == set(task.classes)
    by_session = dealt("split-core50", 0)  # the same images, under other names
    assert [t.train.tolist() for t in by_session.clients[3].tasks] == [
        t.train.tolist() for t in made.clients[3].tasks
    ]


@pytest.mark.parametrize(("benchmark", "classes"), [("affcl-letters", 26), ("affcl-cifar100", 100)])
def test_clients_with_classes_of_their_own(benchmark, classes):
    made = dealt(benchmark, 1)
    assert (len(made.clients), made.classes) == (8, classes)
    for client in made.clients:
        own = [c for task in client.tasks for c in task.classes]
        assert [len(task.classes) for task in client.tasks] == [2] * 6
        assert len(set(own)) == 12
        assert all(task.block == task.classes for task in client.tasks)
    everything = np.concatenate([task.train for client in made.clients for task in client.tasks])
    assert len(np.unique(everything)) == len(everything)  # holders divide a class between them


@pytest.mark.parametrize(
    ("benchmark", "size", "sha256"),
    [
        ("fcil-cifar100-10x10", 10, "5afea206de5eeaaf"),
        ("fcil-cifar100-5x20", 20, "6ab4a27e6932a9b6"),
        ("fcil-cifar100-20x5", 5, "8abd7ba9a6727c9c"),
    ],
)
def test_class_incremental_clients_learn_the_same_tasks_and_have_one_test_set(
    benchmark, size, sha256
):
    made, data = dealt(benchmark, 0), official(benchmark)
    assert made.sha256()[:16] == sha256
    first = made.clients[0]
    assert [len(task.block) for task in first.tasks] == [size] * (100 // size)
    for client in made.clients:
        for task, theirs in zip(client.tasks, first.tasks, strict=True):
            assert task.classes == task.block == theirs.block
            assert task.test.tolist() == theirs.test.tolist()
            assert len(task.test) == 100 * size
    rows = np.concatenate([task.train for client in made.clients for task in client.tasks])
    assert sorted(rows.tolist()) == list(range(data.train_count))  # every image, once
    shares = [np.bincount(data.y[client.tasks[0].train]).max() for client in made.clients]
    assert max(shares) > 150  # of 500: Dirichlet, where an even share has 50


def test_several_sources_are_normalised_each_by_itself():
    def part(value, spread):
        x = np.full((6, 2, 2, 3), value, np.uint8)
        x[::2] += spread
        return Dataset(x, np.array([0, 1, 0, 1, 0, 1]), ("a", "b"), 4)

    both = fused([part(10, 10), part(200, 20)], ("dark", "light"))
    assert both.class_names == ("dark/a", "dark/b", "light/a", "light/b")
    assert both.train_count == 8
    assert both.y.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 2, 3]
    assert both.source.tolist() == [0] * 4 + [1] * 4 + [0, 0, 1, 1]
    statistics = Source(both, None).normalisation(None)
    np.testing.assert_allclose(statistics.mean, [[15 / 255] * 3, [210 / 255] * 3])
    np.testing.assert_allclose(statistics.std, [[5 / 255] * 3, [10 / 255] * 3])


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda file: file.stem)
def test_every_configuration_is_one(file):
    loaded = config.load(file, {})
    loaded.capacities()
    benchmark = BENCHMARKS[loaded.benchmark]
    assert loaded.tasks == benchmark.defaults["tasks"]


def test_every_benchmark_of_the_paper_has_a_configuration():
    assert {config.load(file, {}).benchmark for file in CONFIGS.glob("*.toml")} >= set(PAPER)
