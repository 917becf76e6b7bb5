"""`fedmes status`: a run, a comparison, a federation, and what is none of them."""

import json
from datetime import timedelta

import pytest

from fedmes.results import checkpoint, status
from fedmes.results.status import LogLine, Site, now
from helpers import made


def going(directory, **about):
    """A run in the middle of its training."""
    directory.mkdir()
    config = made.settled(made.triangle(0.5, tasks=5))
    (directory / "config.toml").write_text(config.to_toml({"fedmes": "source"}))
    place = {"task": 2, "round": 1, "accuracy": 0.8125, "seconds_left": 200.0, "rounds_total": 10}
    begun = status.of_config(config, now() - timedelta(minutes=2), "training")
    begun.model_copy(update=place | about).write(directory)


def test_a_run(command, tmp_path):
    going(tmp_path / "run", log=[LogLine(time=now(), text=f"round {n}\x1b[2J") for n in range(9)])
    with checkpoint.locked(tmp_path / "run"):
        code, out, err = command("status", tmp_path / "run")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0] == (
        "fedavg on synthetic: training, task 2/5, round 1/2, accuracy so far 0.812, "
        "about 3 min left"
    )
    assert lines[1].endswith(" UTC, updated 2 min ago")
    assert [line[9:] for line in lines[3:8]] == [f"round {n}?[2J" for n in range(4, 9)]
    assert lines[9] == f"directory: {tmp_path / 'run'}"
    assert command("status", tmp_path / "run")[1].startswith(
        "fedavg on synthetic: interrupted, task 2/5, round 1/2, accuracy so far 0.812\n"
    )


def test_a_federation(command, tmp_path):
    sites = [
        Site(name="north", client=0, last_seen=now(), samples=1270, task=2, accuracy=0.913),
        Site(name="south", client=1, left_out="no answer", refusals=3),
    ]
    going(tmp_path / "run", sites=sites, rounds_total=None)
    with checkpoint.locked(tmp_path / "run"):
        _, out, _ = command("status", tmp_path / "run")
    lines = out.splitlines()
    assert lines[0].endswith(", about 3 min to the end of the task")
    table = [line.split() for line in lines[3:6]]
    assert table[0] == [
        "site",
        "last",
        "seen",
        "task",
        "samples",
        "accuracy",
        "refusals",
        "left",
        "out",
    ]
    assert table[1][0] == "north" and table[1][-4:] == ["2", "1,270", "0.913", "0"]
    assert table[2] == ["south", "never", "-", "-", "-", "3", "no", "answer"]


def test_a_comparison(command, tmp_path):
    made.write(tmp_path / "fedmes", made.triangle(0.75), method="fedmes")
    going(tmp_path / "fedavg", phase="failed", error="no reason")
    going(tmp_path / "torn")
    (tmp_path / "torn/status.json").write_text("{")
    code, out, err = command("status", tmp_path)
    assert code == 0
    assert err.startswith(f"left out: {tmp_path}/torn/status.json: cannot be read (")
    head, *rows = out.splitlines()
    assert head.split() == ["run", "phase", "task", "round", "accuracy", "time", "left", "updated"]
    assert [row.split()[:5] for row in rows] == [
        ["fedavg", "failed", "2/5", "1/2", "0.812"],
        ["fedmes", "finished", "2/2", "2/2", "0.750"],
    ]


def test_as_json(command, tmp_path):
    going(tmp_path / "run", sites=[Site(name="north", client=0)])
    code, out, _ = command("status", tmp_path / "run", "--json")
    (found,) = json.loads(out)
    assert (code, found["directory"]) == (0, str(tmp_path / "run"))
    assert (found["phase"], found["task"], found["seconds_left"]) == ("interrupted", 2, None)
    assert found["sites"][0]["name"] == "north"


@pytest.mark.parametrize(
    ("name", "why"), [("empty", "holds no run"), ("absent", "does not exist"), ("file", "is not a directory")]
)  # fmt: skip
def test_what_is_no_run(command, tmp_path, name, why):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    code, out, err = command("status", tmp_path / name)
    assert (code, out, err) == (2, "", f"error: {tmp_path / name}: {why}\n")


def test_a_status_that_cannot_be_read(command, tmp_path):
    going(tmp_path / "run")
    (tmp_path / "run/status.json").write_text("{")
    code, _, err = command("status", tmp_path / "run")
    assert code == 2 and err.startswith(f"error: {tmp_path}/run/status.json: cannot be read (")
