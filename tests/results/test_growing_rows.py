"""What grows with every round of a run is appended to a file that checkpoints refer to."""

import json

import pytest
import torch

import fedmes
from fedmes.results import checkpoint
from fedmes.results.growing_rows import FILE, GrowingRows

TENSORS = {"a": torch.ones(2)}


def saved(run, rows, count, growing=None):
    """The checkpoint after so many rows, one a round."""
    growing = growing or GrowingRows(run / "checkpoint", lambda n: rows[n:count])
    growing.rows_from = lambda n: rows[n:count]
    checkpoint.save(run, count, TENSORS, {"rounds_done": count}, growing)
    return growing


def test_each_round_writes_as_much_as_the_first(tmp_path):
    rows = [{"loss": 0.5, "client": 1}] * 40
    growing = None
    sizes = []
    for count in range(1, 41):
        growing = saved(tmp_path, rows, count, growing)
        about = tmp_path / f"checkpoint/round-{count:06d}.json"
        sizes.append((about.stat().st_size, (tmp_path / "checkpoint" / FILE).stat().st_size))
    line = len(json.dumps(rows[0])) + 1
    assert [size for _, size in sizes] == [line * count for count in range(1, 41)]
    assert max(size for size, _ in sizes) - sizes[0][0] <= 4  # digits of the numbers in it
    assert checkpoint.latest(tmp_path)[1] == {"rounds_done": 40, "rows": rows}


def test_rows_of_later_rounds_do_not_count(tmp_path):
    """As after a kill between the rows and the checkpoint, and after a full disk."""
    rows = [{"n": n} for n in range(9)]
    growing = saved(tmp_path, rows, 3)
    with (tmp_path / "checkpoint" / FILE).open("a") as file:
        file.write('{"n": 3}\n{"half')
    assert checkpoint.latest(tmp_path)[1]["rows"] == rows[:3]
    saved(tmp_path, rows, 4, growing)
    assert checkpoint.latest(tmp_path)[1]["rows"] == rows[:4]
    other = [*rows[:4], {"n": "another"}]
    saved(tmp_path, other, 5)  # of another process
    assert checkpoint.latest(tmp_path)[1]["rows"] == other


def test_of_two_generations_the_undamaged_one_is_used(tmp_path):
    rows = [{"n": n} for n in range(9)]
    growing = saved(tmp_path, rows, 3)
    saved(tmp_path, rows, 4, growing)
    path = tmp_path / "checkpoint" / FILE
    path.write_text(path.read_text().replace('"n": 3', '"n": 8'))
    with pytest.warns(RuntimeWarning, match="rows.jsonl does not fit"):
        assert checkpoint.latest(tmp_path)[1] == {"rounds_done": 3, "rows": rows[:3]}
    checkpoint.clear(tmp_path)
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.slow
def test_a_run_goes_on_from_a_checkpoint_with_all_rows_inside(tmp_path):
    """As earlier versions wrote it."""
    sizes = {"clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "memory": 4, "model": "linear"}
    want = fedmes.run(**sizes, out=tmp_path / "whole")
    stopped = tmp_path / "stopped"
    fedmes.run(**sizes, out=stopped, on_progress=lambda now: now.rounds_done == 2 and now.stop())
    tensors, about = checkpoint.latest(stopped)
    assert len(about["rows"]) == 4
    checkpoint.clear(stopped)
    checkpoint.save(stopped, 2, tensors, about)
    got = fedmes.resume(stopped)

    def learned(result):
        return [row | {"seconds": 0} for row in result.rounds]

    assert learned(got) == learned(want)
    assert len(checkpoint.latest(stopped)[1]["rows"]) == 8
