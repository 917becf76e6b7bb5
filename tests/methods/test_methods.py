"""The methods beside FedMeS: worked numbers (V6, V9, rules like V2's), and what must be equal to
what."""

import csv
import json
import math
import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad_and_value

import fedmes
from fedmes import config
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.methods.ditto import Ditto
from fedmes.methods.fedagem import FedAGEM
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.fedmes import CORRECTIONS
from fedmes.methods.fedprox import FedProx
from fedmes.methods.fedrep import FedRep, part
from fedmes.methods.flwf import FLwF, FLwF2T
from fedmes.methods.local import Local, LocalER
from fedmes.methods.losses import distillation
from fedmes.tensors import distance, pick, put
from helpers.runs_of_methods import TINY, Run, assert_same, assert_same_training, moved, predictions
from helpers.small_vectors import RECEIVED, G, W, close, doubles, one, points

pytestmark = pytest.mark.usefixtures("unrehearsed")

ME = SimpleNamespace(lr=doubles(0.1)[0], key=torch.tensor(0), seen=torch.ones(3, dtype=torch.bool))


def without_network(method, **options):
    """A method that is only asked for its arithmetic, with plain SGD."""
    return method(
        options.pop("net", SimpleNamespace(mapped=False)),
        config.load(None, {"optim.name": "sgd"} | options),
    )


def states(run):
    """The client states at the end of a run."""
    return run.engine.clients[0]


# --- the contract: every method -------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs():
    """A whole run of each method, made when it is first asked for."""
    made = {}

    def get(method):
        if method not in made:
            made[method] = Run({"method": method, "epochs": 2})
        return made[method]

    return get


@pytest.mark.parametrize("method", METHODS)
def test_all_entries_exist_from_the_start_in_their_final_shape(method, runs):
    """Engines allocate a client's state once: nothing may appear, vanish or change its shape
    later."""
    run = runs(method)
    params = run.prepared.federations[0].initial
    for site, state in zip(run.engine.sites[0], states(run), strict=True):
        first = run.prepared.method.init({n: p.double() for n, p in params.items()}, site.ctx())
        assert {n: (t.shape, t.dtype) for n, t in first.items()} == {
            n: (t.shape, t.dtype) for n, t in state.items()
        }
    if method != "fedweit":  # which trains what weights are composed of
        assert {n: p.shape for n, p in params.items()} == {
            n: p.shape for n, p in run.clients[-1][0].items()
        }


@pytest.mark.parametrize("method", METHODS)
def test_adam_lives_for_a_round(method, runs):
    """Its counter c1 = 1 - .9^t has counted the steps of one round: not re-created at every batch,
    not kept longer."""
    run = runs(method)
    for site, state in zip(run.engine.sites[0], states(run), strict=True):
        steps = site.plan.steps(5)
        counters = {name: value for name, value in state.items() if name.endswith(".c1")}
        assert counters and steps >= 4
        for name, value in counters.items():
            # FedRep: half of the epochs each
            share = 2 if name.startswith(("opt.head", "opt.body")) else 1
            assert float(value) == pytest.approx(1 - 0.9 ** (steps / share), abs=1e-12)


@pytest.mark.parametrize("method", ["fedrep", "flwf-2t", "local-er", "fedmes-plus"])
def test_a_step_is_one_graph(method, monkeypatch):
    """torch.compile traces the stacked step as a whole; `eager` traces only, without a compiler."""
    real = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: real(f, backend="eager", **options))
    prepared = prepare(
        config.load(None, TINY | {"method": method, "clients": 2, "tasks": 1, "engine": "stacked"})
    )
    engine = StackedEngine(
        prepared.method, prepared.federations, prepared.samples, 2, compiled=True
    )
    engine.round(0)
    assert engine.notes == []
    torch._dynamo.reset()


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
    state = method.init(one(1.0, -1.0), ME)
    new = method.step(state, method.server(one(0.5, 0.5)), points(), points(), ME)
    close(new["w.p"], (0.975, -0.945))


class UniformFedProx(FedProx):
    average = "uniform"


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
    state = method.init(one(0.5, 0.5), ME) | put("v", one(1.0, -1.0))
    state |= method.begin_round(state, broadcast, {}, ME)
    state |= method.step(state, broadcast, points(), points(), ME)
    close(state["v.p"], (0.975, -0.945))
    close(state["w.p"], (0.48, 0.54))
    assert list(method.upload(state, ME)) == ["w.p"]
    assert torch.equal(method.build_predictor(state, broadcast, points())["w.p"], state["v.p"])


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


