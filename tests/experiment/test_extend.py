"""A finished run goes on with further tasks as if they had been known from the start."""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import fedmes
from fedmes.errors import UserError
from fedmes.results import checkpoint
from fedmes.results.run_dir import stored_config
from fedmes.scenario import stream as streams
from fedmes.scenario.plan import Plan, Work
from fedmes.scenario.stream import Client, Stream, Task

NUMBERS = {
    "rounds": 2,
    "epochs": 2,
    "batch": 6,
    "memory": {"size": 6, "per_task": 2},
    "model": {"width": 8},
}


def rows(tasks, classes=2, clients="ab", seed=0, apart=False):
    """Vectors of two classes a task; apart: each task has classes of its own."""
    rng = np.random.RandomState(seed)
    columns = {"x": [], "y": [], "client": [], "task": [], "split": []}
    for task in tasks:
        for client in clients:
            for label in range(classes):
                for i in range(9):
                    y = label + (classes * task if apart else 0)
                    columns["y"].append(y)
                    columns["x"].append(np.eye(8)[y] * 2 + rng.randn(8))
                    columns["client"].append(client)
                    columns["task"].append(f"task{task}")
                    columns["split"].append(int(i > 5))
    return {name: np.array(values) for name, values in columns.items()}


def write(path, *parts):
    np.savez(path, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    return path


@pytest.fixture
def parts(tmp_path):
    """Tasks 0, 1 and tasks 2, 3 of the same clients and classes, apart and in one file."""
    first, then = rows((0, 1)), rows((2, 3), seed=1)
    return [write(tmp_path / f"{name}.npz", *content) for name, content in
            (("first", [first]), ("then", [then]), ("all", [first, then]))]  # fmt: skip


def run(path, out, **options):
    return fedmes.run(out=out, **(NUMBERS | {"data": str(path)} | options))


def files(out):
    return {p.relative_to(out): p.read_bytes() for p in sorted(out.rglob("*.safetensors"))}


def without_seconds(result):
    return [{key: value for key, value in row.items() if key != "seconds"} for row in result.rounds]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedweit", "ditto", "flwf", "joint"])
def test_the_same_as_one_run_over_all_tasks(method, parts, tmp_path):
    """To the last bit: weights, the state to go on from, accuracies and rounds."""
    first, then, together = parts
    options = {"method": method, "engine": "loop", "seeds": [0, 3]}
    whole = run(together, tmp_path / "whole", **options)
    run(first, tmp_path / "short", **options)
    before = files(tmp_path / "short")
    longer = fedmes.extend(tmp_path / "short", then, out=tmp_path / "longer")
    assert longer.acc.shape == (2, 2, 4, 4)
    for name, table in whole.accuracy.items():
        np.testing.assert_array_equal(longer.accuracy[name], table)
    assert without_seconds(longer) == without_seconds(whole)
    assert longer.communication == whole.communication
    assert longer.memory_share == whole.memory_share
    mine, theirs = files(tmp_path / "longer"), files(tmp_path / "whole")
    assert [name for name in theirs if mine.get(name) != theirs[name]] == []
    assert set(mine) == set(theirs)
    assert files(tmp_path / "short") == before  # the run it began with stays as it is


@pytest.mark.slow
def test_stacked_up_to_rounding(parts, tmp_path):
    """Padding depends on the longest task and the fullest memory of the whole run, and rounding on
    padding."""
    first, then, together = parts
    options = {"engine": {"name": "stacked", "precision": "float64"}}
    whole = run(together, tmp_path / "whole", **options)
    run(first, tmp_path / "short", **options)
    longer = fedmes.extend(tmp_path / "short", then, out=tmp_path / "longer")
    assert [row["loss"] for row in longer.rounds] == pytest.approx(
        [row["loss"] for row in whole.rounds], rel=1e-9
    )
    np.testing.assert_array_equal(longer.acc, whole.acc)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "fedrep", "flwf"])
