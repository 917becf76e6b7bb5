"""The notebooks of `examples/`, each executed from its first cell to its last in a real kernel."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("five-sites", "forgetting", "own-method")


def executed(name, folder):
    notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
    NotebookClient(notebook, timeout=None, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def shown(notebook):
    """What each cell shows at its end, by kind."""
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        found += [each["data"] for each in outputs if each["output_type"] == "execute_result"]
    return found


def printed(notebook):
    streams = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        streams += [each["text"] for each in outputs if each["output_type"] == "stream"]
    return "".join(streams)


def test_every_notebook_is_executed_and_lies_there_without_output():
    assert tuple(sorted(path.stem for path in EXAMPLES.glob("*.ipynb"))) == NAMES
    for name in NAMES:
        notebook = nbformat.read(EXAMPLES / f"{name}.ipynb", as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)


@pytest.mark.slow
def test_forgetting(tmp_path):
    notebook = executed("forgetting", tmp_path)
    matrix, table, curves, transfer = shown(notebook)
    assert "image/png" in matrix and "image/png" in curves
    assert "<td>fedmes</td>" in table["text/html"]
    backward = eval(transfer["text/plain"])
    assert backward["fedavg"] < backward["fedmes"] < 0  # the lesson
    assert "task 3/3, round 3/3, accuracy so far" in printed(notebook)


@pytest.mark.slow
def test_own_method(tmp_path):
    table, report, clients = shown(executed("own-method", tmp_path))
    assert "<td>Replay (own)</td>" in table["text/html"] and "image/png" in clients
    assert 'href="report.html"' in report["text/html"]
    assert "Replay (own) &" in (tmp_path / "table.tex").read_text()


@pytest.mark.slow
def test_five_sites(tmp_path):
    notebook = executed("five-sites", tmp_path)
    result, clients, f1, berlin, answers = shown(notebook)
    assert "own data" in result["text/html"] and "image/png" in clients
    assert set(eval(f1["text/plain"])) == {"bolt", "nut", "washer", "pin", "gear", "spring"}
    assert "<td>berlin</td>" in berlin["text/html"]
    assert answers["text/plain"].startswith("<4 predictions of client berlin: ")
    assert float(printed(notebook).rsplit("right: ", 1)[1]) > 0.7