def test_ditto_averages_the_global_copies_uniformly_and_can_be_judged_by_the_global_model():
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


def test_fedrep_judged_by_the_personal_model_has_its_own_body():
    run = Run({"method": "fedrep", "eval.model": "personal", "tasks": 1, "rounds": 1})
    assert_same(pick(run.engine.predictor(0, 1), "w"), run.clients[-1][1])


def test_fedrep_needs_a_body():
    with pytest.raises(fedmes.UserError, match="model linear is all head and has no body to share"):
        prepare(config.load(None, {"method": "fedrep", "model": "linear"}))


# --- FedAGEM, and FedMeS's other corrections ------------------------------------------------------


class UniformFedAGEM(FedAGEM):
    average = "uniform"


def test_property_1_fedmes_without_pull_and_vote_is_fedagem():
    """lambda 0, theta 0, uniform weights, local models: bit for bit, with rule 2 in use."""
    fedmes_ = Run({"fedmes.lambda": 0.0, "knn.theta": 0.0})
    fedagem = Run({"eval.model": "personal"}, UniformFedAGEM)
    assert_same_training(fedmes_, fedagem)
    assert fedmes_.accuracy() == fedagem.accuracy()
    rule2 = [row.report["rule2"] for row in fedagem.rows]
    assert rule2 == [row.report["rule2"] for row in fedmes_.rows]
    assert max(rule2) > 0


def test_fedagem_averages_by_samples_and_is_judged_by_the_global_model(runs):
    run = runs("fedagem")
    sizes = [len(site.plan.samples[2]) for site in run.engine.sites[0]]
    assert len(set(sizes)) > 1
    for name, value in run.servers[-1].items():
        mean = sum(n * w[name] for n, w in zip(sizes, run.clients[-1], strict=True)) / sum(sizes)
        torch.testing.assert_close(value, mean)
    assert_same(pick(run.engine.predictor(0, 0), "w"), run.servers[-1])


RULE1 = (1.75, 1.25, -1.75)  # V2: g + 1.5 (w - received)


@pytest.mark.parametrize(
    ("correction", "gm", "rule", "direction"),
    [
        ("agem", (-1.0, 0.0, 2.0), 2, (0.4, 2.0, 0.2)),
        ("agem_margin", (-1.0, 0.0, 2.0), 2, (-0.1, 2.0, 1.2)),  # + .5 gm
        ("agem_margin", (1.0, 1.0, 0.0), 1, RULE1),
        ("agem_margin", (0.0, 0.0, 0.0), 1, RULE1),
        ("replay", (-1.0, 0.0, 2.0), 1, (0.75, 1.25, 0.25)),  # g + gm + 1.5 (w - received)
        ("replay", (1.0, 1.0, 0.0), 1, (2.75, 2.25, -1.75)),
        ("replay", (0.0, 0.0, 0.0), 1, RULE1),  # empty memory
    ],
)
def test_v2_corrections(correction, gm, rule, direction):
    """V2's weights and gradients under each correction."""
    correct = CORRECTIONS[correction]
    d, violated = correct(one(*W), one(*RECEIVED), one(*G), one(*gm), doubles(1.5)[0])
    close(d["p"], direction)
    assert bool(violated) == (rule == 2)


def test_with_a_margin_a_corrected_step_lowers_the_memorys_loss():
    """The step's direction descends it by margin * ||gm||^2, where A-GEM's own leaves it as it
    is."""
    gm = (-1.0, 0.0, 2.0)
    slope = {}
    for name in ("agem", "agem_margin"):
        d, _ = CORRECTIONS[name](one(*W), one(*RECEIVED), one(*G), one(*gm), doubles(1.5)[0])
        slope[name] = float(d["p"] @ doubles(*gm))
    assert slope == pytest.approx({"agem": 0.0, "agem_margin": 0.5 * 5})


@pytest.mark.parametrize("correction", ["agem_margin", "replay"])
def test_corrections_in_a_run(correction, runs):
    """Without a memory, in the first task, all corrections are one; then they part."""
    options = {"tasks": 2, "rounds": 1, "fedmes.correction": correction}
    run, agem = Run(options), Run(options | {"fedmes.correction": "agem"})
    assert_same(run.servers[0], agem.servers[0])
    assert float(distance(run.servers[1], agem.servers[1])) > 1e-4
    assert (max(row.report["rule2"] for row in run.rows) > 0) == (correction == "agem_margin")


