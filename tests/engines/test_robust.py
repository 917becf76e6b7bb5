"""Robust averages, number by number, and simulated attackers in all engines alike."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.func import vmap

from fedmes import config
from fedmes.config.options import Config
from fedmes.engines import robust
from fedmes.engines.loop import LoopEngine
from fedmes.engines.robust import Votes
from fedmes.engines.server import Update, aggregate_round, tampered
from fedmes.errors import UserError
from fedmes.experiment.resolve import DataFacts, resolve
from fedmes.methods.fedavg import FedAvg
from fedmes.results import run_dir
from fedmes.scenario.plan import next_class
from helpers.engine_runs import assert_equal_runs, prepared_with

RULES = ("clip", "median", "trimmed-mean", "multi-krum", "geometric-median")
ZERO = [0.0, 0.0]


def averaged(rule, updates, clients=None, server=ZERO, samples=None, **options):
    """The mean that a FedAvg server takes of some clients' weights."""
    prepared = prepared_with({"method": "fedavg", "server.robust": rule} | options)
    method = FedAvg(prepared.method.net, prepared.config)
    sent = {}
    for k, values in updates.items():
        sent[k] = Update({"w.a": torch.tensor(values)}, (samples or {}).get(k, 1))
    state = {"w.a": torch.tensor(server)}
    number = clients or max(updates) + 1
    new, left_out = aggregate_round(method, state, sent, number, {"w.a": torch.zeros(2)})
    assert left_out == {}
    return new["w.a"].tolist()


@pytest.mark.parametrize("rule", RULES)
def test_few_or_equal_updates(rule):
    lone = [0.1, -0.7]
    assert averaged(rule, {0: lone}) == torch.tensor(lone).tolist()
    assert averaged(rule, {3: lone}, clients=5, server=[1.0, 1.0]) == torch.tensor(lone).tolist()
    equal = {k: [0.5, 0.25] for k in range(4)}
    assert averaged(rule, equal) == [0.5, 0.25]
    assert averaged(rule, {0: [2.0, 0.0], 1: [0.0, 2.0]}) == pytest.approx([1.0, 1.0], abs=1e-6)
    assert averaged(rule, {}, clients=3, server=[3.0, 4.0]) == [3.0, 4.0]


def test_clipping_to_the_median_norm():
    updates = {0: [3.0, 4.0], 1: [0.0, 5.0], 2: [-60.0, -80.0]}
    assert averaged("clip", updates) == pytest.approx([0.0, 5 / 3], abs=1e-6)
    # of two, the shorter norm is the limit
    assert averaged("clip", {0: [3.0, 4.0], 1: [0.0, -50.0]}) == [1.5, -0.5]
    # what was received is where updates begin
    moved = {k: [1.0 + x, 1.0 + y] for k, (x, y) in updates.items()}
    expected = [1.0, 1 + 5 / 3]
    assert averaged("clip", moved, server=[1.0, 1.0]) == pytest.approx(expected, abs=1e-6)
    # an update of zero does not make the others small
    idle = {0: ZERO, 1: ZERO, 2: ZERO, 3: [3.0, 4.0]}
    moved = {k: [8.0 + x, y] for k, (x, y) in idle.items()}
    assert averaged("clip", moved, server=[8.0, 0.0]) == [8.75, 1.0]


def test_what_is_within_the_median_norm_stays_to_the_last_bit():
    uploads = {"w.a": torch.randn(5, 300)}
    server = {"w.a": torch.randn(300)}
    near = robust.clipped(server, uploads, torch.ones(5, dtype=torch.bool))["w.a"]
    norm = (uploads["w.a"] - server["w.a"]).norm(dim=1)
    same = (near == uploads["w.a"]).all(1)
    assert same.tolist() == (norm <= norm.median()).tolist()
    after = (near - server["w.a"]).norm(dim=1)
    torch.testing.assert_close(after, norm.clamp(max=float(norm.median())))


def test_clipping_of_what_is_sent_in_part():
    """Values that are not sent move nothing; what only the server keeps is left alone."""
    server = {"w.a": torch.tensor([1.0, 1.0])}
    uploads = {
        "w.a": torch.tensor([[0.0, 4.0], [0.0, 31.0], [3.0, 0.0]]),
        "w.a#mask": torch.tensor([[False, True], [False, True], [True, False]]),
        "A.a": torch.tensor([[9.0], [99.0], [999.0]]),
    }
    near = robust.clipped(server, uploads, torch.ones(3, dtype=torch.bool))
    assert near["w.a"].tolist() == [[0.0, 4.0], [0.0, 4.0], [3.0, 0.0]]
    assert near["A.a"] is uploads["A.a"]


