"""The order of tasks by their names."""

import pytest

from fedmes.data.task_order import in_order


@pytest.mark.parametrize(
    "names",
    [
        ["Jan", "Feb", "Mar"],
        ["2024-December", "January 2025", "feb_2025"],
        ["2024-11", "2024-12", "2025-01"],
        ["task2", "task10"],
        ["line", "may"],  # not every one is a month
        ["April", "Jan 2025"],  # a year here and none there says nothing
        ["a-jan", "b-feb", "a-jun"],
    ],
)
def test_order(names):
    for given in (names, names[::-1]):
        assert in_order(given) == names
