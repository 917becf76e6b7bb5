"""A client is taken out of a finished run: what is left is, to the last bit, a run in which it
never was."""

import json
import shutil

import numpy as np
import pytest

import fedmes
from fedmes.cli import app as cli
from fedmes.errors import UserError
from fedmes.results import checkpoint

NUMBERS = {
    "method": "fedstats",
    "rounds": 1,
    "epochs": 1,
    "batch": 8,
    "memory": {"size": 6, "policy": "ring"},
    "model": {"name": "mlp", "width": 6},
    "seeds": [0, 3],
}
TASKS = {"east": 3, "north": 2, "south": 2}  # the one that is taken out has one more


def rows(seed=0):
    """Vectors of three classes, which everybody has in each task."""
    rng = np.random.RandomState(seed)
    columns = {"x": [], "y": [], "client": [], "task": []}
    for client, count in TASKS.items():
        for task, y, _ in np.ndindex(count, 3, 7):
            columns["x"].append((np.eye(5)[y] + rng.randn(5)).astype(np.float32))
            columns["y"].append(y)
            columns["client"].append(client)
            columns["task"].append(f"task{seed}{task}")
    return {name: np.array(values) for name, values in columns.items()}


def write(path, columns, without=()):
    there = ~np.isin(columns["client"], without)
    np.savez(path, **{name: values[there] for name, values in columns.items()})
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A run of three clients."""
    folder = tmp_path_factory.mktemp("forget")
    data = write(folder / "data.npz", rows())
    for engine in ("loop", "stacked"):
        fedmes.run(out=folder / engine, data=str(data), engine=engine, **NUMBERS)
    return folder


def models(out):
    """What predicts and what is remembered, by file."""
    found = {}
    for path in sorted(out.glob("seed*/**/*")):
        if path.suffix in (".safetensors", ".npz"):
            found[path.relative_to(out).as_posix()] = path.read_bytes()
    return found


def state(out):
    """What the run can be extended from: everybody's state, without scores."""
    tensors, about = checkpoint.latest(out)
    sums = {name: t for name, t in tensors.items() if not name.startswith("book.")}
    return {name: t.tolist() for name, t in sums.items()}, about["rounds_done"]


def everything(out):
    return {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


def without_seconds(result):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in result.rounds]


# --- nothing is left ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_the_same_as_with_data_in_which_it_never_was(engine, world, tmp_path):
    """Weights, memories and the state to go on from, in their bits; and what they score."""
    before = everything(world / engine)
    left = fedmes.forget(world / engine, ["east"], out=tmp_path / "left")
    data = write(tmp_path / "others.npz", rows(), without=["east"])
    never = fedmes.run(out=tmp_path / "never", data=str(data), engine=engine, **NUMBERS)
    assert models(tmp_path / "left") == models(tmp_path / "never")
    # its last round is a round in which nobody has a task any more
    assert state(tmp_path / "left")[0] == state(tmp_path / "never")[0]
    assert without_seconds(left) == without_seconds(never)
    assert left.acc.shape == never.acc.shape == (2, 2, 2, 2)
    for name, table in never.accuracy.items():
        np.testing.assert_array_equal(left.accuracy[name][:, :, -1], table[:, :, -1])
        assert np.isnan(left.accuracy[name][:, :, 0]).all()  # measured while it was there
    assert everything(world / engine) == before
    assert models(tmp_path / "left") != models(world / engine)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_its_configuration_makes_the_same_run(engine, tmp_path):
    """Also of a benchmark, where clients share a data set, and stay away at times."""
    options = NUMBERS | {
        "benchmark": "synthetic",
        "clients": 4,
        "tasks": 2,
        "rounds": 3,
        "memory": {"size": [5, 6, 7, 8]},
        "synthetic": {"train": 20, "test": 4},
        "server": {"fraction": 0.5},
    }
    whole = fedmes.run(out=tmp_path / "whole", engine=engine, **options)
    left = fedmes.forget(tmp_path / "whole", ["0", "2"], out=tmp_path / "left")
    never = fedmes.run(tmp_path / "left/config.toml", out=tmp_path / "never")
    assert models(tmp_path / "left") == models(tmp_path / "never")
    assert state(tmp_path / "left") == state(tmp_path / "never")
    for split in ("seed0/split.json", "seed3/client1/client.json"):
        assert (tmp_path / "left" / split).read_bytes() == (tmp_path / "never" / split).read_bytes()
    assert left.config.capacities() == [6, 8]
    assert left.split_sha256 == never.split_sha256 != whole.split_sha256
    assert len(left.rounds) == len(never.rounds) < len(whole.rounds)


