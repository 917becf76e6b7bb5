"""FedProx, Ditto, FedRep and kNN-Per: worked numbers (V6), and what must be equal to what."""

import json
import tomllib

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.methods.ditto import Ditto
from fedmes.methods.fedprox import FedProx
from fedmes.methods.fedrep import FedRep, part
from fedmes.tensors import distance, pick, put
from helpers.runs_of_methods import (
    Run,
    assert_same,
    assert_same_training,
    moved,
    predictions,
    states,
)
from helpers.small_vectors import CONTEXT, close, doubles, one, points, without_network

pytestmark = pytest.mark.usefixtures("unrehearsed")


# --- FedProx --------------------------------------------------------------------------------------


def given_gradient(method, g):
    """The method with this gradient everywhere."""

    class Given(method):
        def gradient(self, params, batch, key):
            return {"p": doubles(*g)}, doubles(0.0)[0]

    return Given


def test_fedprox_pulls_towards_the_received_model():
    """w - eta (g + mu (w - received))."""
    method = without_network(given_gradient(FedProx, (0.2, -0.4)))
    state = method.init(one(1.0, -1.0), CONTEXT)
    new = method.step(state, method.server(one(0.5, 0.5)), points(), points(), CONTEXT)
    close(new["w.p"], (0.975, -0.945))


class UniformFedProx(FedProx):
    average = "uniform"


@pytest.mark.slow
def test_fedprox_is_fedmes_without_a_memory():
    """Local training with mu = lambda, bit for bit."""
    plain = {"memory": 0, "eval.model": "personal", "knn.theta": 0.0}
    fedprox = Run(plain | {"fedprox.mu": 0.7}, UniformFedProx)
    fedmes_ = Run(plain | {"fedmes.lambda": 0.7})
    assert moved(fedprox) > 1e-3
    assert_same_training(fedprox, fedmes_)
    assert fedprox.accuracy() == fedmes_.accuracy()


# --- Ditto ----------------------------------------------------------------------------------------


def test_v6_ditto():
    """V6: the personal step; the global copy makes a plain one, and only it leaves the client."""
    method = without_network(given_gradient(Ditto, (0.2, -0.4)))
    broadcast = method.server(one(0.5, 0.5))
    state = method.init(one(0.5, 0.5), CONTEXT) | put("v", one(1.0, -1.0))
    state |= method.begin_round(state, broadcast, {}, CONTEXT)
    state |= method.step(state, broadcast, points(), points(), CONTEXT)
    close(state["v.p"], (0.975, -0.945))
    close(state["w.p"], (0.48, 0.54))
    assert list(method.upload(state, CONTEXT)) == ["w.p"]
    assert torch.equal(method.build_predictor(state, broadcast, points())["w.p"], state["v.p"])


@pytest.mark.slow
def test_property_8_ditto_without_a_pull_is_local():
    """lambda 0: the personal models are those of `local`, bit for bit; with a pull they are not."""
    local, ditto = Run({"method": "local"}), Run({"method": "ditto", "ditto.lam": 0.0})
    for mine, theirs in zip(states(ditto), local.clients[-1], strict=True):
        assert_same(pick(mine, "v"), theirs)
    assert ditto.accuracy() == local.accuracy()
    assert moved(ditto) > 1e-3  # meanwhile the global model goes its own way
    pulled = Run({"method": "ditto"})
    assert all(
        float(distance(pick(a, "v"), b)) > 1e-4
        for a, b in zip(states(pulled), local.clients[-1], strict=True)
    )


@pytest.mark.slow
def test_property_8_a_strong_pull_keeps_ditto_near_the_global_model():
    """lambda 100, SGD with a small step: v follows w; with lambda 0 it goes astray."""
    far = {}
    slow = {
        "method": "ditto",
        "tasks": 1,
        "rounds": 4,
        "epochs": 4,
        "optim.name": "sgd",
        "optim.lr": 0.005,
    }
    for lam in (0.0, 100.0):
        run = Run(slow | {"ditto.lam": lam})
        far[lam] = max(row.report["distance"] for row in run.rows)
    assert far[100.0] < 0.1 * far[0.0]


