"""Privacy budgets that add up: what composed noise promises, against published values, and how
often a plan uses a sample."""

import math

import mpmath
import numpy as np
import pytest

from fedmes import config
from fedmes.cli import render
from fedmes.common.gaussian_mechanism import delta_of, epsilon_of, noise_for
from fedmes.engines.ledger import Ledger
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.report import sections
from fedmes.results import run_dir, status
from helpers.engine_runs import prepared_with

TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 2, "epochs": 1, "batch": 8, "method": "local-er",
    "model.name": "linear", "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4,
    "data.image_size": 4, "memory.size": 4, "engine.name": "loop",
    "privacy.sample_clip": 1.0, "privacy.noise_multiplier": 2.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "count", "epsilon"),
    # dp-accounting 0.6.0, PLDAccountant, composed Gaussian mechanisms at delta 1e-5
    [(1.0, 1, 4.377178), (1.1, 60, 54.0458), (0.6, 25, 69.4570), (4.0, 100, 13.20671), (2.0, 7, 6.072396)],
)  # fmt: skip
def test_epsilon_is_that_of_the_privacy_loss_distribution(noise, count, epsilon):
    assert epsilon_of(count / noise**2, 1e-5) == pytest.approx(epsilon, rel=1e-5)


def test_unequal_noise_adds_up():
    """Four values under noise 1.5 and twenty under 3: dp-accounting's PLD says 9.997256."""
    assert epsilon_of(4 / 1.5**2 + 20 / 3.0**2, 1e-5) == pytest.approx(9.997256, rel=1e-5)


@pytest.mark.parametrize("rho", [0.01, 0.5, 8.0])
def test_zcdp_is_an_upper_bound(rho):
    """Bun and Steinke, 2016: rho-zCDP is (rho + 2 sqrt(rho ln(1/delta)), delta)-private, and a
    shift of sqrt(2 rho) is rho-zCDP."""
    bound = rho + 2 * math.sqrt(rho * math.log(1e5))
    assert 0.6 * bound < epsilon_of(2 * rho, 1e-5) < bound


@pytest.mark.parametrize("squared", [1e-4, 0.3, 50.0])
def test_epsilon_is_the_least_that_holds(squared):
    shift = math.sqrt(squared)
    epsilon = epsilon_of(squared, 1e-5)
    assert delta_of(epsilon, shift) <= 1e-5
    assert delta_of(epsilon * (1 - 1e-9), shift) > 1e-5
    with mpmath.workdps(50):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(shift)
        rest = mpmath.exp(e) * mpmath.ncdf(-s / 2 - e / s)
        exact = mpmath.ncdf(s / 2 - e / s) - rest
    assert float(exact) == pytest.approx(1e-5, rel=1e-6)


def test_epsilon_undoes_the_calibration_of_noise():
    assert epsilon_of(noise_for(3.0, 1e-6) ** -2, 1e-6) == pytest.approx(3.0, rel=1e-9)
    assert epsilon_of(0.0, 1e-5) == 0.0
    assert epsilon_of(1e-12, 1e-5) == 0.0  # a delta alone allows so much
    # beyond what numbers can say, it is too large and never too small
    assert delta_of(epsilon_of(2500.0, 1e-5), 50.0) <= 1e-5


# --- how often a sample is used -------------------------------------------------------------------


@pytest.mark.parametrize(("method", "per_step"), [("fedavg", 1), ("ditto", 2)])
def test_a_sample_is_used_once_an_epoch_and_gradient(method, per_step):
    noised = {"privacy.sample_clip": 1.0, "privacy.noise_multiplier": 2.0}
    prepared = prepared_with({"method": method, "epochs": 2} | noised)
    plan = prepared.federations[0].plans[3]
    ledger = Ledger(prepared.method, plan, sends=False)
    for g in range(6):
        ledger.train(plan.round(g))
    # 2 rounds of 2 epochs a task, and samples of all three tasks
    np.testing.assert_allclose(ledger.samples, 4 * per_step / 2.0**2)
    assert ledger.epsilon() == {"sample": epsilon_of(per_step, 1e-5)}


