"""Who wins, in plain words."""

import numpy as np
import pytest

from fedmes.report import verdict
from fedmes.report.collect import Run
from fedmes.results import metrics
from helpers import made
from helpers.reported import report_on, runs_of


def test_a_lead_that_is_more_than_chance_wins():
    """Differences .24, .25 and .26: .25 with a standard error of .01 / sqrt(3), times 4.303."""
    given = ("fedavg", [0.5, 0.6, 0.5]), ("fedmes", [0.74, 0.85, 0.76]), ("ditto", [0.4, 0.4, 0.4])
    found = verdict.compare_runs(runs_of(*given), "oblivious")
    assert (found.kind, found.leaders) == ("wins", ("fedmes",))
    assert found.headline == "fedmes wins, 0.250 ahead of fedavg"
    assert "0.783" in found.text and "ahead in 3 of 3 seeds" in found.text
    assert found.text.endswith(
        "the 95 % interval of the mean difference is +0.225 to +0.275 (paired t): more than chance."
    )


def test_two_seeds_rarely_tell():
    """Ahead in both, by .2 and .3: with one degree of freedom that is little."""
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, 0.6]), ("fedmes", [0.8, 0.8])), "oblivious"
    )
    assert (found.kind, found.headline) == (
        "open",
        "fedmes is 0.250 ahead of fedavg, in 2 of 2 seeds",
    )
    assert "is -0.385 to +0.885 (paired t), so the order of the two is open." in found.text


def test_methods_are_compared_seed_by_seed():
    """Both vary by 0.2 over seeds, but their difference does not."""
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.3, 0.7]), ("fedmes", [0.35, 0.75])), "oblivious"
    )
    assert found.kind == "wins"


def test_a_lead_that_may_be_chance_leaves_the_order_open():
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, 0.7]), ("fedmes", [0.7, 0.6])), "oblivious"
    )
    assert (found.kind, found.leaders) == ("open", ("fedmes",))
    assert found.headline == "fedmes is 0.050 ahead of fedavg, in 1 of 2 seeds"
    assert "the order of the two is open" in found.text


def test_an_interval_that_prints_as_reaching_zero_does_not_win():
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, 0.5]), ("fedmes", [0.5009, 0.5011])), "oblivious"
    )
    assert found.kind == "open"  # 0.001 less 12.7 x 0.0001 is below zero
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, 0.5]), ("fedmes", [0.50099, 0.50101])), "oblivious"
    )
    assert found.kind == "wins"


def test_of_one_seed_nothing_is_said_about_chance():
    found = verdict.compare_runs(runs_of(("fedavg", [0.5]), ("fedmes", [0.8])), "oblivious")
    assert found.kind == "one seed"
    assert "nothing can be said about chance" in found.text
    assert found.headline == "fedmes is 0.300 ahead of fedavg, on one seed"


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_of_two_equal_methods_one_wins_in_five_of_a_hundred_comparisons(seeds):
    """Differences as of two methods that are equal: none is ahead but by chance."""
    by_seed = np.random.RandomState(seeds).randn(100_000, seeds)
    low, high = metrics.paired_interval(by_seed)
    assert ((low > 0) | (high < 0)).mean() == pytest.approx(0.05, abs=0.003)  # four standard errors
    some = by_seed[:400]
    duels = [verdict.Duel.of(one, np.zeros(seeds)) for one in some] + [
        verdict.Duel.of(-one, 0 * one) for one in some
    ]
    assert sum(duel.wins for duel in duels) == ((low > 5e-4) | (high < -5e-4))[:400].sum()


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.706204736), (2, 4.302652730), (3, 3.182446305), (4, 2.776445105), (5, 2.570581836), (9, 2.262157163),
        (10, 2.228138852), (19, 2.093024054), (30, 2.042272456), (100, 1.983971519), (1000, 1.962339081),
    ],
)  # fmt: skip
def test_the_quantiles_of_students_t(freedom, quantile):
    assert metrics.t_quantile(freedom) == pytest.approx(quantile, abs=1e-8)
    assert metrics.t_quantile(freedom, 0.5) < metrics.t_quantile(freedom, 0.9) < quantile


