"""From accuracies to the paper's numbers: the worked example, missing tasks, seeds, and reference
levels."""

import math

import numpy as np
import pytest

from fedmes.results.metrics import (
    accuracy_after,
    backward_transfer,
    forgetting_after,
    forward_transfer,
    learned_and_kept,
    summary,
)

NAN = math.nan


def table(*rows):
    """One client's accuracies, each row as long as the tasks so far, filled up with NaN."""
    full = np.full((len(rows), len(rows)), NAN)
    for t, row in enumerate(rows):
        full[t, : len(row)] = row
    return full


def example():
    """Two clients, three tasks, one seed."""
    one = table([0.9], [0.6, 0.8], [0.7, 0.5, 0.9])
    two = table([0.8], [0.8, 0.6], [0.4, 0.7, 1.0])
    return np.stack([one, two])[None]


def near(expected):
    return pytest.approx(expected, abs=1e-9, nan_ok=True)


# --- the worked example ---------------------------------------------------------------------------


def test_accuracy_after_each_task():
    """A[k][t]."""
    assert accuracy_after(example())[0].tolist() == [near([0.9, 0.7, 0.7]), near([0.8, 0.7, 0.7])]


def test_forgetting_after_each_task():
    """F[k][t]: 0 at first, the best so far minus the present, and negative parts count (task 2 of
    client 2)."""
    assert forgetting_after(example())[0].tolist() == [
        near([0.0, 0.3, 0.25]),
        near([0.0, 0.0, 0.15]),
    ]


def test_summary_of_the_example():
    """Every number of the table."""
    numbers = summary(example())
    assert numbers["acc_client"] == pytest.approx([0.766667, 0.733333], abs=5e-7)
    assert numbers["acc_task"] == near([0.85, 0.70, 0.70])
    assert numbers["acc_all"] == {"mean": near(0.75), "std": near(0.0)}
    assert numbers["acc_final"] == {"mean": near(0.70), "std": near(0.0)}
    assert numbers["fr_task"] == near([0.0, 0.15, 0.20])
    assert numbers["fr"] == {"mean": near(0.175), "std": near(0.0)}
    assert numbers["fr_final"] == {"mean": near(0.20), "std": near(0.0)}
    assert numbers["bwt"] == {"mean": near(-0.20), "std": near(0.0)}
    # with t = 1, not reported
    assert float(np.mean(forgetting_after(example()))) == pytest.approx(0.116667, abs=5e-7)


def test_backward_transfer():
    """Of each client's earlier tasks: accuracy at its own last task minus when just learned."""
    acc = np.full((1, 3, 3, 3), np.nan)
    acc[0, 0, 0, 0] = 0.9
    acc[0, 0, 1, :2] = 0.5, 0.8
    acc[0, 0, 2] = 0.6, 0.7, 1.0
    acc[0, 1, 0, 0] = 0.4
    acc[0, 1, 1, :2] = 0.7, 0.2  # its last task is the second
    acc[0, 2, 0, 0] = 0.5  # a single task transfers nothing
    assert backward_transfer(acc)[0, :2].tolist() == near([-0.2, 0.3])
    assert np.isnan(backward_transfer(acc)[0, 2])
    assert summary(acc)["bwt"]["mean"] == near(0.05)
    assert summary(acc[:, :, :1, :1])["bwt"] == {"mean": None, "std": None}


def test_forward_transfer():
    """Of each client's tasks but the first; one that was never met before does not count."""
    gained = np.full((2, 2, 3), np.nan)
    gained[0, 0] = np.nan, 0.2, -0.1
    gained[0, 1] = np.nan, 0.4, np.nan
    gained[1, 0] = np.nan, 0.1, 0.1
    assert forward_transfer(gained)[0].tolist() == near([0.05, 0.4])
    acc = np.zeros((2, 2, 3, 3))
    assert summary(acc, gained)["fwt"] == {"mean": near(0.1625), "std": near(0.0625)}
    assert summary(acc, gained[..., :1])["fwt"] == {"mean": None, "std": None}
    assert "fwt" not in summary(acc)


def test_learned_and_kept():
    """Accuracy right after learning, and at the end."""
    learned, kept = learned_and_kept(example())
    assert learned == near([0.85, 0.7, 0.95])
    assert kept == near([0.55, 0.6, 0.95])


def test_argument_is_not_modified():
    """Nothing changes the accuracies it is given."""
    acc = example()
    for function in (accuracy_after, forgetting_after, summary, learned_and_kept):
        function(acc)
        np.testing.assert_array_equal(acc, example())


def test_forgetting_may_be_negative():
    """An old task that improves is backward transfer."""
    f = forgetting_after(table([0.5], [0.9, 0.7])[None, None])
    assert f[0, 0].tolist() == near([0.0, -0.4])


def test_forgetting_is_measured_from_the_best_so_far():
    """The maximum runs over all earlier times, not only the time of learning."""
    f = forgetting_after(table([0.5], [0.9, 0.7], [0.6, 0.7, 0.8])[None, None])
    assert f[0, 0].tolist() == near([0.0, -0.4, (0.3 + 0.0) / 2])


# --- what is missing ------------------------------------------------------------------------------