def test_a_sample_in_the_memory_is_used_in_every_task():
    """Counted from the plan's own tables: no sample is used more often than its entry says."""
    options = {"method": "local-er", "privacy.sample_clip": 1.0, "privacy.noise_multiplier": 1.0}
    prepared = prepared_with(options)
    plan = prepared.federations[0].plans[2]
    ledger = Ledger(prepared.method, plan, sends=False)
    uses = np.zeros(plan.count)
    for g in range(6):
        work = plan.round(g)
        ledger.train(work)
        for number in (*work.batch.flatten(), *work.memory.flatten()):
            uses[number] += number >= 0
    np.testing.assert_array_equal(ledger.samples, uses)
    assert uses.max() > 4  # more often than in its own task
    assert ledger.epsilon()["sample"] == epsilon_of(uses.max(), 1e-5)


def test_an_account_survives_its_file():
    prepared = prepare(config.load(None, TINY))
    plan = prepared.federations[0].plans[0]
    ledger = Ledger(prepared.method, plan, sends=True)
    ledger.train(plan.round(0))
    again = Ledger(prepared.method, plan, sends=True)
    again.restore(ledger.save())
    assert again.epsilon() == ledger.epsilon() and again.epsilon()["sample"] > 0


# --- a budget -------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_budget_ends_a_run_before_it_is_exceeded(tmp_path):
    """The third round would use samples of the memory for the third time or more."""
    free = runner.execute(prepare(config.load(None, TINY)), tmp_path / "free")
    spent = [float(row["epsilon_sample"]) for row in free.rounds if row["client"] == 0]
    assert spent == sorted(spent) and spent[1] < spent[2]
    budget = (spent[1] + spent[2]) / 2
    limited = prepare(config.load(None, TINY | {"privacy.budget": budget}))
    result = runner.execute(limited, tmp_path / "limited")
    assert [row["epsilon_sample"] for row in result.rounds if row["client"] == 0] == spent[:2]
    says = f"privacy.budget: {budget:g}, and another round would make it {spent[2]:.4g}"
    assert result.stopped == f"stopped early after round 2 of 4: {says}"
    assert result.stopped in result.notes
    stored = run_dir.load(tmp_path / "limited")
    assert stored.privacy == {
        "delta": 1e-5,
        "budget": budget,
        "epsilon": {"sample": [[spent[1], spent[1]]]},
    }
    about = status.read(tmp_path / "limited")
    assert (
        about.epsilon == {"sample": spent[1]} and f"epsilon {spent[1]:.3g} (sample)" in about.words
    )
    words = f"differential privacy: epsilon {spent[1]:.3g} for every sample, at delta 1e-05"
    assert words in map(str, render._footer(stored)) and words in sections._notes(stored, 0)
    # to resume it gains nothing
    again = runner.execute(limited, tmp_path / "limited", resume=True)
    assert again.stopped == result.stopped and len(again.rounds) == len(result.rounds)


@pytest.mark.slow
def test_an_account_goes_on_after_a_resume(tmp_path):
    whole = runner.execute(prepare(config.load(None, TINY)), tmp_path / "whole")
    prepared = prepare(config.load(None, TINY | {"checkpoint.every": "round"}))
    with pytest.raises(Exception, match="stopped after round 1"):
        runner.execute(prepared, tmp_path / "parts", stop=lambda: True)
    parts = runner.execute(prepared, tmp_path / "parts", resume=True)
    assert parts.privacy == whole.privacy
    np.testing.assert_array_equal(parts.acc, whole.acc)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"privacy.noise_multiplier": 1.0}, "noise_multiplier needs sample_clip"),
        ({"privacy.sample_clip": 1.0, "privacy.budget": 1.0}, "budget needs noise"),
    ],
)
def test_a_promise_without_noise_is_refused(options, says):
    with pytest.raises(UserError, match=says):
        config.load(None, options)


def test_a_budget_for_no_round_is_refused(tmp_path):
    with pytest.raises(UserError, match="there would not be a single round"):
        runner.execute(prepare(config.load(None, TINY | {"privacy.budget": 0.1})), tmp_path / "out")