def test_ditto_averages_the_global_copies_uniformly_and_can_evaluate_the_global_model():
    run = Run({"method": "ditto", "eval.model": "global"})
    for name, value in run.servers[-1].items():
        torch.testing.assert_close(value, torch.stack([w[name] for w in run.clients[-1]]).mean(0))
    assert_same(pick(run.engine.predictor(0, 1), "w"), run.servers[-1])


# --- FedRep ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epochs", "head", "body"),
    [(1, [0], [0]), (2, [0], [1]), (3, [0, 1], [2]), (4, [0, 1], [2, 3])],
)
def test_property_7_fedrep_trains_in_turn(epochs, head, body):
    """What is frozen does not move by a bit, with its moments and counter; with one epoch both are
    trained."""
    met = set()

    class Watched(FedRep):
        def step(self, state, broadcast, batch, mem, ctx):
            new = super().step(state, broadcast, batch, mem, ctx)
            epoch = int(ctx.epoch)
            met.add(epoch)
            for name, turns in (("head", head), ("body", body)):
                mine = put("w", part(pick(state, "w"), name)) | put(
                    f"opt.{name}", pick(state, f"opt.{name}")
                )
                assert len(mine) > 5
                for entry, value in mine.items():
                    assert torch.equal(new[entry], value) == (epoch not in turns), (epoch, entry)
            return new

    Run({"epochs": epochs, "tasks": 1, "rounds": 1, "train.scope": "all"}, Watched)
    assert met == set(range(epochs))


def test_property_7_fedrep_shares_bodies_and_keeps_heads(runs):
    """Equal bodies after the aggregation, their uniform mean; heads are each client's own and never
    at the server."""
    run = runs("fedrep")
    assert len(part(run.servers[-1], "body")) == len(run.servers[-1]) == 4
    for name, value in run.servers[-1].items():
        torch.testing.assert_close(value, torch.stack([w[name] for w in run.clients[-1]]).mean(0))
    eval_model = [pick(run.engine.predictor(0, k), "w") for k in range(3)]
    for k in range(3):
        assert_same(part(eval_model[k], "body"), run.servers[-1])
        assert_same(part(eval_model[k], "head"), part(run.clients[-1][k], "head"))
        assert not torch.equal(eval_model[k]["head.weight"], eval_model[k - 1]["head.weight"])
        assert not torch.equal(eval_model[k]["body.0.weight"], run.clients[-1][k]["body.0.weight"])


def test_fedrep_starts_a_round_with_the_received_body_and_its_own_head():
    run = Run({"method": "fedrep", "tasks": 1, "rounds": 1})
    state, broadcast = states(run)[1], run.engine.servers[0]
    begun = pick(run.engine.method.begin_round(state, broadcast, {}, None), "w")
    assert_same(part(begun, "body"), run.servers[-1])
    assert_same(part(begun, "head"), part(run.clients[-1][1], "head"))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_property_7_fedrep_counts_the_body_only(tmp_path, engine):
    """4 bytes a parameter of the body, both ways; the global model that is saved has no head."""
    small = {
        "clients": 2,
        "tasks": 1,
        "rounds": 1,
        "epochs": 1,
        "model": {"name": "mlp", "width": 8},
    }
    result = fedmes.run(**small, method="fedrep", engine=engine, out=tmp_path / "o")
    body = 64 * 8 + 8 + 8 * 8 + 8
    assert result.parameters == body + 8 * 10 + 10
    assert result.communication == {"up_bytes": 2 * 4 * body, "down_bytes": 2 * 4 * body}


def test_fedrep_with_the_personal_model_has_its_own_body():
    run = Run({"method": "fedrep", "eval.model": "personal", "tasks": 1, "rounds": 1})
    assert_same(pick(run.engine.predictor(0, 1), "w"), run.clients[-1][1])


def test_fedrep_needs_a_body():
    with pytest.raises(fedmes.UserError, match="model linear is all head and has no body to share"):
        prepare(config.load(None, {"method": "fedrep", "model": "linear"}))


