"""Bytes on the wire: how they are counted, what every method sends in a whole run, and how long
that takes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

import fedmes
from fedmes import config
from fedmes.engines import wire
from fedmes.engines.base import RoundRow
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare
from fedmes.experiment.recorder import Recorder
from fedmes.methods import METHODS
from fedmes.methods.fedmes import FedMeS
from fedmes.methods.fedrep import FedRep
from fedmes.methods.fedweit import FedWeIT
from fedmes.models import networks
from fedmes.models.functional import Net

# --- counting -------------------------------------------------------------------------------------


def marked(count, *shape):
    """A mask whose first `count` places are set."""
    mask = torch.zeros(shape, dtype=torch.bool).flatten()
    mask[:count] = True
    return mask.reshape(shape)


@pytest.mark.parametrize(
    ("tensor", "mask", "expected"),
    [
        (torch.zeros(3, 4), None, 48),
        (torch.zeros(3, 4, dtype=torch.float64), None, 96),
        (torch.zeros(5, dtype=torch.int64), None, 40),
        (torch.zeros(()), None, 4),
        # channels: their values, and a bit for each channel
        (torch.zeros(4, 3), marked(2, 4, 1), 2 * 12 + 1),
        (torch.zeros(8, 2, 3, 3), marked(3, 8, 1, 1, 1), 3 * 72 + 1),
        (torch.zeros(9, 2, 3, 3), marked(3, 9, 1, 1, 1), 3 * 72 + 2),
        (torch.zeros(17, 2, dtype=torch.float64), marked(16, 17, 1), 16 * 16 + 3),
        (torch.zeros(4, 3), marked(0, 4, 1), 1),
        # values: each with an index of four bytes, until all of them with a bit each are shorter
        (torch.zeros(3, 4), marked(0, 3, 4), 0),
        (torch.zeros(3, 4), marked(1, 3, 4), 8),
        (torch.zeros(3, 4), marked(6, 3, 4), 48),
        (torch.zeros(3, 4), marked(7, 3, 4), 48 + 2),
        (torch.zeros(3, 4), marked(12, 3, 4), 48 + 2),
        (torch.zeros(3, 4, dtype=torch.float64), marked(7, 3, 4), 84),
        (torch.zeros(3, 4, dtype=torch.float64), marked(9, 3, 4), 96 + 2),
    ],
)
def test_sizes(tensor, mask, expected):
    entries = {"a": tensor} | ({} if mask is None else {"a#mask": mask})
    assert int(wire.size(entries)) == expected
    others = {"b": torch.zeros(7), "c": torch.zeros(2, 2), "c#mask": marked(1, 2, 2)}
    assert int(wire.size(entries | others)) == expected + 28 + 8
    assert int(wire.size(others | entries)) == expected + 28 + 8


def test_nothing_takes_no_bytes():
    assert int(wire.size({})) == 0


@some.composite
def dictionaries(draw):
    """Entries with zero to two leading axes: dense ones, some with a mask a channel, some with one
    a value."""
    leading = tuple(draw(some.lists(some.integers(1, 3), max_size=2)))
    generator = torch.Generator().manual_seed(draw(some.integers(0, 10**6)))
    entries = {}
    for i in range(draw(some.integers(0, 4))):
        channels, rest = (
            draw(some.integers(1, 20)),
            draw(some.sampled_from([(2,), (3, 2, 2), (5,)])),
        )
        kind = draw(some.sampled_from([torch.float32, torch.float64]))
        entries[f"e{i}"] = torch.zeros(*leading, channels, *rest, dtype=kind)
        masked = draw(some.sampled_from(["no", "channels", "values"]))
        if masked != "no":
            inner = (channels, *(rest if masked == "values" else (1 for _ in rest)))
            noise = torch.rand(*leading, *inner, generator=generator)
            entries[f"e{i}#mask"] = noise < draw(some.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]))
    return leading, entries


@settings(derandomize=True, deadline=None, max_examples=150)
@given(dictionaries())
def test_leading_axes_are_a_loop(case):
    """All replicas at once, or one after the other; and never more than without masks, but for
    their bits."""
    leading, entries = case
    together = wire.size(entries, len(leading)).expand(leading)
    for place in np.ndindex(leading):
        alone = {name: t[place] for name, t in entries.items()}
        assert int(together[place]) == int(wire.size(alone))
        dense = {name: t for name, t in alone.items() if not name.endswith("#mask")}
        bits = sum(-(-m.numel() // 8) for n, m in alone.items() if n.endswith("#mask"))
        plain = sum(t.numel() * t.element_size() for t in dense.values())
        assert int(wire.size(dense)) == plain
        assert int(together[place]) <= plain + bits


# --- whole runs -----------------------------------------------------------------------------------

# 4x4 images of one channel, ten classes, two hidden layers of eight: by hand
PIXELS, WIDTH, CLASSES = 16, 8, 10
LAYERS = {"body.0.weight": WIDTH * PIXELS, "body.3.weight": WIDTH * WIDTH}
BODY = sum(LAYERS.values()) + 2 * WIDTH
P = BODY + WIDTH * CLASSES + CLASSES
CLIENTS, TASKS, ROUNDS = 3, 2, 2
SMALL = {
    "benchmark": "synthetic", "clients": CLIENTS, "tasks": TASKS, "rounds": ROUNDS, "epochs": 1, "batch": 10,
    "memory": 6, "model": "mlp", "model.width": WIDTH, "data.image_size": 4, "synthetic.train": 20, "synthetic.test": 2,
    "stream.frac": 6, "optim.name": "sgd", "optim.lr": 0.05, "fedweit.l1": 0.04, "device": "cpu",
    "output.models": "none",
}  # fmt: skip

ONE_WAY = dict.fromkeys(METHODS, 4 * P) | {
    "fedrep": 4 * BODY,
    # and by class: samples, features and, for CCVR, their squares
    "fedproto": 4 * (P + CLASSES + CLASSES * WIDTH),
    "ccvr": 4 * (P + CLASSES + 2 * CLASSES * WIDTH),
    "local": 0,
    "local-er": 0,
    "joint": 0,
}
# RegMean: how many samples, and for each layer a triangle of products of its inputs
UP_ALONE = 4 * (1 + sum(inputs * (inputs + 1) // 2 for inputs in (PIXELS, WIDTH, WIDTH)))
for name in ("fedweit", "fedstats", "lfedcon2"):  # below
    del ONE_WAY[name]


def fedstats_by_hand():
    """Up, once per task: samples by class, their features, and a triangle of products, in float32;
    a bit each says whether they are there. Down: the same sums in float64."""
    values = CLASSES + CLASSES * WIDTH + WIDTH * (WIDTH + 1) // 2
    up = (3 + 4 * values, 3)
    return {(k, t, r): (up[r], 8 * values) for k, t, r in np.ndindex(CLIENTS, TASKS, ROUNDS)}


def lfedcon2_by_hand():
    """Up: a classifier, its classes, a number of it and, for everyone in the pool, how many samples
    it got right. Down: those in the pool, a bit for each place and
    tensor, and for each place its classes, its owner and the number. Nobody at first; then each
    client's as a candidate and as a member; and with the second task, new ones of all clients."""
    places = 10 + CLIENTS
    up = 4 * P + CLASSES + 8 + 8 * places
    about = 6 * 2 + places * (CLASSES + 8 + 8)
    pool = {(0, 0): 0, (0, 1): CLIENTS, (1, 0): CLIENTS, (1, 1): 2 * CLIENTS}
    moments = np.ndindex(CLIENTS, TASKS, ROUNDS)
    return {(k, t, r): (up, 4 * P * pool[t, r] + about) for k, t, r in moments}