def test_a_claim_of_many_samples_is_worth_the_median():
    updates = {0: [1.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 1.0]}
    claims = {0: 10, 1: 20, 2: 10**9}
    plain = averaged("none", updates, samples=claims)
    assert plain == pytest.approx([0.0, 1.0], abs=1e-6)
    assert averaged("clip", updates, samples=claims) == pytest.approx([0.6, 0.4], abs=1e-6)


@pytest.mark.parametrize("rule", RULES[1:])
def test_a_client_without_samples_has_no_say(rule):
    updates = {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [7.0, 7.0]}
    assert averaged(rule, updates, samples={2: 0}) == [1.0, 1.0]


def test_the_median_of_every_weight():
    updates = {0: [1.0, 8.0], 1: [2.0, 6.0], 2: [90.0, -70.0]}
    assert averaged("median", updates, clients=7) == [2.0, 6.0]
    assert averaged("median", updates | {3: [4.0, 7.0]}) == [3.0, 6.5]


def test_the_trimmed_mean():
    values = [-50.0, 1.0, 2.0, 3.0, 90.0]
    updates = {k: [x, -x] for k, x in enumerate(values)}
    assert averaged("trimmed-mean", updates) == [2.0, -2.0]  # 0.3 of five: one at each end
    assert averaged("trimmed-mean", updates, **{"server.dishonest": 0.4}) == [2.0, -2.0]
    assert averaged("trimmed-mean", {0: [1.0, 0.0], 1: [2.0, 0.0], 2: [9.0, 3.0]}) == [4.0, 1.0]


def test_multi_krum_leaves_out_who_is_far_from_the_others():
    updates = {k: [float(k), 0.0] for k in range(4)} | {4: [0.0, 90.0]}
    assert averaged("multi-krum", updates, clients=6) == [1.5, 0.0]
    ten = {k: [float(k), 0.0] for k in range(7)} | {k: [5.0 * k, 80.0] for k in (7, 8, 9)}
    assert averaged("multi-krum", ten) == pytest.approx([3.0, 0.0])


def test_the_geometric_median():
    corners = {0: [0.0, 0.0], 1: [2.0, 0.0], 2: [0.0, 2.0], 3: [2.0, 2.0]}
    assert averaged("geometric-median", corners) == pytest.approx([1.0, 1.0])
    # Fermat's point of an isosceles right triangle
    place = (1 - 1 / math.sqrt(3)) / 2 * 2
    found = averaged("geometric-median", {0: [0.0, 0.0], 1: [2.0, 0.0], 2: [0.0, 2.0]})
    assert found == pytest.approx([place, place], abs=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_mapped_over_seeds(rule):
    method = prepared_with({"method": "fedavg", "server.robust": rule}).method
    server = {"w.a": torch.randn(3, 4, 2, dtype=torch.float64)}
    uploads = {"w.a": torch.randn(3, 6, 4, 2, dtype=torch.float64)}
    present = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0, 0]]).bool()
    samples = torch.arange(1.0, 7, dtype=torch.float64).expand(3, -1)

    def mean(server, votes):
        return method.aggregate(server, *robust.robust_votes(method, server, votes))["w.a"]

    mapped = vmap(mean)(server, Votes(uploads, present, samples))
    for s in range(3):
        votes = Votes({"w.a": uploads["w.a"][s]}, present[s], samples[s])
        torch.testing.assert_close(mapped[s], mean({"w.a": server["w.a"][s]}, votes))


def test_methods_that_take_no_mean_say_so():
    with pytest.raises(UserError, match="median: not with fedweit, its server keeps what each"):
        prepared_with({"method": "fedweit", "server.robust": "median"})
    with pytest.raises(UserError, match="clip: not with fedstats, its server adds up"):
        prepared_with({"method": "fedstats", "server.robust": "clip"})
    assert prepared_with({"method": "fedweit", "server.robust": "clip"})


def test_real_sites_are_clipped_by_default():
    agreed = {
        "federation.sites": ["a", "b"], "federation.classes": ["x", "y"], "federation.shape": [4],
        "model": "mlp", "engine": "flower", "clients": 2,
    }  # fmt: skip
    facts = DataFacts(2, 5, (4,), (2,))

    def rule(**options):
        resolved, method, _ = resolve(config.load(None, agreed | options), facts)
        assert robust.rule_of(method) == (resolved.server.robust or "none")
        return resolved.server.robust

    assert rule(method="fedmes") == "clip"
    assert rule(method="fedmes", **{"server.robust": "median"}) == "median"
    assert rule(method="fedmes", **{"server.robust": "none"}) == "none"
    assert rule(method="fedweit") is None
    secure = {"privacy.secure_aggregation": True}
    assert rule(method="fedmes", **secure) is None
    with pytest.raises(UserError, match=r"clip: not with privacy\.secure_aggregation"):
        rule(method="fedmes", **secure, **{"server.robust": "clip"})
    assert prepared_with({"method": "fedmes"}).config.server.robust is None
    with pytest.raises(ValidationError, match="only a simulation has attackers"):
        Config.model_validate(config.load(None, agreed).as_dict() | {"faults": {"attackers": 0.5}})