# --- kNN-Per --------------------------------------------------------------------------------------


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
    method, site = run.engine.method, run.engine.sites[0][2]
    predictor = run.engine.predictor(0, 2)
    assert_same(pick(predictor, "w"), run.servers[-1])
    assert torch.equal(
        predictor["store.z"],
        method.net.embedding(run.servers[-1], site.batch(site.plan.memory_after[2], 2).x),
    )
    (x, _), *_ = site.test_chunks(0)
    scope = site.seen[2]
    network, memory, voted = method.vote.opinions(predictor, x, scope)
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
    for k, site in enumerate(run.engine.sites[0]):
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


# --- FLwF -----------------------------------------------------------------------------------------

TEACHER, STUDENT = doubles(2, 0, -2)[None], doubles(1, 0, -1)[None]
ALL, REAL = torch.ones(3, dtype=torch.bool), doubles(1)


def test_v9_distillation():
    """V9: one teacher, and a uniform one."""
    close(distillation(TEACHER, STUDENT, ALL, REAL, 2.0), 0.892664)
    close(distillation(torch.zeros_like(TEACHER), STUDENT, ALL, REAL, 2.0), 1.180270)


@pytest.mark.parametrize(("method", "expected"), [(FLwF, 0.496872), (FLwF2T, 0.707656)])
def test_v9_losses(method, expected):
    """V9: the losses of both methods, label 0, the server's model a uniform teacher."""
    net = SimpleNamespace(logits=lambda params, x, key=None: params["z"].expand(len(x), -1))
    method = without_network(method, net=net)
    batch = points((0.0, 0.0))._replace(scope=ALL[None])
    state = {"past.w.z": TEACHER[0], "past.seen": ALL}
    broadcast = {"w.z": doubles(0, 0, 0)}
    close(method.loss(state, broadcast, batch, ME)(STUDENT), expected)