@pytest.mark.slow
def test_in_any_order_and_before_or_after_further_tasks(world, tmp_path):
    more = write(tmp_path / "more.npz", rows(seed=1))
    for name in ("east", "north"):
        fedmes.forget(world / "loop", [name], out=tmp_path / name)
    fedmes.forget(tmp_path / "east", ["north"], out=tmp_path / "east-north")
    fedmes.forget(tmp_path / "north", ["east"], out=tmp_path / "north-east")
    fedmes.extend(tmp_path / "east", more, out=tmp_path / "east-more")
    fedmes.extend(world / "loop", more, out=tmp_path / "more")
    fedmes.forget(tmp_path / "more", ["0"], out=tmp_path / "more-east")
    assert models(tmp_path / "east-north") == models(tmp_path / "north-east")
    assert models(tmp_path / "east-more") == models(tmp_path / "more-east")
    assert models(tmp_path / "east-more") != models(tmp_path / "east")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_of_a_server_that_has_not_taken_everything(engine, world, tmp_path):
    """What it has is taken out, and no more."""
    data = str(world / "data.npz")
    options = NUMBERS | {"rounds": 2, "data": data, "engine": engine, "faults": {"nan": 0.5}}
    with pytest.warns(RuntimeWarning, match="is left out"):
        whole = fedmes.run(out=tmp_path / "whole", **options)
    counts = {}
    for row in whole.rounds:  # the last one says what was still missing
        counts[row["seed"], row["client"]] = row["reason"]
    assert len(set(counts.values())) == 2
    for first, second in (("east", "north"), ("north", "east")):
        fedmes.forget(tmp_path / "whole", [first], out=tmp_path / first)
        fedmes.forget(tmp_path / first, [second], out=tmp_path / f"{first}-{second}")
    assert models(tmp_path / "east-north") == models(tmp_path / "north-east")
    left = checkpoint.latest(tmp_path / "east-north")[0]
    for s, seed in enumerate(NUMBERS["seeds"]):
        n = left["server.n"][s] if engine == "stacked" else left[f"server.{s}.n"]
        # of south's two tasks, each of 18 samples to learn from
        assert n.sum() == 36 if not counts[seed, 2] else n.sum() in (0, 18)


@pytest.mark.slow
def test_the_command(world, tmp_path, monkeypatch, capsys):
    """What it says, and what reads the run that it makes."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(world / "loop", "run")
    command = ["forget", "run", "--client", "south", "--client", "1", "--out", "left"]
    cli.app(command, standalone_mode=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "north, south; accuracies are those of the end, without" in said
    told = json.loads((tmp_path / "left/result.json").read_text())
    assert (told["clients"], told["tasks"]) == (1, 3)
    assert told["notes"][0].startswith("taken out of run on ")
    assert told["metrics"]["oblivious"]["fr"]["mean"] is None
    folders = sorted(path.name for path in (tmp_path / "left/seed0").glob("client*"))
    assert folders == ["client0"]
    client = fedmes.load_client(tmp_path / "left/seed0/client0")
    assert client.predict(np.eye(5, dtype=np.float32)[:2]) is not None
    cli.app(["report", "left", "-q", "--out", "page.html"], standalone_mode=False)
    assert (tmp_path / "page.html").is_file()
    cli.app(command, standalone_mode=False)
    assert "its result is reused" in capsys.readouterr().err


# --- what is refused ------------------------------------------------------------------------------


def refused(match, directory, *clients):
    before = everything(directory)
    with pytest.raises(UserError, match=match) as error:
        fedmes.forget(directory, clients or ["east"], out=directory / "left")
    assert "\n" not in str(error.value)
    assert everything(directory) == before


def test_clients_that_there_are_not(world):
    refused("forget: there is no client west; there are east, north, south", world / "loop", "west")
    refused("there is no client 3", world / "loop", "3")
    refused("no client is left", world / "loop", "east", "1", "south")


def test_a_run_that_is_none_or_not_finished(world, tmp_path):
    refused("forget: .* holds no run", tmp_path)
    shutil.copytree(world / "loop", tmp_path / "half")
    (tmp_path / "half/result.json").unlink()
    refused("is not finished; first: fedmes resume", tmp_path / "half")


def test_a_run_without_its_state(world, tmp_path):
    shutil.copytree(world / "loop", tmp_path / "run")
    checkpoint.clear(tmp_path / "run")
    refused("keeps no state", tmp_path / "run")


def test_data_that_was_deleted_first(world, tmp_path):
    shutil.copytree(world / "loop", tmp_path / "run")
    config = tmp_path / "run/config.toml"
    data = write(tmp_path / "data.npz", rows(), without=["east"])
    config.write_text(config.read_text().replace(str(world / "data.npz"), str(data)))
    refused("has changed since this run was made; .* delete data after that", tmp_path / "run")


@pytest.mark.slow
def test_a_method_that_mixes_what_clients_send(world, tmp_path):
    options = NUMBERS | {"method": "fedavg", "data": str(world / "data.npz"), "engine": "loop"}
    fedmes.run(out=tmp_path / "run", **options)
    refused("method fedavg: what a client sent cannot be taken out again", tmp_path / "run")


@pytest.mark.slow
def test_statistics_of_all_pixels(tmp_path):
    """They are in every feature."""
    columns = rows()
    pixels = np.random.RandomState(0).randint(0, 255, (len(columns["y"]), 4, 4, 1))
    data = write(tmp_path / "data.npz", columns | {"x": pixels.astype(np.uint8)})
    fedmes.run(out=tmp_path / "run", data=str(data), engine="loop", **NUMBERS)
    refused("mean and standard deviation of all clients", tmp_path / "run")


def test_a_federation_of_sites(world, tmp_path):
    shutil.copytree(world / "loop", tmp_path / "run")
    path = tmp_path / "run/config.toml"
    path.write_text(path.read_text().replace('name = "loop"', 'name = "flower"'))
    refused("keep their sums on their sites", tmp_path / "run")


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (["west"], "there is no client west; there are east, north, south"),
        (["north", "east", "south"], "no client is left"),
        (["north", "north"], "a client is named twice"),
    ],
)
def test_the_option_names_some_clients_of_the_data(without, said, world):
    data = {"path": str(world / "data.npz"), "without": without}
    with pytest.raises(UserError, match=f"data.without: .*{said}"):
        fedmes.run(data=data, **NUMBERS)
