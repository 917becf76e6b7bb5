"""How a benchmark's images are partitioned over clients."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from fedmes import config
from fedmes.common import keyed_random
from fedmes.config.data_options import StreamOptions
from fedmes.errors import UserError
from fedmes.scenario.benchmarks import open_benchmark
from fedmes.scenario.partition import Partitioner, in_short
from fedmes.scenario.population import Population
from helpers.small_streams import made, per_class, source, stream, tasks_of


def split_of(holders, frac, images=10, **options):
    """Two classes of `images` training images each, in one block, held by all clients."""
    train, test = np.repeat([0, 1], images), np.repeat([0, 1], 3)
    chosen = StreamOptions(frac=frac, classes_min=2, classes_max=2, **options)
    return Partitioner(train, test, chosen, 3, clients=holders, tasks=1, rounds=1).by_task([(0, 1)])


def test_frac_as_a_share_of_a_class():
    labels = source("digits").dataset.y[: source("digits").dataset.train_count]
    pools = per_class(np.arange(len(labels)), labels)
    split = open_benchmark(
        config.load(None, {"benchmark": "split-digits", "stream.frac": 0.1})
    ).stream(0)
    for _, task in tasks_of(split):
        assert per_class(task.train, labels) == {c: round(0.1 * pools[c]) for c in task.classes}


def test_frac_as_a_number_of_images():
    labels = np.repeat(np.arange(15), 40)
    for _, task in tasks_of(made(stream__frac=7)):
        assert per_class(task.train, labels) == dict.fromkeys(task.classes, 7)


def test_frac_one_is_the_whole_class_and_a_large_number_is_clipped_to_it():
    labels = np.repeat(np.arange(15), 40)
    for frac in (1.0, 1000):
        for _, task in tasks_of(made(stream__frac=frac)):
            assert task.train.tolist() == np.flatnonzero(np.isin(labels, task.classes)).tolist()


def test_a_tiny_frac_gives_one_image():
    assert all(
        len(task.train) == len(task.classes) for _, task in tasks_of(made(stream__frac=0.001))
    )


def test_frac_holders_uses_every_image_once():
    split, labels = made(stream__frac="holders"), np.repeat(np.arange(15), 40)
    held_classes = {c for _, task in tasks_of(split) for c in task.classes}
    rows = np.concatenate([task.train for _, task in tasks_of(split)])
    assert sorted(rows.tolist()) == np.flatnonzero(np.isin(labels, list(held_classes))).tolist()
    for label in held_classes:
        shares = [
            int((labels[task.train] == label).sum())
            for _, task in tasks_of(split)
            if label in task.classes
        ]
        assert max(shares) - min(shares) <= 1
    assert split.notes == ()


def test_holders_who_outnumber_the_images_get_one_each():
    split = split_of(holders=5, frac="holders", images=3)
    assert all(len(task.train) == 2 for _, task in tasks_of(split))
    assert {row for _, task in tasks_of(split) for row in task.train.tolist()} == set(range(6))
    assert [n for n in split.notes if n.startswith("class")] == [
        f"class {c}: 2 of 5 clients hold images that others hold too" for c in (0, 1)
    ]


def test_overlap_begins_when_the_pool_is_used_up():
    """Ten images, four for each: clients 0 and 1 have their own, client 2 shares two, client 3
    shares all."""
    split = split_of(holders=4, frac=0.4)
    rows = [[r for r in client.tasks[0].train.tolist() if r < 10] for client in split.clients]
    assert [len(set(own)) for own in rows] == [4, 4, 4, 4]
    assert not set(rows[0]) & set(rows[1])
    assert len(set(rows[2]) - set(rows[0]) - set(rows[1])) == 2
    assert set(rows[0]) | set(rows[1]) | set(rows[2]) == set(range(10))
    assert [n for n in split.notes if n.startswith("class")] == [
        f"class {c}: 2 of 4 clients hold images that others hold too" for c in (0, 1)
    ]


def test_a_result_has_one_note_on_all_classes_with_overlaps():
    """Of two seeds; a split has a note for each class."""
    split = split_of(holders=4, frac=0.4)
    by_class = [note for note in split.notes if note.startswith("class")]
    assert len(by_class) == 2
    both = [*split.notes, *split.notes, "another"]
    assert in_short(both) == [
        *sorted({"another", *split.notes} - set(by_class)),
        "of 2 classes, some clients hold images that others hold too (split.json has how many)",
    ]
    assert in_short(by_class[:1])[0].startswith("of class 0, some clients hold images")
    assert in_short(["b", "a", "b"]) == ["a", "b"]


def test_no_overlap_where_the_pool_is_just_enough():
    split = split_of(holders=5, frac=0.2)
    rows = [row for _, task in tasks_of(split) for row in task.train.tolist()]
    assert sorted(rows) == list(range(20))
    assert not any(note.startswith("class") for note in split.notes)


def test_cap_keeps_a_part_of_what_a_client_has():
    whole, capped = made(stream__frac=10), made(stream__frac=10, stream__cap=25)
    sizes = [
        (len(a.train), len(b.train))
        for (_, a), (_, b) in zip(tasks_of(whole), tasks_of(capped), strict=True)
    ]
    assert all(after == min(before, 25) for before, after in sizes)
    assert {before for before, _ in sizes} >= {20, 50}
    for (_, a), (_, b) in zip(tasks_of(whole), tasks_of(capped), strict=True):
        assert set(b.train.tolist()) <= set(a.train.tolist())
        assert len(set(b.train.tolist())) == len(b.train)
        assert b.test.tolist() == a.test.tolist()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("shares", ["even", "dirichlet:0.1"])
def test_cap_keeps_every_class_in_proportion(seed, shares):
    """Also a class with one image among classes with many: none gets a further one while another is
    behind."""
    labels = np.repeat(np.arange(4), [300, 100, 40, 6])

    def tasks(cap):
        options = StreamOptions(
            frac="holders", cap=cap, classes_min=4, classes_max=4, partition=shares
        )
        made = Partitioner(labels, np.arange(4), options, seed, clients=6, tasks=1, rounds=1)
        return [task for _, task in tasks_of(made.by_task([(0, 1, 2, 3)]))]

    for cap in (4, 5, 12, 40):
        for before, after in zip(tasks(None), tasks(cap), strict=True):
            had, has = per_class(before.train, labels), per_class(after.train, labels)
            assert set(after.train.tolist()) <= set(before.train.tolist())
            assert (sorted(has), sum(has.values())) == ([0, 1, 2, 3], min(cap, sum(had.values())))
            for a, b in itertools.product(has, has):
                assert has[b] == had[b] or (has[a] - 1) / had[a] <= has[b] / had[b]


def test_a_cap_that_bites_nowhere_changes_nothing():
    assert made(stream__frac=10, stream__cap=1000).to_bytes() == made(stream__frac=10).to_bytes()


def test_a_cap_below_the_number_of_classes():
    with pytest.raises(
        UserError, match=r"stream\.cap=1: task \d of client \d has \d classes and needs as many"
    ):
        made(stream__frac=10, stream__cap=1)


def test_test_frac_keeps_the_same_part_of_a_class_for_everybody():
    whole, part = made(), made(stream__test_frac=0.25)
    labels = np.concatenate([np.repeat(np.arange(15), 40), np.repeat(np.arange(15), 10)])
    kept = {}
    for (_, a), (_, b) in zip(tasks_of(whole), tasks_of(part), strict=True):
        assert set(b.test.tolist()) <= set(a.test.tolist())
        assert b.train.tolist() == a.train.tolist()
        # a quarter of ten, rounded up
        assert per_class(b.test, labels) == dict.fromkeys(b.classes, 3)
        for label in b.classes:
            rows = b.test[labels[b.test] == label].tolist()
            assert kept.setdefault(label, rows) == rows


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("seed", [0, 7])
def test_fewer_tasks_are_the_first_of_the_same_order_with_the_same_shares(tasks, seed):
    options = {"benchmark": "split-digits", "tasks": tasks, "stream.frac": 0.3, "stream.cap": 50}
    whole = open_benchmark(config.load(None, options | {"tasks": 5})).stream(seed)
    short = open_benchmark(config.load(None, options)).stream(seed)
    cut = tuple(dataclasses.replace(client, tasks=client.tasks[:tasks]) for client in whole.clients)
    expected = dataclasses.replace(
        whole, clients=cut, position=whole.position[: 5 * tasks], active=whole.active[: 5 * tasks]
    )
    assert short.to_bytes() == expected.to_bytes()
    assert short.classes == 10
    assert short.tasks == tasks


def test_more_tasks_than_the_benchmark_has():
    with pytest.raises(UserError, match="split-digits has 5 tasks, 6 were asked for"):
        open_benchmark(config.load(None, {"benchmark": "split-digits", "tasks": 6}))


def test_method_model_and_training_options_do_not_change_the_split():
    other = config.load(
        None, {"method": "fedavg", "model": "linear", "epochs": 1, "batch": 3, "memory": 7}
    )
    assert open_benchmark(other).stream(0).to_bytes() == stream("digits").to_bytes()


@pytest.mark.parametrize("frac", ["holders", 0.1, 8])
def test_dirichlet_shares_are_disjoint_unequal_and_as_many_in_all(frac):
    even = split_of(6, frac, images=400)
    total = sum(len(c.tasks[0].train) for c in even.clients)
    spread = {}
    for alpha in ("0.3", "100"):
        made = split_of(6, frac, images=400, partition=f"dirichlet:{alpha}")
        rows = np.concatenate([c.tasks[0].train for c in made.clients])
        assert len(np.unique(rows)) == len(rows) == total
        sizes = [
            sorted(per_class(c.tasks[0].train, np.repeat([0, 1], 400)).values())
            for c in made.clients
        ]
        assert all(len(size) == 2 and size[0] >= 1 for size in sizes)
        spread[alpha] = np.std([count for size in sizes for count in size])
    assert spread["0.3"] > 2 * spread["100"]


@pytest.mark.slow
def test_dirichlet_draws_have_the_right_moments():
    for shape in (0.3, 1.0, 4.0):
        drawn = np.array([keyed_random.gamma(shape, "moments", i) for i in range(4000)])
        assert drawn.mean() == pytest.approx(shape, rel=0.08)
        assert drawn.var() == pytest.approx(shape, rel=0.2)


def test_fewer_images_than_holders_are_shared():
    made = split_of(5, "holders", images=3, partition="dirichlet:0.5")
    assert all(len(c.tasks[0].train) == 2 for c in made.clients)


# --- more clients than can be listed --------------------------------------------------------------


def drawn(clients, frac, images=400, count=100, **options):
    """The first clients' numbers of images of each of two classes, [client, class]."""
    made = split_of(clients, frac, images, **options)
    assert isinstance(made.clients, Population)
    labels = np.repeat([0, 1], images)
    found = np.array([np.bincount(labels[c.tasks[0].train]) for c in made.clients[:count]])
    assert found.min() >= 1 and found.sum(axis=1).max() <= made.clients.size.samples
    return found


