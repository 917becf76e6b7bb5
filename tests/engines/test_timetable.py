"""Clients of unequal length on a fixed number of slots."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmes.engines.stacked import timetable

counts = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=3)


@settings(deadline=None, derandomize=True)
@given(counts, st.integers(1, 6))
def test_every_client_makes_its_steps_in_order_and_in_one_place_at_a_time(rows, width):
    clients = max(map(len, rows))
    steps = np.array([row + [0] * (clients - len(row)) for row in rows])
    table = timetable.make(steps, width)
    assert table.length == timetable.length_for(steps, width)
    for s, k in np.ndindex(steps.shape):
        when, where = np.nonzero(table.client[:, s] == k)
        assert len(when) == len(set(when.tolist())) == steps[s, k]  # never in two slots at once
        assert table.own_step[when, s, where].tolist() == list(range(steps[s, k]))


@settings(deadline=None, derandomize=True)
@given(counts, st.integers(1, 6))
def test_changes_bring_every_client_and_take_it_away_again(rows, width):
    clients = max(map(len, rows))
    steps = np.array([row + [0] * (clients - len(row)) for row in rows])
    table = timetable.make(steps, width)
    here = np.full(table.client.shape[1:], -1)
    changes = {step: (comes, goes) for step, comes, goes in table.changes()}
    for step in range(table.length + 1):
        comes, goes = changes.get(step, ([], []))
        for seed, slot, client in goes:
            assert here[seed, slot] == client
            here[seed, slot] = -1
        for seed, slot, client in comes:
            assert here[seed, slot] == -1
            here[seed, slot] = client
        np.testing.assert_array_equal(
            here, table.client[step] if step < table.length else np.full_like(here, -1)
        )


def test_no_slot_is_wasted():
    """Three to seven batches: 20 steps fit on three slots of seven with one place left; padding
    would take 28."""
    table = timetable.make([[7, 5, 5, 3]], 3)
    assert table.length == 7
    assert (table.client >= 0).sum() == 20
    # laid end to end, client 2 begins where two places are left: its first three steps come early
    # in the next slot
    when, where = np.nonzero(table.client[:, 0] == 2)
    assert list(zip(when.tolist(), where.tolist(), strict=True)) == [
        (0, 2),
        (1, 2),
        (2, 2),
        (5, 1),
        (6, 1),
    ]


def test_fewer_slots_take_longer():
    assert timetable.length_for(np.array([[4, 4, 4, 4]]), 4) == 4
    assert timetable.length_for(np.array([[4, 4, 4, 4]]), 2) == 8
    assert timetable.length_for(np.array([[4, 4, 4, 4]]), 1) == 16


def test_width_balances_idle_slots_and_overhead():
    equal = np.full((1, 1, 10), 5)
    assert timetable.width_for(equal, 100) == 10
    assert timetable.width_for(equal, 4) == 4
    assert timetable.width_for(np.array([[[10, 5, 5]]]), 100) == 2
    # three slots cost 34 steps x 6, four 29 x 7: a fourth is not worth its memory
    assert timetable.width_for(np.array([[[12, 14, 29, 24, 21]]]), 100) == 3


def test_lanes_share_the_work():
    shared = timetable.share_out(np.array([[7, 5, 4, 3, 3]]), 2)
    assert shared.sum(axis=0).tolist() == [[7, 5, 4, 3, 3]]
    assert sorted(shared.sum(axis=(1, 2)).tolist()) == [10, 12]
    assert ((shared > 0).sum(axis=0) <= 1).all()
