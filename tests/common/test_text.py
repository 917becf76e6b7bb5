"""Names and numbers as people read them."""

import math

import pytest

from fedmes.common.text import cell, natural, printable, three


def test_names_sort_by_their_numbers():
    names = ["task10", "task2", "10", "9b", "task", "b1c10", "b1c9"]
    assert sorted(names, key=natural) == ["9b", "10", "b1c9", "b1c10", "task", "task2", "task10"]


def test_decimals_are_one_number_only_where_asked_for():
    names = ["v0.25", "v0.5"]
    assert sorted(names, key=natural) == ["v0.5", "v0.25"]
    assert sorted(names, key=lambda name: natural(name, decimals=True)) == ["v0.25", "v0.5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.12345, "0.123"), (-0.0001, "0.000"), (-0.5, "-0.500"), (None, "-"), (math.nan, "-")],
)
def test_a_number_has_three_decimals(value, text):
    assert three(value) == text


def test_what_controls_a_terminal_is_replaced():
    assert printable("a\x1b[31mb\nc") == "a?[31mb?c"


@pytest.mark.parametrize(("value", "shown"), [("=1+1", "'=1+1"), ("a=1", "a=1"), (-1, -1)])
def test_a_formula_is_marked_as_text(value, shown):
    assert cell(value) == shown
