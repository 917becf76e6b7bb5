"""Clients that come and go by a table."""

import math

import numpy as np
import pytest

import fedmes
from fedmes import config
from fedmes.experiment.prepare import prepare
from helpers.engine_runs import assert_equal_runs

SMALL = {
    "benchmark": "synthetic", "clients": 4, "tasks": 2, "rounds": 3, "epochs": 1, "model": "linear",
    "synthetic.train": 20, "synthetic.test": 2, "stream.frac": 4,
}  # fmt: skip


def stream_of(path, text, **options):
    path.write_text(text)
    asked = SMALL | {"stream.availability": str(path)} | options
    return prepare(config.load(None, asked)).federations[0].stream


def test_who_is_there_takes_part(tmp_path):
    """Two spans of client 1, the last round of client 3; the others are always there."""
    text = "client,from_round,to_round\n1,0,1\n1,4,99\n3,5,5\n"
    there = stream_of(tmp_path / "a.csv", text).takes_part
    expected = np.ones((6, 4), bool)
    expected[2:4, 1] = False
    expected[:5, 3] = False
    np.testing.assert_array_equal(there, expected)
    drawn = stream_of(tmp_path / "a.csv", text, **{"server.cohort": 2}).takes_part
    assert (drawn.sum(axis=1) == 2).all() and not (drawn & ~expected).any()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,from_round\n1,0\n", "has no column to_round"),
        ("client,from_round,to_round\n1,3,2\n", "line 2: rounds 3 to 2"),
        ("client,from_round,to_round\n1,0,x\n", "line 2: rounds 0 to x"),
        ("client,from_round,to_round\n9,0,1\n", "names client 9"),
        ("\0", "has no column client|is no CSV file"),
        ("client,from_round,to_round,speed\n1,0,1,0\n", "line 2: speed 0 of client 1 must be"),
        ("client,from_round,to_round,speed\n1,0,1,fast\n", "speed fast of client 1 must be"),
        ("client,from_round,to_round,speed\n1,0,1,.5\n1,3,4,1\n", "line 3: speed 1 of client 1"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, text, said):
    with pytest.raises(fedmes.UserError, match=said):
        stream_of(tmp_path / "a.csv", text)


def test_a_slow_client_makes_a_part_of_its_steps(tmp_path):
    """The first ones of the same round; the loop and the stacked engine agree."""
    place = tmp_path / "a.csv"
    place.write_text("client,from_round,to_round,speed\n1,0,9,0.4\n2,0,9,\n3,0,9,0.01\n")
    small = {
        "rounds": 1,
        "epochs": 2,
        "batch": 3,
        "method": "fedmes",
        "engine.precision": "float64",
        "memory": 3,
    }
    asked = config.load(None, SMALL | small | {"stream.availability": str(place)})
    slow = prepare(asked)
    swift = prepare(asked.with_({"stream.availability": None}))
    for k, part in enumerate((1, 0.4, 1, 0.0)):
        mine, whole = (prepared.federations[0].plans[k] for prepared in (slow, swift))
        steps = max(1, math.ceil(part * whole.steps(1)))
        assert mine.steps(1) == steps <= mine.most_steps
        for name in ("batch", "memory", "epoch", "key"):
            found, expected = (getattr(plan.round(1), name) for plan in (mine, whole))
            np.testing.assert_array_equal(found, expected[:steps])
    assert_equal_runs(slow)


def test_a_table_that_is_not_there_or_leaves_nobody(tmp_path):
    with pytest.raises(fedmes.UserError, match="cannot be read"):
        prepare(config.load(None, SMALL | {"stream.availability": str(tmp_path / "none.csv")}))
    rows = "".join(f"{k},50,60\n" for k in range(4))
    with pytest.raises(fedmes.UserError, match="leaves nobody"):
        stream_of(tmp_path / "a.csv", f"client,from_round,to_round\n{rows}")


def test_another_table_is_another_run(tmp_path):
    options = {key: value for key, value in SMALL.items() if "." not in key}
    place = tmp_path / "a.csv"
    place.write_text("client,from_round,to_round\n1,0,1\n")
    asked = options | {"stream": {"availability": str(place)}, "out": tmp_path / "out"}
    first = fedmes.run(**asked)
    assert len([row for row in first.rounds if row["client"] == 1]) == 2
    place.write_text("client,from_round,to_round\n1,0,2\n")
    with pytest.raises(fedmes.UserError, match=r"availability .* has changed"):
        fedmes.run(**asked)
