"""Results that draw themselves, become a frame and show themselves in a notebook."""

import sys

import numpy as np
import pytest

import fedmes
from fedmes.api.result import _accuracies

TINY = {"clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "stream": {"frac": 3}, "memory": 4}
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown")
    return fedmes.compare(["fedavg", "fedmes"], out=folder, model={"name": "linear"}, **TINY)


@pytest.mark.parametrize(
    ("what", "choices"),
    [("tasks", {}), ("clients", {"score": "masked"}), ("matrix", {"client": 1}), ("rounds", {})],
)
def test_a_result_draws_itself(results, what, choices):
    figure = results["fedmes"].plot(what, **choices)
    assert figure._repr_png_().startswith(PNG)


def test_a_comparison_draws_all_methods(results):
    figure = results.plot()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == ["fedavg", "fedmes"]


def test_what_cannot_be_drawn(results):
    with pytest.raises(fedmes.UserError, match="unknown plot 'tsks'; did you mean 'tasks'"):
        results.plot("tsks")
    with pytest.raises(fedmes.UserError, match="measured nothing that 'vote' could show"):
        results["fedavg"].plot("vote")
    with pytest.raises(fedmes.UserError, match="a matrix is of one method"):
        results.plot("matrix")
    with pytest.raises(fedmes.UserError, match="client=9; there are 2, counted from 0"):
        results["fedavg"].plot("matrix", client=9)
    with pytest.raises(fedmes.UserError, match="seed=-1; there are 1, counted from 0"):
        results["fedavg"].plot("matrix", seed=-1)


def test_a_report_of_a_list_of_results(results, tmp_path):
    one, other = results.values()
    several = fedmes.report([one, other.directory], out=tmp_path / "list.html")
    fedmes.report(one, other, out=tmp_path / "two.html")
    assert several.page.read_bytes() == (tmp_path / "two.html").read_bytes()
    with pytest.raises(fedmes.UserError, match="report: of which runs"):
        fedmes.report([])


def test_a_notebook_shows_a_table_with_the_best_in_bold(results):
    page = results._repr_html_()
    best = max(result.metrics["oblivious"]["acc_all"]["mean"] for result in results.values())
    assert f"<td><b>{best:.3f}</b></td>" in page
    assert page.count("<tr>") == 2 + 3  # two rows of heads; FedMeS with and without its vote
    one = results["fedavg"]
    assert f"<td>{one.metrics['masked']['fr']['mean']:.3f}</td>" in one._repr_html_()
    assert repr(results) == f"{one!r}\n{results['fedmes']!r}"


def test_rows_of_the_frame_are_the_accuracies(results):
    result = results["fedmes"]
    rows = _accuracies(result)
    assert len(rows) == 2 * 3 and list(rows[0]) == [
        "seed", "client", "after", "task", "oblivious", "masked", "oblivious_nolip", "masked_nolip",
    ]  # fmt: skip
    last = rows[-1]
    assert (last["client"], last["after"], last["task"]) == (1, 1, 1)
    assert last["masked_nolip"] == result.accuracy["acc_masked_nolip"][0, 1, 1, 1]


def test_frames_of_pandas(results):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = results.to_frame()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 2 * 6
    own = frame[frame.method == "fedavg"]
    assert own.oblivious.mean() == pytest.approx(np.nanmean(results["fedavg"].acc), abs=1e-12)
    assert list(results["fedavg"].to_frame("rounds").client) == [0, 1, 0, 1]
    with pytest.raises(fedmes.UserError, match="unknown frame 'round'"):
        results["fedavg"].to_frame("round")


def test_without_pandas_a_frame_is_refused(results, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fedmes.UserError, match="pip install pandas"):
        results["fedavg"].to_frame()