def test_distillation_sees_the_scope_and_the_real_samples():
    """Classes out of scope and padding change neither value nor gradient; with nothing in scope
    both are 0."""
    generator = torch.Generator().manual_seed(1)
    teacher, student = (
        3 * torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    columns = [0, 3, 4]
    scope = torch.tensor([c in columns for c in range(5)])
    both = grad_and_value(distillation, argnums=1)
    g, loss = both(teacher, student, scope, doubles(1, 1, 0, 1), 2.0)
    rows = [0, 1, 3]
    p = torch.softmax(teacher[rows][:, columns] / 2, -1)
    plain = torch.nn.functional.cross_entropy(student[rows][:, columns] / 2, p)
    close(loss, plain, 1e-12)
    assert (g[rows][:, columns] != 0).all()
    assert not g[2].any() and not g[:, [1, 2]].any()
    g, loss = both(teacher, student, torch.zeros_like(scope), doubles(1, 1, 0, 1), 2.0)
    assert float(loss) == 0 and not g.any()


def test_flwf_is_fedavg_in_the_first_task():
    """Exactly, because there is no past; afterwards it is not."""
    flwf, fedavg = Run({"method": "flwf"}), Run({"method": "fedavg"})
    for g in (0, 1):
        assert_same(flwf.servers[g], fedavg.servers[g])
    assert float(distance(flwf.servers[-1], fedavg.servers[-1])) > 1e-4


def test_flwf_2t_with_all_weight_on_the_labels_is_fedavg():
    flwf = Run({"method": "flwf-2t", "flwf2t.alpha": 1.0, "flwf2t.beta": 0.0})
    assert_same_training(flwf, Run({"method": "fedavg"}))
    # the server teaches at once
    assert float(distance(Run({"method": "flwf-2t"}).servers[0], flwf.servers[0])) > 1e-4


def test_flwfs_teacher_is_the_clients_own_model_of_the_task_before():
    """Its weights and the classes it knew, unchanged while the next task is trained."""
    during = []

    class Watched(FLwF):
        def step(self, state, broadcast, batch, mem, ctx):
            during.append(
                (int(ctx.client), int(ctx.position), pick(state, "past.w"), state["past.seen"])
            )
            return super().step(state, broadcast, batch, mem, ctx)

    run = Run({}, Watched)
    assert {(client, position) for client, position, *_ in during} == {
        (k, p) for k in range(3) for p in range(3)
    }
    for client, position, past, seen in during:
        if position == 0:
            assert not seen.any()
        else:
            assert_same(past, run.clients[2 * position - 1][client])
            assert torch.equal(seen, run.engine.sites[0][client].seen[position - 1])


def test_flwf_2ts_weights_are_shares():
    with pytest.raises(
        fedmes.UserError, match=r"flwf2t: alpha 0.8 and beta 0.3 are more than 1 together"
    ):
        config.load(None, {"flwf2t.alpha": 0.8})


# --- alone ----------------------------------------------------------------------------------------


def test_local_clients_go_on_from_their_own_model():
    """Every round begins where the client's last one ended, through all tasks."""
    begun = []

    class Watched(Local):
        def begin_round(self, state, broadcast, sums, ctx):
            new = super().begin_round(state, broadcast, sums, ctx)
            begun.append((pick(state, "w"), pick(new, "w"), pick(new, "opt")))
            return new

    Run({}, Watched)
    assert len(begun) == 18
    for before, after, optimizer in begun:
        assert_same(before, after)
        assert not any(t.any() for t in optimizer.values())


def test_local_er_steps_on_batch_and_memory():
    """Losses .5*||w - x||^2 at w = 0: g = -(2, 0), gm = -(1, -1)."""

    class Quadratic(LocalER):
        def gradient(self, params, batch, key):
            def loss(params):
                square = 0.5 * (params["p"] - batch.x).square().sum(-1)
                return (square * batch.mask).sum() / batch.mask.sum().clamp(min=1)

            return grad_and_value(loss)(params)

    method = without_network(Quadratic)
    state = method.init(one(0.0, 0.0), ME)
    close(method.step(state, {}, points((2.0, 0.0)), points((1.0, -1.0)), ME)["w.p"], (0.3, -0.1))
    close(method.step(state, {}, points((2.0, 0.0)), points(), ME)["w.p"], (0.2, 0.0))


def test_joint_walks_the_samples_of_all_tasks_so_far(runs):
    plans = [site.plan for site in runs("joint").engine.sites[0]]
    for plan in plans:
        for g in range(6):
            work = plan.round(g)
            everything = np.concatenate(plan.samples[: g // 2 + 1])
            for epoch in range(2):
                walked = work.batch[work.epoch == epoch].ravel()
                np.testing.assert_array_equal(np.sort(walked[walked >= 0]), everything)


def test_joint_is_local_in_the_first_task(runs):
    joint, local = runs("joint"), runs("local")
    for k in range(3):
        assert_same(joint.clients[1][k], local.clients[1][k])
        assert float(distance(joint.clients[2][k], local.clients[2][k])) > 1e-4


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["local", "local-er", "joint"])
def test_nothing_is_sent(tmp_path, method, engine):
    """No bytes, no global model on disk, no distance to one; everything else is there."""
    small = {
        "clients": 2,
        "tasks": 2,
        "rounds": 1,
        "epochs": 1,
        "model": {"name": "mlp", "width": 4},
    }
    result = fedmes.run(**small, method=method, engine=engine, out=tmp_path / "o")
    assert result.communication == {"up_bytes": 0, "down_bytes": 0}
    assert result.seconds["communication_modelled"] == 0
    assert sorted(p.name for p in (tmp_path / "o/seed0").glob("*")) == [
        "client0", "client1", "initial.safetensors", "split.json",
    ]  # fmt: skip
    with (tmp_path / "o/rounds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    for row in rows:
        assert (row["distance"], row["up_bytes"], row["left_out"]) == ("", "0", "0")
        assert math.isfinite(float(row["loss"]))


@pytest.mark.parametrize("method", ["local", "local-er", "joint"])
def test_there_is_no_global_model_to_judge(method):
    with pytest.raises(fedmes.UserError, match=f"eval.model: method {method} has no global model"):
        prepare(config.load(None, {"method": method, "eval.model": "global"}))


def test_fedavg_is_judged_as_asked():
    for eval_model in ("global", "personal"):
        run = Run({"tasks": 1, "rounds": 1, "eval.model": eval_model}, FedAvg)
        expected = run.servers[-1] if eval_model == "global" else run.clients[-1][0]
        assert_same(pick(run.engine.predictor(0, 0), "w"), expected)
