"""A run as a loop over its rounds."""

import numpy as np
import pytest

import fedmes
from helpers.tiny_runs import TINY
from helpers.waiting import until


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return fedmes.run(out=tmp_path_factory.mktemp("stream") / "whole", **TINY)


def test_every_round_is_a_step_and_the_result_is_that_of_a_run(whole, tmp_path):
    steps = fedmes.stream(out=tmp_path, **TINY)
    seen = []
    for step in steps:
        seen.append((step.task, step.round, bool(step.scores)))
        step.keep(square=step.rounds_done**2)
    assert seen == [(1, 1, False), (1, 2, True), (2, 1, False), (2, 2, True)]
    np.testing.assert_array_equal(steps.result.acc, whole.acc)
    assert [row["square"] for row in steps.result.own_metrics] == [1, 4, 9, 16]
    assert next(steps, None) is None


def test_a_loop_that_is_left_ends_the_run_there(whole, tmp_path):
    steps = fedmes.stream(out=tmp_path, **TINY)
    for step in steps:
        if step.rounds_done == 2:
            break
    assert not (tmp_path / "result.json").exists()  # it waits
    early = steps.result
    assert early.stopped == "stopped early after round 2 of 4: the loop was left"
    np.testing.assert_array_equal(early.acc[:, :, 0], whole.acc[:, :, 0])
    np.testing.assert_array_equal(fedmes.resume(tmp_path).acc, whole.acc)


def test_a_loop_that_nobody_has_any_more_ends_its_run(tmp_path):
    for step in fedmes.stream(out=tmp_path, bar=False, **TINY):
        if step.rounds_done == 2:
            break
    until((tmp_path / "result.json").exists, "the run ends")
    assert fedmes.load(tmp_path).stopped.endswith("after round 2 of 4: the loop was left")


def test_an_error_is_raised_in_the_loop():
    steps = fedmes.stream(metod="fedavg")
    with pytest.raises(fedmes.UserError, match="did you mean 'method'"):
        next(steps)
    with pytest.raises(fedmes.UserError, match="did you mean 'method'"):
        _ = steps.result
