"""What a run says while it goes on: its lines, and its files before it is finished."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fedmes
from fedmes.engines.base import Score
from fedmes.errors import Stopped
from fedmes.experiment import journal, runner
from fedmes.experiment.prepare import prepare
from fedmes.experiment.recorder import Progress, Recorder
from fedmes.experiment.round_line import round_line
from fedmes.results import rounds_csv, status
from fedmes.results.status import Site
from helpers import made

SMALL = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "model": "linear",
    "synthetic": {"train": 12, "test": 4}, "data": {"image_size": 4},
}  # fmt: skip
NOW = Progress(
    rounds_done=7, rounds_total=20, task=2, tasks=5, round=2, rounds=4, accuracy=0.8125,
    seconds_left=130.0, rows=[], scores={},
)  # fmt: skip


def row(client, reason=""):
    return {"client": client, "left_out": int(bool(reason)), "reason": reason}


def said(now=NOW, seeds=1, sites=(), scores=()):
    return round_line(now, made.settled(made.triangle(0.5, seeds=seeds)), sites, scores)


@pytest.mark.parametrize(
    ("rows", "seeds", "who"),
    [
        ([row(0), row(1)], 1, "all 2 clients"),
        ([row(1)], 1, "1 of 2 clients"),
        ([row(0), row(0), row(1)], 2, "3 of 4 clients (2 seeds)"),
        ([row(0), row(1, "not finite")], 1, "all 2 clients, 1 left out (not finite)"),
    ],
)
def test_clients_in_a_line(rows, seeds, who):
    line = said(replace(NOW, rows=rows), seeds)
    assert line == f"round 7/20, task 2/5: {who}; accuracy so far 0.812; about 2 min left"


def test_sites_in_a_line():
    sites = [
        Site(name="north", client=0),
        Site(name="south", client=1, left_out="no answer"),
        Site(name="east", client=2, left_out="of another shape"),
        Site(name="stranger", left_out="is not among the sites"),
    ]
    now = replace(NOW, rows=[row(0), row(2, "of another shape")], rounds_total=None)
    score = Score(0, 0, 1, {"acc": [(0.5, 1.0), (1.0, 1.0)]})
    assert said(now, sites=sites, scores=[score]) == (
        "round 7, task 2/5: north, east (left out: of another shape); "
        "missing south (no answer), stranger (is not among the sites); "
        "accuracy so far 0.812 (north 0.750); about 2 min to the end of the task"
    )
    now = replace(now, rows=[], accuracy=None, seconds_left=0.0)
    assert said(now, sites=sites[:1]) == "round 7, task 2/5: nobody"


def test_many_sites_in_a_line():
    sites = [Site(name=f"s{k}", client=k) for k in range(100)]
    now = replace(NOW, rows=list(map(row, range(100))))
    assert "task 2/5: s0, s1, s2, s3, s4, s5, s6, s7, s8, s9 and 90 more; acc" in said(
        now, sites=sites
    )


class Clock:
    def __init__(self, *times):
        self.times = list(times)

    def monotonic(self):
        return self.times.pop(0)


def test_the_time_left_is_at_the_pace_of_the_rounds_after_the_first(tmp_path, monkeypatch):
    told = journal.Journal(tmp_path, made.settled(made.triangle(0.5)))
    told.first = 4
    told.began = 100.0
    monkeypatch.setattr(journal, "time", Clock(110.0, 110.0, 112.0, 116.0))
    assert told._seconds_left(replace(NOW, rounds_done=5), 8.0) == 15 * 2.0  # 8 s of compilation
    assert told._seconds_left(replace(NOW, rounds_done=6), 8.0) == 14 * 2.0
    unknown = replace(NOW, rounds_done=7, rounds_total=None)
    assert told._seconds_left(unknown, 8.0) == 2 * 3.0  # to the end of the task


def test_a_run_in_the_middle(tmp_path, monkeypatch):
    """After each round, its files are those of a run that ended there."""
    monkeypatch.setattr(journal, "PAUSE", 0.0)
    seen = []

    def look(now):
        found = status.read(tmp_path)
        rows = rounds_csv.read(tmp_path / "rounds.csv")
        scored = None
        if (tmp_path / "accuracy.npz").is_file():
            scored = int((~np.isnan(np.load(tmp_path / "accuracy.npz")["acc"])).sum())
        seen.append((found.phase, found.task, found.round, len(rows), scored))
        assert found.log[-1].text == now.line and now.seconds_left is not None

    fedmes.run(**SMALL, out=tmp_path, on_progress=look)
    # a client has one accuracy after its first task and two after its second
    assert seen == [
        ("training", 1, 1, 2, None),
        ("training", 1, 2, 4, 2),
        ("training", 2, 1, 6, 2),
        ("training", 2, 2, 8, 6),
    ]
    found = status.read(tmp_path)
    assert (found.phase, found.rounds_done, found.seconds_left) == ("finished", 4, None)
    assert [line.text[:9] for line in found.log] == [f"round {n}/4" for n in (1, 2, 3, 4)]


def test_a_run_that_is_stopped_and_resumed(tmp_path, monkeypatch):
    whole = fedmes.run(**SMALL, out=tmp_path / "whole")
    prepared = prepare(whole.config)
    out = tmp_path / "parts"
    with pytest.raises(Stopped):
        runner.execute(prepared, out, stop=lambda: True)
    assert (status.read(out).phase, status.read(out).rounds_done) == ("stopped", 1)
    assert len(rounds_csv.read(out / "rounds.csv")) == 2

    def fails(now):
        raise ValueError("a listener's own fault")

    with pytest.raises(ValueError, match="own fault"):
        runner.execute(prepared, out, fails, resume=True)
    found = status.read(out)
    assert (found.phase, found.error) == ("failed", "ValueError: a listener's own fault")
    runner.execute(prepared, out, resume=True)
    assert status.read(out).phase == "finished"

    def places(folder):
        rows = rounds_csv.read(folder / "rounds.csv")
        return [{name: row[name] for name in row if name != "seconds"} for row in rows]

    assert places(out) == places(tmp_path / "whole")


def test_files_are_written_once_a_second_at_most(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(journal, "PAUSE", float("inf"))
    monkeypatch.setattr(status.Status, "write", lambda self, _: written.append(self.phase))
    fedmes.run(**SMALL, out=tmp_path)
    assert written == ["preparing", "training", "finished"]


def test_a_federation_that_has_grown_counts_all_its_clients(tmp_path):
    two = made.settled(made.triangle(0.5))
    three = made.settled(made.triangle(0.5, clients=3))
    told = journal.Journal(tmp_path, two)
    told.begin(Recorder(three), 0)
    rows = [row(0) | {"task": 0}, row(1) | {"task": 0}]
    now = told.round(replace(NOW, rows=rows), SimpleNamespace(sites=(), compile_seconds=0.0), [])
    assert "2 of 3 clients" in now.line