def test_new_classes(method, tmp_path):
    """The head grows. Rows of classes not yet seen do not move, so it is as if they had been there
    from the start."""
    first, then = rows((0, 1), apart=True), rows((2, 3), apart=True)
    options = {
        "method": method,
        "engine": {"name": "loop", "precision": "float64"},
        "optim": {"lr": 0.05},
    }
    paths = [
        write(tmp_path / f"{name}.npz", part) for name, part in (("first", first), ("then", then))
    ]
    short = run(paths[0], tmp_path / "short", **options)
    longer = fedmes.extend(tmp_path / "short", paths[1], out=tmp_path / "longer")
    scratch = run(
        paths[0],
        tmp_path / "scratch",
        **(options | {"data": {"path": str(paths[0]), "more": [str(paths[1])]}}),
    )
    assert longer.parameters == short.parameters + 4 * 9
    np.testing.assert_array_equal(longer.acc, scratch.acc)
    np.testing.assert_array_equal(longer.acc[:, :, :2, :2], short.acc)
    assert [row["loss"] for row in longer.rounds] == pytest.approx(
        [row["loss"] for row in scratch.rounds], rel=1e-9
    )
    mine, theirs = (
        load_file(out / "seed0/initial.safetensors")
        for out in (tmp_path / "longer", tmp_path / "short")
    )
    assert all(mine[name][: len(t)].equal(t) for name, t in theirs.items())
    about = json.loads((tmp_path / "longer/seed0/client1/client.json").read_text())
    assert about["class_names"] == [str(c) for c in range(8)]
    assert longer.acc[..., 3, 3].mean() > 0.3  # of eight classes: the new ones are learned


@pytest.mark.slow
def test_a_killed_extension_is_resumed(parts, tmp_path):
    first, then, _ = parts
    run(first, tmp_path / "short", engine="loop")
    whole = fedmes.extend(tmp_path / "short", then, out=tmp_path / "whole")
    for rounds in (1, 3):  # before and after the first round that is saved anew

        def listener(progress, rounds=rounds):
            if progress.rounds_done == 4 + rounds:
                raise KeyboardInterrupt

        out = tmp_path / f"killed{rounds}"
        with pytest.raises(KeyboardInterrupt):
            fedmes.extend(tmp_path / "short", then, out=out, on_progress=listener)
        with pytest.raises(UserError, match=f"not finished; first: fedmes resume {out}"):
            fedmes.extend(out, then)
        shutil.rmtree(tmp_path / "short/checkpoint") if rounds == 3 else None  # no longer needed
        resumed = fedmes.run(out / "config.toml", out=out, resume=True)
        np.testing.assert_array_equal(resumed.acc, whole.acc)
        assert files(out) == files(tmp_path / "whole")
        assert len(resumed.rounds) == len(whole.rounds)


@pytest.mark.slow
def test_twice(parts, tmp_path):
    first, then, _ = parts
    last = write(tmp_path / "last.npz", rows((4,), clients="b"))  # client a has no further task
    run(first, tmp_path / "1", engine="loop")
    fedmes.extend(tmp_path / "1", then, out=tmp_path / "2")
    third = fedmes.extend(tmp_path / "2", last, out=tmp_path / "3")
    assert stored_config(tmp_path / "3")["data"]["more"] == [str(then), str(last)]
    assert third.config.tasks == 5
    assert np.isnan(third.acc[0, 0, 4]).all()
    assert not np.isnan(third.acc[0, 1, 4]).any()
    assert {row["client"] for row in third.rounds if row["task"] == 4} == {1}