# --- attackers ------------------------------------------------------------------------------------


def test_who_attacks():
    def attackers(share, clients=10):
        options = {"faults.attackers": share, "clients": clients, "seeds": [0, 1]}
        return config.load(None, options).attackers()

    assert attackers(0.0) == [[], []]
    assert list(map(len, attackers(0.1))) == [1, 1]
    assert list(map(len, attackers(0.3))) == [3, 3]
    assert list(map(len, attackers(0.99))) == [9, 9]
    assert set(attackers(0.1)[0]) < set(attackers(0.3)[0])


def test_what_attackers_send():
    method = prepared_with({"method": "fedavg"}).method
    got = {"w.a": torch.tensor([1.0, 2.0])}
    mine = {"w.a": torch.tensor([1.5, 4.0]), "count": torch.tensor(7)}

    def sent(factor):
        found = tampered(method, mine, got, factor)
        assert found["count"] is mine["count"]
        return found["w.a"].tolist()

    assert sent(-10.0) == [-4.0, -18.0]
    assert sent(10.0) == [6.0, 22.0]
    assert sent(0.0) == [1.0, 2.0]
    assert np.isnan(sent(math.nan)).all()
    sums = prepared_with({"method": "fedstats"}).method
    assert tampered(sums, mine, got, -10.0)["w.a"].tolist() == [-15.0, -40.0]


def test_wrong_labels_are_those_of_the_same_task():
    mine = np.array([False, True, True, False, True])
    assert next_class(mine).tolist() == [0, 2, 4, 3, 1]
    prepared = prepared_with(
        {"method": "fedavg", "faults.attackers": 0.5, "faults.attack": "label-flip"}
    )
    engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    for s, attackers in enumerate(prepared.config.attackers()):
        for k, data in enumerate(engine.client_data[s]):
            numbers = data.plan.samples[1]
            right = prepared.samples.y[torch.from_numpy(data.plan.rows[numbers])]
            learned = data.batch(numbers, 1).y
            assert bool((learned != right).any()) == (k in attackers)
            assert data.plan.own[1][learned].all()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["sign-flip", "scale", "label-flip", "free-ride"])
def test_engines_agree_under_attack(attack):
    options = {
        "method": "fedmes", "tasks": 2, "faults.attackers": 0.25, "faults.attack": attack,
        "faults.factor": 3.3, "faults.drop": 0.2, "server.robust": "clip",
    }  # fmt: skip
    assert_equal_runs(prepared_with(options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "rule"),
    [("fedavg", "median"), ("fedavg", "trimmed-mean"), ("fedmes-plus", "multi-krum"),
     ("fedavg", "geometric-median"), ("fedweit", "clip"), ("fedstats", "none")],
)  # fmt: skip
def test_engines_agree_on_every_rule(method, rule):
    options = {
        "method": method, "tasks": 2, "epochs": 1, "server.robust": rule, "server.dishonest": 0.4,
        "faults.attackers": 0.25, "faults.nan": 0.1,
    }  # fmt: skip
    assert_equal_runs(prepared_with(options))


def test_the_accuracy_is_that_of_the_honest_clients(tmp_path):
    import fedmes

    shared = {
        "benchmark": "synthetic", "method": "fedavg", "clients": 4, "tasks": 1, "rounds": 1, "epochs": 1,
        "eval": {"model": "personal"}, "model": "linear", "faults": {"attackers": 0.5, "attack": "free-ride"},
    }  # fmt: skip
    result = fedmes.run(**shared, out=tmp_path / "o")
    (attackers,) = result.config.attackers()
    honest = sorted({0, 1, 2, 3} - set(attackers))
    assert np.isnan(result.acc[0, attackers]).all()
    mean = float(result.acc[0, honest].mean())
    assert result.metrics["oblivious"]["acc_all"]["mean"] == pytest.approx(mean)
    assert result.as_dict()["attackers"] == [attackers]
    assert result.as_dict()["robust"] == "none"
    again = run_dir.load(tmp_path / "o")
    np.testing.assert_array_equal(again.acc, result.acc)