def test_of_very_many_each_has_the_share_of_one_of_them():
    """Equal shares as if clients took turns; those of a Dirichlet distribution have its mean and
    variance, up to the largest that are cut."""
    assert (drawn(5000, 8) == 8).all()
    assert (drawn(100_000, "holders") == 1).all()  # too few for all of them
    assert (drawn(1200, "holders", images=3700) == 3).all()
    skewed = drawn(5000, 20, partition="dirichlet:2", count=400) / 20
    assert skewed.mean() == pytest.approx(1, rel=0.05)
    assert skewed.var() == pytest.approx(1 / 2, rel=0.15)
    cut = drawn(5000, 2, partition="dirichlet:0.01", count=400)
    assert cut.max() == 40 and np.median(cut) == 1


def test_a_client_of_very_many_is_the_same_whoever_else_there_is():
    for frac, clients in ((8, (1500, 100_000)), ("holders", (50_000, 100_000))):
        few, many = (split_of(n, frac, 400, partition="dirichlet:0.5").clients for n in clients)
        for k in (0, 7, 1499):
            np.testing.assert_array_equal(few[k].tasks[0].train, many[k].tasks[0].train)


def test_very_many_can_share_one_order():
    train, test = np.repeat(np.arange(6), 9), np.repeat(np.arange(6), 2)
    blocks = [(0, 1), (2, 3), (4, 5)]
    for order, kinds in (("shared", 1), ("own", 6)):
        options = StreamOptions(frac="holders", classes_min=2, classes_max=2, order=order)
        made = Partitioner(train, test, options, 3, clients=1500, tasks=3, rounds=1).by_task(blocks)
        found = {tuple(task.name for task in client.tasks) for client in made.clients[:60]}
        assert len(found) == kinds