def fedweit_engine(options):
    prepared = prepare(config.load(None, SMALL | {"method": "fedweit"} | options))
    return LoopEngine(prepared.method, prepared.federations, prepared.samples)


def fedweit_by_hand():
    """(up, down) by (client, task, round), from the parameters, the options and how many parts
    exceed lam1.

    Up, in each round: of every layer all channels but floor(.3 c) + 1, and a bit a channel; in a
    task's last round also the parts above lam1. Down, in each round: the base; in a task's first
    round also all parts that are there by then.
    """
    engine = fedweit_engine({})
    expected, parts, sizes = {}, dict.fromkeys(LAYERS, 0), set()

    def sparse(nonzero, whole):
        dense = 4 * whole + whole // 8  # and a bit each
        sizes.add(8 * nonzero < dense)
        return min(8 * nonzero, dense)

    for g in range(TASKS * ROUNDS):
        known = dict(parts)
        engine.round(g)
        for k, state in enumerate(engine.clients[0]):
            kept = WIDTH - (3 * WIDTH // 10 + 1)
            up = sum(4 * size // WIDTH * kept + 1 for size in LAYERS.values())
            down = sum(4 * size for size in LAYERS.values())
            if g % ROUNDS == 0:
                down += sum(sparse(known[name], CLIENTS * size) for name, size in LAYERS.items())
            for name, size in LAYERS.items() if g % ROUNDS == ROUNDS - 1 else ():
                count = np.count_nonzero(np.abs(state[f"w.A.{name}"].numpy()) > np.float32(0.04))
                parts[name] = count + (parts[name] if k > 0 else 0)
                up += sparse(count, size)
            expected[k, g // ROUNDS, g % ROUNDS] = up, down
    assert sizes == {True, False}  # here a list of values is shorter, there a whole layer
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", METHODS)
def test_property_11_bytes_of_a_whole_run(method, engine, tmp_path):
    """Section 4: four bytes a parameter that is sent, both ways, in every round, for every client;
    in float32."""
    if method == "fedweit":
        expected = fedweit_by_hand()
    elif method == "fedstats":
        expected = fedstats_by_hand()
    elif method == "lfedcon2":
        expected = lfedcon2_by_hand()
    else:
        moments = np.ndindex(CLIENTS, TASKS, ROUNDS)
        up = ONE_WAY[method] + (UP_ALONE if method == "regmean" else 0)
        expected = dict.fromkeys(moments, (up, ONE_WAY[method]))
    result = fedmes.run(**SMALL, method=method, engine=engine, out=tmp_path / "out")
    assert result.parameters == P and result.config.engine.name == engine
    met = {
        (row["client"], row["task"], row["round"]): (row["up_bytes"], row["down_bytes"])
        for row in result.rounds
    }
    assert met == expected
    assert result.communication == {
        "up_bytes": sum(up for up, _ in expected.values()),
        "down_bytes": sum(down for _, down in expected.values()),
    }
    slowest = [
        max(sum(expected[k, t, r]) for k in range(CLIENTS)) for t, r in np.ndindex(TASKS, ROUNDS)
    ]
    assert result.seconds["communication_modelled"] == pytest.approx(
        sum(slowest) * 8 / 40e6, rel=1e-12
    )


def test_all_earlier_parts_come_down():
    """kb=all_previous: the base that a task's first round brings has the parts of every task so
    far."""
    engine = fedweit_engine(
        {"tasks": 3, "rounds": 1, "fedweit.kb": "all_previous", "fedweit.l1": 0.06}
    )
    parts = dict.fromkeys(LAYERS, 0)
    for g in range(3):
        assert all(8 * parts[name] < 4 * 3 * CLIENTS * size for name, size in LAYERS.items())
        down = sum(4 * size + 8 * parts[name] for name, size in LAYERS.items())
        assert [row.down_bytes for row in engine.round(g)] == [down] * CLIENTS
        for name in LAYERS:
            now = sum(int((state[f"w.A.{name}"].abs() > 0.06).sum()) for state in engine.clients[0])
            assert now > 0
            parts[name] += now


# --- the time it takes (section 11) ---------------------------------------------------------------


def made(kind, model, shape, classes, **options):
    """A method with a network of this size, and its configuration."""
    given = {"method": kind.__name__.lower(), "clients": 10, "tasks": 10, "rounds": 10}
    conf = config.load(None, given | {"optim.name": "sgd"} | options)
    return kind(
        Net(networks.build(networks.MODELS[model], model, shape, classes, 0), shape, classes), conf
    ), conf


def sizes(method):
    """Bytes up and down in a round, of the method's own upload and broadcast."""
    params = method.net.initial
    state = method.init(
        params, SimpleNamespace(seen=torch.ones(1), blocks=torch.ones(1, 1, dtype=torch.bool))
    )
    down, first = method.sent_down(method.server(params))
    assert first == {}
    return int(wire.size(method.upload(state, None))), int(wire.size(down))


def modelled(conf, rounds):
    """Seconds of communication, for the rows of each round."""
    recorder = Recorder(conf)
    for rows in rounds:
        recorder.record(rows, [])
    return recorder._communication_seconds()


def row(client=0, position=0, index=0, up=0, down=0, seed=0):
    return RoundRow(seed, client, position, index, {}, up, down, 0.0)


CIFAR, EMNIST = (3, 32, 32), (1, 28, 28)


@pytest.mark.parametrize(
    ("kind", "model", "shape", "classes", "one_way", "per_round", "megabytes", "per_task"),
    [
        (FedMeS, "cnn6", CIFAR, 100, 9_950_736, 3.980, 199.01, 39.80),
        (FedRep, "cnn6", CIFAR, 100, 9_540_736, 3.816, 190.81, 38.16),
        (FedMeS, "cnn6", CIFAR, 550, 11_795_736, 4.718, 235.91, 47.18),
        (FedMeS, "cnn2", EMNIST, 60, 6_756_080, 2.702, 135.12, 27.02),
    ],
    ids=["FedMeS cnn6", "FedRep cnn6", "cnn6 C=550", "cnn2"],
)
def test_property_11_the_table_of_times(
    kind, model, shape, classes, one_way, per_round, megabytes, per_task
):
    """Bytes one way, seconds a round, and for ten rounds of a task; ten clients take as long as
    one."""
    method, conf = made(kind, model, shape, classes)
    assert sizes(method) == (one_way, one_way)
    rounds = [[row(k, 0, r, one_way, one_way) for k in range(10)] for r in range(10)]
    assert modelled(conf, rounds[:1]) == pytest.approx(per_round, abs=5e-4)
    assert modelled(conf, rounds) == pytest.approx(per_task, abs=5e-3)
    mine = [rows[3] for rows in rounds]
    assert sum(r.up_bytes + r.down_bytes for r in mine) / 1e6 == pytest.approx(megabytes, abs=5e-3)


@pytest.mark.parametrize(
    ("clients", "density", "up", "down", "seconds"),
    [
        (10, 0.05, 67.70, 104.88, 34.52),
        (10, 0.10, 68.65, 114.42, 36.61),
        (10, 1.00, 76.28, 190.70, 53.40),
        (20, 0.10, 68.65, 133.49, 40.43),
    ],
)
def test_property_11_the_table_of_fedweit(clients, density, up, down, seconds):
    """cnn6, ten rounds. The table says .7 of the base goes up; with whole channels it is a little
    less. It has no bits beside parts that are dense."""
    method, conf = made(FedWeIT, "cnn6", CIFAR, 100, clients=clients)
    base = {name: method.net.initial[name] for name in method.layers}
    assert sum(p.numel() for p in base.values()) == 2_383_712
    assert sum(len(p) for p in base.values()) == 1_472
    server, state = {}, {}
    for name, p in base.items():
        part = torch.zeros(p.numel())
        part[: round(density * p.numel())] = 1
        state |= {
            f"w.B.{name}": p,
            f"w.A.{name}": part.reshape(p.shape),
            f"w.m.{name}": torch.arange(len(p)) + 1.0,
        }
        server |= {f"w.{name}": p, f"kb.{name}": part.reshape(p.shape).expand(1, clients, *p.shape)}
    each, first = (int(wire.size(entries)) for entries in method.sent_down(server))
    plain, last = (
        int(wire.size(method.upload(state, SimpleNamespace(last=torch.tensor(x)))))
        for x in (False, True)
    )
    rows = [row(0, 0, r, last if r == 9 else plain, each + (r == 0) * first) for r in range(10)]
    assert each == 4 * 2_383_712
    bits = sum(p.numel() // 8 for p in base.values()) if density == 1 else 0
    assert (sum(r.down_bytes for r in rows) - clients * bits) / 1e6 == pytest.approx(down, abs=6e-3)
    kept = sum(
        4 * p[0].numel() * (len(p) - 3 * len(p) // 10 - 1) + len(p) // 8 for p in base.values()
    )
    assert plain == kept
    assert 0.99 * up < (sum(r.up_bytes for r in rows) - bits) / 1e6 < up
    assert (
        0.995 * seconds
        < modelled(conf, [[r] for r in rows]) - (clients + 1) * bits * 8 / 40e6
        < seconds
    )


def test_half_the_bandwidth_is_twice_the_time():
    rounds = [[row(0, 0, 0, 1_000_000, 3_000_000)]]
    times = [modelled(config.load(None, {"comm.mbps": mbps}), rounds) for mbps in (20, 40, 80)]
    assert times == pytest.approx([1.6, 0.8, 0.4], rel=1e-12)
    assert modelled(config.load(None, {}), rounds) == times[1]


def test_a_round_takes_as_long_as_its_slowest_client():
    """Links work side by side, down and up one after the other, rounds too; other seeds are other
    runs."""
    conf = config.load(None, {"comm.mbps": 8.0})  # a megabyte a second
    rounds = [
        [
            row(0, 0, 0, up=1_000_000, down=4_000_000),
            # the longest way up, but not the longest in all
            row(1, 0, 0, up=3_000_000, down=1_000_000),
        ],
        [row(0, 0, 1, up=2_000_000)],
        [row(1, 1, 0, down=500_000), row(1, 1, 0, down=99_000_000, seed=1)],
    ]
    assert modelled(conf, rounds) == pytest.approx(5 + 2 + 0.5, rel=1e-12)
    assert modelled(conf, []) == 0