def test_clients_with_different_numbers_of_tasks():
    """A client that has fewer tasks counts where it has any, and with its own last task."""
    short = np.full((3, 3), NAN)
    short[:2, :2] = table([0.8], [0.4, 0.6])
    acc = np.stack([example()[0, 0], short])[None]
    assert accuracy_after(acc)[0, 1].tolist() == near([0.8, 0.5, NAN])
    assert forgetting_after(acc)[0, 1].tolist() == near([0.0, 0.4, NAN])
    numbers = summary(acc)
    assert numbers["acc_task"] == near([0.85, 0.6, 0.7])
    assert numbers["fr_task"] == near([0.0, 0.35, 0.25])
    assert numbers["acc_client"] == near([2.3 / 3, 0.65])
    assert numbers["acc_all"]["mean"] == near((0.9 + 0.7 + 0.7 + 0.8 + 0.5) / 5)
    assert numbers["acc_final"]["mean"] == near((0.7 + 0.5) / 2)
    assert numbers["fr"]["mean"] == near((0.3 + 0.25 + 0.4) / 3)
    assert numbers["fr_final"]["mean"] == near((0.25 + 0.4) / 2)


def test_a_client_with_one_task_among_others():
    """It has an accuracy, but no forgetting, and does not spoil that of the others."""
    single = np.full((3, 3), NAN)
    single[0, 0] = 0.5
    numbers = summary(np.stack([example()[0, 0], single])[None])
    assert numbers["acc_all"]["mean"] == near((0.9 + 0.7 + 0.7 + 0.5) / 4)
    assert numbers["acc_final"]["mean"] == near((0.7 + 0.5) / 2)
    assert numbers["fr"]["mean"] == near(0.275)
    assert numbers["fr_final"]["mean"] == near(0.25)


def test_a_missed_task():
    """A task that a client never trained: its row and its column are missing, the rest is as if it
    were not there."""
    acc = example()[:, :1]
    acc[..., 1, :] = NAN
    acc[..., :, 1] = NAN
    assert accuracy_after(acc)[0, 0].tolist() == near([0.9, NAN, 0.8])
    assert forgetting_after(acc)[0, 0].tolist() == near([0.0, NAN, 0.2])
    numbers = summary(acc)
    assert numbers["acc_all"]["mean"] == near(0.85)
    assert numbers["acc_final"]["mean"] == near(0.8)
    assert numbers["fr"]["mean"] == near(0.2)
    assert numbers["fr_final"]["mean"] == near(0.2)
    assert numbers["acc_task"] == [near(0.9), None, near(0.8)]
    assert numbers["fr_task"] == [near(0.0), None, near(0.2)]


def test_a_missed_first_task():
    """Whoever misses the first task has nothing to forget until two others are learned."""
    acc = example()[:, :1]
    acc[..., 0, :] = NAN
    acc[..., :, 0] = NAN
    assert accuracy_after(acc)[0, 0].tolist() == near([NAN, 0.8, 0.7])
    assert forgetting_after(acc)[0, 0, 2] == near(0.3)
    numbers = summary(acc)
    assert numbers["acc_all"]["mean"] == near(0.75)
    assert numbers["fr"]["mean"] == near(0.3)


def test_a_missed_last_task():
    """The final numbers are those of the last task that was trained."""
    acc = example()[:, :1]
    acc[..., 2, :] = NAN
    acc[..., :, 2] = NAN
    numbers = summary(acc)
    assert numbers["acc_final"]["mean"] == near(0.7)
    assert numbers["fr_final"]["mean"] == near(0.3)
    assert learned_and_kept(acc) == (near([0.9, 0.8, NAN]), near([0.6, 0.8, NAN]))


def test_one_task_has_no_forgetting():
    """With a single task the rate of forgetting does not exist."""
    numbers = summary(np.array([[[[0.25]], [[0.75]]]]))
    assert numbers["acc_all"] == {"mean": near(0.5), "std": near(0.0)}
    assert numbers["acc_final"]["mean"] == near(0.5)
    assert numbers["fr"] == {"mean": None, "std": None}
    assert numbers["fr_final"] == {"mean": None, "std": None}
    assert numbers["fr_task"] == [0.0]
    assert numbers["acc_client"] == near([0.25, 0.75])


# --- seeds and reference levels -------------------------------------------------------------------


def test_population_deviation_over_seeds():
    """Mean and population standard deviation of the seeds' own numbers."""
    first = example()
    acc = np.concatenate([first, first - 0.3, first - 0.3])
    numbers = summary(acc)
    assert numbers["acc_all"]["mean"] == near(0.75 - 0.2)
    assert numbers["acc_all"]["std"] == near(math.sqrt(0.3**2 * 2 / 9))
    assert numbers["acc_final"]["std"] == near(math.sqrt(0.3**2 * 2 / 9))
    assert numbers["fr"] == {"mean": near(0.175), "std": near(0.0)}
    assert numbers["acc_task"] == near([0.65, 0.5, 0.5])


@pytest.mark.parametrize(("tasks", "level"), [(10, 0.29290), (11, 0.27453), (40, 0.10696)])
def test_total_forgetting(tasks, level):
    """Nothing kept: Acc_ALL = a0 * H_T / T and FR = a0."""
    a0 = 0.8
    lower = np.tril(np.ones((tasks, tasks), bool))
    acc = np.where(lower, a0 * np.eye(tasks), NAN)[None, None]
    numbers = summary(acc)
    assert numbers["acc_all"]["mean"] == pytest.approx(level * a0, abs=5e-6)
    assert numbers["acc_all"]["mean"] == near(a0 * sum(1 / t for t in range(1, tasks + 1)) / tasks)
    # Every old task has fallen from a0 to 0.
    assert numbers["fr"]["mean"] == near(a0)
    assert numbers["fr_final"]["mean"] == near(a0)


def test_no_forgetting():
    """Everything kept: a0 and 0."""
    acc = np.where(np.tril(np.ones((10, 10), bool)), 0.8, NAN)[None, None]
    numbers = summary(acc)
    assert numbers["acc_all"]["mean"] == near(0.8)
    assert numbers["fr"]["mean"] == near(0.0)