# --- kNN-Per --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_knnper_trains_fedavg(runs):
    """The same training; with theta 0, or without the vote, the same predictions."""
    fedavg, silent = Run({"method": "fedavg"}), Run({"method": "knn-per", "knn.theta": 0.0})
    voting = Run({"method": "knn-per"})
    for run in (silent, voting):
        assert_same_training(run, fedavg)
        assert run.accuracy("nolip") == fedavg.accuracy()
    assert silent.accuracy() == fedavg.accuracy() != voting.accuracy()
    for client in range(3):
        assert torch.equal(
            predictions(silent, client, 1, "acc"), predictions(fedavg, client, 1, "acc")
        )


def test_knnper_mixes_probabilities_of_the_global_model(runs):
    """Embeddings and softmax are the averaged model's; what is mixed adds up to 1."""
    run = runs("knn-per")
    method, site = run.engine.method, run.engine.client_data[0][2]
    predictor = run.engine.predictor(0, 2)
    assert_same(pick(predictor, "w"), run.servers[-1])
    stored = site.batch(site.plan.memory_after[2], 2).x
    assert torch.equal(predictor["store.z"], method.net.embedding(run.servers[-1], stored))
    (x, _), *_ = site.test_chunks(0)
    scope = site.seen[2]
    parts = method.vote.probabilities(predictor, x, scope)
    network, memory, voted = parts["nolip"], parts["memory"], parts["voted"]
    logits = torch.where(scope, method.net.logits(run.servers[-1], x), -torch.inf)
    torch.testing.assert_close(network, torch.softmax(logits, -1))
    p = method.predict(predictor, x, scope, torch.tensor(-1), None)["acc"]
    assert voted.all()
    torch.testing.assert_close(p, 0.5 * memory + 0.5 * network)
    torch.testing.assert_close(p.sum(-1), torch.ones(len(x), dtype=torch.float64))


@pytest.mark.parametrize("theta", [0.5, "tuned"])
def test_knnper_may_keep_all_samples(theta):
    """store=all: every training sample of every task so far, whatever the memory options say; but
    none held back."""
    options = {
        "method": "knn-per",
        "knnper.store": "all",
        "knn.theta": theta,
        "memory.policy": "ring",
    }
    run = Run(options | {"memory": 2, "memory.per_task": 1, "rounds": 1})
    for k, site in enumerate(run.engine.client_data[0]):
        plan = site.plan
        for p in range(3):
            kept = np.sort(plan.memory_after[p])
            np.testing.assert_array_equal(kept, np.concatenate(plan.samples[: p + 1]))
            assert (
                len(kept) + len(np.concatenate(plan.held_back[: p + 1])) == (plan.task <= p).sum()
            )
        assert (len(plan.held_back[0]) > 0) == (theta == "tuned")
        assert len(run.engine.predictor(0, k)["store.y"]) == len(plan.rows) - len(
            np.concatenate(plan.held_back)
        )


def test_a_method_has_its_own_defaults_for_the_vote(tmp_path):
    """Nine neighbours and exp(-d) for FedMeS, seven and exp(-d^2/dimension) for kNN-Per; what is
    set, holds."""
    small = {
        "clients": 2,
        "tasks": 1,
        "rounds": 1,
        "epochs": 1,
        "model": {"name": "mlp", "width": 4},
    }
    for i, (method, knn, expected) in enumerate(
        [
            ("fedmes", {}, (9, "exp_d")),
            ("knn-per", {}, (7, "knnper")),
            ("knn-per", {"k": 3, "kernel": "exp_d2"}, (3, "exp_d2")),
        ]
    ):
        out = tmp_path / str(i)
        fedmes.run(**small, method=method, knn=knn, out=out)
        about = json.loads((out / "seed0/client0/client.json").read_text())["knn"]
        stored = tomllib.loads((out / "config.toml").read_text())["knn"]
        assert (about["k"], about["kernel"]) == (stored["k"], stored["kernel"]) == expected
        vote = prepare(config.load(out / "config.toml", {})).method.vote
        assert (vote.k, vote.kernel) == expected
