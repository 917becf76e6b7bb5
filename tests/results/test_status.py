"""`status.json`: what it says of runs that go on, that were killed, and of older ones."""

import json
import shutil
from pathlib import Path

import pytest

from fedmes.errors import UserError
from fedmes.results import checkpoint, status
from helpers import made

OLD = Path(__file__).parents[1] / "fixtures/run-0.1.0"


@pytest.fixture
def going(tmp_path):
    """A directory whose status says that it is being trained."""
    config = made.settled(made.triangle(0.5))
    status.of_config(config, status.now(), "training").write(tmp_path)
    return tmp_path


def test_a_run_goes_on_while_a_process_holds_its_lock(going):
    with checkpoint.locked(going):
        assert status.read(going).phase == "training"
        assert status.read(going).phase == "training"  # to look takes nothing from anybody
    assert status.read(going).phase == "interrupted"


def test_a_process_that_was_killed_after_the_result_had_finished(going):
    (going / "result.json").write_text("{}")
    assert status.read(going).phase == "finished"


def test_a_run_that_is_being_repeated(going):
    (going / "again").mkdir()
    shutil.move(going / "status.json", going / "again")
    with checkpoint.locked(going):
        assert status.read(going).phase == "training"


def test_a_run_without_the_file(tmp_path):
    made.write(tmp_path / "run", made.triangle(0.75, tasks=3))
    found = status.read(tmp_path / "run")
    assert (found.phase, found.task, found.accuracy) == ("finished", 3, 0.75)
    (tmp_path / "run/result.json").unlink()
    assert (status.read(tmp_path / "run").phase) == "interrupted"


def test_runs_of_an_older_version():
    assert status.read(OLD / "finished").phase == "finished"
    assert status.read(OLD / "stopped").phase == "interrupted"


def test_keys_of_later_versions_are_passed_over(going):
    content = json.loads((going / "status.json").read_text())
    (going / "status.json").write_text(json.dumps(content | {"weather": "fine"}))
    assert status.read(going).method == "fedavg"


@pytest.mark.parametrize("text", ["", "{", '{"phase": "training"}', '{"phase": 3}', "[" * 100_000])
def test_a_damaged_file(going, text):
    (going / "status.json").write_text(text)
    with pytest.raises(UserError, match=r"status.json: cannot be read \(.*\)$"):
        status.read(going)


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_a_directory_without_a_run(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=f"{name}: holds no run$"):
        status.read(tmp_path / name)