def test_a_benchmark_goes_on_with_own_data(tmp_path):
    digits = rows((0,), clients=["0", "1"])
    digits["x"] = (np.abs(digits["x"][:, :, None] * 20) + np.zeros((1, 1, 8))).astype(np.uint8)
    digits["y"] = np.where(digits["y"] == 0, "7", "seven in words")
    path = write(tmp_path / "more.npz", digits)
    numbers = {"clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "model": {"width": 8}}
    short = fedmes.run(out=tmp_path / "short", **numbers)
    longer = fedmes.extend(tmp_path / "short", path, out=tmp_path / "longer")
    assert (longer.config.tasks, longer.config.clients, longer.acc.shape) == (3, 2, (1, 2, 3, 3))
    np.testing.assert_array_equal(longer.acc[:, :, :2, :2], short.acc)
    about = [
        json.loads((tmp_path / name / "seed0/client0/client.json").read_text())
        for name in ("short", "longer")
    ]
    assert about[1]["class_names"] == [*map(str, range(10)), "seven in words"]
    # the one that the weights are used to
    assert about[0]["normalisation"] == about[1]["normalisation"]


def test_bytes_are_normalised_as_before(tmp_path):
    first, then = rows((0, 1)), rows((2,))
    for part, shift in ((first, 60), (then, 200)):
        part["x"] = (part["x"] * 5 + shift).astype(np.uint8)
    run(write(tmp_path / "first.npz", first), tmp_path / "short")
    fedmes.extend(tmp_path / "short", write(tmp_path / "then.npz", then), out=tmp_path / "longer")
    about = [
        json.loads((tmp_path / name / "seed0/client0/client.json").read_text())
        for name in ("short", "longer")
    ]
    assert about[0]["normalisation"] == about[1]["normalisation"]


def test_tasks_share_a_fifo_memory_with_those_known_by_then():
    client = Client(
        "a", tuple(Task(str(t), (0,), (0,), np.arange(9) + 9 * t, np.arange(1)) for t in range(4))
    )
    stream = streams.assemble(0, 1, [Client("a", client.tasks[:2])], rounds=3)
    longer = stream.followed_by([Client("a", client.tasks[2:])], 1, 3, "lockstep")
    assert (stream.known(0), longer.known(0), longer.parts) == ([2, 2], [2, 2, 4, 4], (0, 6))
    before, after = (
        Plan(s, 0, 8, Work(epochs=1, batch=4, memory_batch=4)) for s in (stream, longer)
    )
    shares = [
        np.bincount(after.task[memory], minlength=4).tolist() for memory in after.memory_after
    ]
    assert shares == [[4, 0, 0, 0], [4, 4, 0, 0], [2, 4, 2, 0], [0, 4, 2, 2]]
    assert [m.tolist() for m in after.memory_after[:2]] == [m.tolist() for m in before.memory_after]
    loaded = Stream.load(saved(longer))
    assert (loaded.parts, loaded.sha256()) == (longer.parts, longer.sha256())


def saved(stream):
    path = Path(tempfile.mkdtemp()) / "split.json"
    stream.save(path)
    return path


def test_what_cannot_follow_is_refused(parts, tmp_path):
    first, then, _ = parts
    short, more = tmp_path / "short", rows((2,))
    run(first, short)
    before = {p: p.read_bytes() for p in short.rglob("*") if p.is_file()}
    for content, expected in (
        (rows((1, 2)), "client a has had a task named task1 already"),
        (rows((2,), clients="ac"), "the run has no client c; it has a, b"),
        (more | {"x": more["x"][:, :5]}, r"shape \(5,\); the run has"),
        (more | {"x": more["x"].astype(np.uint8)}, "uint8 samples"),
    ):
        with pytest.raises(UserError, match=expected):
            fedmes.extend(short, write(tmp_path / "bad.npz", content), out=tmp_path / "out")
    with pytest.raises(UserError, match="no file or folder"):
        fedmes.extend(short, tmp_path / "nowhere.npz", out=tmp_path / "out")
    with pytest.raises(UserError, match="already holds a different run"):
        fedmes.extend(short, then, out=short)
    with pytest.raises(UserError, match="holds no run"):
        fedmes.extend(tmp_path / "nowhere", then, out=tmp_path / "out")
    write(first, rows((0, 1, 2)))  # the old file has grown
    with pytest.raises(
        UserError, match="has changed since; further tasks belong in a file or folder of their own"
    ):
        fedmes.extend(short, then, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert {p: p.read_bytes() for p in short.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "options", [{"output": {"models": "none"}}, {"checkpoint": {"every": "never"}}]
)
def test_a_run_that_keeps_no_state(options, parts, tmp_path):
    run(parts[0], tmp_path / "short", **options)
    assert not (tmp_path / "short/checkpoint").exists()
    with pytest.raises(UserError, match="keeps no state to continue from"):
        fedmes.extend(tmp_path / "short", parts[1], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_private_state_is_kept(parts, tmp_path):
    run(parts[0], tmp_path / "short", checkpoint={"every": "round"})
    folder = tmp_path / "short/checkpoint"
    names = {f"round-000004.{kind}" for kind in ("safetensors", "json", "sha256")} | {"rows.jsonl"}
    assert {path.name for path in folder.iterdir()} == names
    assert {oct(path.stat().st_mode)[-3:] for path in folder.iterdir()} == {"600"}
    assert checkpoint.latest(tmp_path / "short")[1]["rounds_done"] == 4
