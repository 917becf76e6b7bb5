"""Who wins, in plain words."""

import made
from fedmes.report import verdict
from fedmes.report.gather import Run
from reported import report_on, runs_of


def test_a_lead_larger_than_the_spread_wins():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.6]), ("fedmes", [0.8, 0.8]), ("ditto", [0.4, 0.4])), "oblivious")
    assert (found.kind, found.leaders) == ("wins", ("fedmes",))
    assert found.headline == "fedmes wins, 0.250 ahead of fedavg"
    assert "0.800" in found.text and "between +0.200 and +0.300" in found.text and "0.050" in found.text
    assert "the lead is larger than the spread over seeds" in found.text


def test_methods_are_compared_seed_by_seed():
    """Both vary by 0.2 over seeds, but their difference does not."""
    found = verdict.judge(runs_of(("fedavg", [0.3, 0.7]), ("fedmes", [0.35, 0.75])), "oblivious")
    assert found.kind == "wins"


def test_a_lead_within_the_spread_leaves_the_order_open():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.7]), ("fedmes", [0.7, 0.6])), "oblivious")
    assert (found.kind, found.leaders) == ("open", ("fedmes",))
    assert "not larger than the spread over seeds" in found.text
    assert "within the spread" in found.headline


def test_a_lead_that_prints_like_the_spread_does_not_win():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.5]), ("fedmes", [0.5001, 0.5023])), "oblivious")
    assert found.kind == "open"  # 0.0012 and 0.0011: both print as 0.001


def test_of_one_seed_nothing_is_said_about_spread():
    found = verdict.judge(runs_of(("fedavg", [0.5]), ("fedmes", [0.8])), "oblivious")
    assert found.kind == "one seed"
    assert "nothing can be said about the spread" in found.text
    assert "wins" not in found.headline


def test_equal_in_all_printed_digits_is_a_tie():
    given = ("fedavg", [0.8, 0.8]), ("fedmes", [0.8001, 0.8003]), ("ditto", [0.2, 0.2])
    found = verdict.judge(runs_of(*given), "oblivious")
    assert (found.kind, found.leaders) == ("tie", ("fedmes", "fedavg"))
    assert "0.800" in found.headline


def test_one_result_has_nothing_to_be_compared_with():
    found = verdict.judge(runs_of(("fedmes", [0.8, 0.9])), "oblivious")
    assert found.kind == "single"
    assert "nothing else to compare" in found.text


def test_a_run_without_accuracy_is_named_and_not_ranked():
    nothing = float("nan")
    found = verdict.judge(runs_of(("fedavg", [nothing, nothing]), ("fedmes", [0.8, 0.9])), "oblivious")
    assert (found.kind, found.leaders) == ("single", ("fedmes",))
    assert found.notes == ("No accuracy was measured for fedavg.",)
    assert verdict.judge(runs_of(("fedavg", [nothing, nothing])), "masked").kind == "none"


def test_a_seed_without_accuracy_is_left_out_of_the_spread():
    found = verdict.judge(runs_of(("fedavg", [0.5, float("nan")]), ("fedmes", [0.8, 0.7])), "oblivious")
    assert found.kind == "one seed"


def test_what_keeps_all_data_is_a_reference_and_does_not_win():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.6]), ("joint", [0.9, 0.9])), "oblivious")
    assert (found.kind, found.leaders) == ("single", ("fedavg",))
    assert found.notes[0].startswith("joint reaches 0.900 but keeps all data")
    everything = Run.of(made.result(made.triangle([0.9]), method="knn-per", **{"knnper.store": "all"}))
    assert everything.keeps_all_data
    assert not Run.of(made.result(made.triangle([0.9]), method="knn-per")).keeps_all_data


def test_oblivious_and_masked_are_judged_each_for_itself(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5, 0.5], 2), masked=made.triangle([0.9, 0.9], 2), method="fedavg")
    made.write(tmp_path / "b", made.triangle([0.6, 0.6], 2), masked=made.triangle([0.8, 0.8], 2), method="fedmes")
    page = report_on(tmp_path, tmp_path)
    assert page.one("h1")["text"] == "fedmes wins, 0.100 ahead of fedavg"
    texts = [each["text"] for each in page.all("p")]
    assert any(text.startswith("With the task id given, fedavg reaches") for text in texts)