def test_a_worked_interval():
    """1, 2, 3 and 6: mean 3, standard deviation sqrt(14/3), three degrees of freedom."""
    low, high = metrics.paired_interval(np.array([1.0, 2.0, 3.0, 6.0]))
    reach = 3.182446305 * (14 / 3) ** 0.5 / 2
    assert (float(low), float(high)) == pytest.approx((3 - reach, 3 + reach), abs=1e-6)


def test_the_words_for_two_runs():
    high, low, mixed = (
        np.array([0.8, 0.81, 0.8]),
        np.array([0.5, 0.51, 0.5]),
        np.array([0.79, 0.8, 0.85]),
    )
    assert verdict.standing(high, low, "accuracy") == "wins in accuracy"
    assert verdict.standing(low, high, "accuracy") == "loses in accuracy"
    assert verdict.standing(mixed, high, "accuracy") == "is ahead in accuracy in 1 of 3 seeds"
    assert verdict.standing(high, mixed, "accuracy") == "is behind in accuracy in 1 of 3 seeds"
    assert verdict.standing(high[:1], low[:1], "forgetting") == "is ahead in forgetting on one seed"


def test_equal_in_all_printed_digits_is_a_tie():
    given = ("fedavg", [0.8, 0.8]), ("fedmes", [0.8001, 0.8003]), ("ditto", [0.2, 0.2])
    found = verdict.compare_runs(runs_of(*given), "oblivious")
    assert (found.kind, found.leaders) == ("tie", ("fedmes", "fedavg"))
    assert "0.800" in found.headline


def test_one_result_has_nothing_to_be_compared_with():
    found = verdict.compare_runs(runs_of(("fedmes", [0.8, 0.9])), "oblivious")
    assert found.kind == "single"
    assert "nothing else to compare" in found.text


def test_a_run_without_accuracy_is_named_and_not_ranked():
    nothing = float("nan")
    found = verdict.compare_runs(
        runs_of(("fedavg", [nothing, nothing]), ("fedmes", [0.8, 0.9])), "oblivious"
    )
    assert (found.kind, found.leaders) == ("single", ("fedmes",))
    assert found.notes == ("No accuracy was measured for fedavg.",)
    assert verdict.compare_runs(runs_of(("fedavg", [nothing, nothing])), "masked").kind == "none"


def test_a_seed_without_accuracy_is_left_out_of_the_spread():
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, float("nan")]), ("fedmes", [0.8, 0.7])), "oblivious"
    )
    assert found.kind == "one seed"


def test_what_keeps_all_data_is_a_reference_and_does_not_win():
    found = verdict.compare_runs(
        runs_of(("fedavg", [0.5, 0.6]), ("joint", [0.9, 0.9])), "oblivious"
    )
    assert (found.kind, found.leaders) == ("single", ("fedavg",))
    assert found.notes[0].startswith("joint reaches 0.900 but keeps all data")
    everything = Run.of(
        made.result(made.triangle([0.9]), method="knn-per", **{"knnper.store": "all"})
    )
    assert everything.keeps_all_data
    assert not Run.of(made.result(made.triangle([0.9]), method="knn-per")).keeps_all_data


def test_oblivious_and_masked_have_a_verdict_each(tmp_path):
    made.write(
        tmp_path / "a",
        made.triangle([0.5, 0.5], 2),
        masked=made.triangle([0.9, 0.9], 2),
        method="fedavg",
    )
    made.write(
        tmp_path / "b",
        made.triangle([0.6, 0.6], 2),
        masked=made.triangle([0.8, 0.8], 2),
        method="fedmes",
    )
    page = report_on(tmp_path, tmp_path)
    assert page.one("h1")["text"] == "fedmes wins, 0.100 ahead of fedavg"
    texts = [each["text"] for each in page.all("p")]
    assert any(text.startswith("With the task id given, fedavg reaches") for text in texts)
