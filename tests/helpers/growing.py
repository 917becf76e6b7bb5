"""Sites whose data grows month by month, and one simulation that knows all of it beforehand."""

import json
from dataclasses import replace

import numpy as np
import torch
from safetensors.torch import load_file

from fedmes import config
from fedmes.experiment import prepare, runner

WIDTH = 6
TRAIN, TEST = 8, 4  # samples of a class
# per month, each site's classes; the second month brings c2 and c3, and a further site
MONTHS = (
    {"berlin": (0, 1), "lyon": (1, 0)},
    {"berlin": (0, 2), "lyon": (3, 1), "turin": (2, 1)},
)
# five sites: two meet new classes in the second month; in the third a sixth joins, and one has left
THREE_MONTHS = (
    {"berlin": (0, 1), "lyon": (1, 0), "oslo": (0, 1), "porto": (1, 0), "turin": (0, 1)},
    {"berlin": (0, 2), "lyon": (3, 1), "oslo": (1, 0), "porto": (0, 1), "turin": (1, 0)},
    {"berlin": (2, 0), "lyon": (1, 2), "oslo": (0, 3), "turin": (3, 1), "wien": (2, 1)},
)
OPTIONS = {
    "rounds": 1,
    "epochs": 1,
    "batch": 8,
    "model.name": "mlp",
    "model.width": 6,
    "memory.size": 6,
    "memory.policy": "ring",
    "engine.precision": "float64",
    "tasks": 2,
}


def samples(site, month, labels, train=TRAIN):
    """Vectors around a direction per class, for training and for testing."""
    rng = np.random.default_rng([sum(map(ord, site)), month])
    y = np.repeat(labels, train + TEST)
    x = np.eye(WIDTH)[y] + 0.3 * rng.normal(size=(len(y), WIDTH))
    split = np.tile(np.repeat([0, 1], [train, TEST]), len(labels))
    return {
        "x": x.astype(np.float32),
        "y": np.array([f"c{label}" for label in y]),
        "task": np.full(len(y), f"2025-{month + 1:02}"),
        "client": np.full(len(y), site),
        "split": split,
    }


def write(path, sites, count, months=MONTHS, train=TRAIN):
    """The data of some sites from the first months, in one file."""
    parts = [
        samples(site, month, labels, train)
        for month in range(count)
        for site, labels in months[month].items()
        if site in sites
    ]
    np.savez(path, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def site_folder(folder, name):
    """A site's folder without a key; its data is beside it."""
    folder.mkdir()
    data = folder.with_suffix(".npz")
    describe(folder, name, data)
    return folder


def describe(folder, name, data):
    (folder / "site.toml").write_text(
        f"name = {json.dumps(name)}\ndata = {json.dumps(str(data))}\n"
        "policy = { max_federations = 9 }\n"
    )


def federation(method, sites, classes, **more):
    agreed = {
        "method": method,
        "federation.sites": list(sites),
        "federation.classes": list(classes),
        "federation.shape": [WIDTH],
    }
    return config.load(None, OPTIONS | agreed | more)


def schedule(sites, months):
    """The task of each site in each month, a round a month; -1: it is not there."""
    position = np.full((len(months), len(sites)), -1)
    for k, site in enumerate(sites):
        (there,) = np.nonzero([site in month for month in months])
        position[there, k] = range(len(there))
    return position


def rule_of_sites(method):
    """How real sites are averaged by default; a simulation has to be asked to do the same."""
    return "none" if method in ("fedweit", "fedstats") else "clip"


def simulation(out, method, sites, monkeypatch, months=MONTHS, position=None, **more):
    """All months and sites in one run; the heads of new classes begin as if they were added.
    `position`: the task of each site in each round, if not that of the month."""
    data = out.with_suffix(".npz")
    write(data, sites, len(months), months)
    opened, streams = prepare.open_source, prepare.open_streams

    def in_parts(*asked):
        return replace(opened(*asked), earlier=(2,))

    def in_months(*asked):
        tasks = schedule(sites, months) if position is None else np.array(position)
        active = (tasks >= 0).astype(np.int64)
        (stream,) = streams(*asked)
        return [replace(stream, position=tasks, active=active)]

    asked = {"method": method, "data.path": str(data), "engine.name": "loop", "tasks": len(months)}
    asked["server.robust"] = rule_of_sites(method)
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "open_source", in_parts)
        patch.setattr(prepare, "open_streams", in_months)
        prepared = prepare.prepare(config.load(None, OPTIONS | asked | more))
    return runner.execute(prepared, out)


def same(folder, wanted, method, near=1e-9):
    """The weights of a site and of a simulated client, up to rounding: sums over the rows of a head
    are taken over fewer rows before the others come."""
    found = load_file(folder / "model.safetensors")
    expected = load_file(wanted / "model.safetensors")
    assert found.keys() == expected.keys()
    for entry, value in expected.items():
        if method == "fedweit" and entry.startswith("head"):  # one per task
            # what the head of an earlier task has for classes that came later is never read
            value[0, 2:] = found[entry][0, 2:]
        torch.testing.assert_close(found[entry], value, rtol=0, atol=near)
