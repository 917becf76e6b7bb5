"""Slips known from neighbouring code, so that none is made here.

Tested elsewhere: a forgetting function that changes its argument (test_metrics.py:
test_argument_is_not_modified), and how long Adam's state lives (test_every_method.py:
test_adam_lives_for_a_round).
"""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import fedmes
from fedmes import config
from fedmes.common import keyed_random
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.methods.base import Batch
from fedmes.methods.fedavg import FedAvg
from fedmes.methods.knn import MemoryVote, kernel_exponent
from fedmes.models import networks
from fedmes.scenario.plan import Plan
from fedmes.tensors import pick, put
from helpers.runs_of_methods import TINY, Run, predictions
from helpers.small_vectors import doubles

# those whose uploads are weights
APART = ("local", "local-er", "joint", "fedstats", "regmean", "lfedcon2")
SHARING = [name for name in METHODS if name not in APART]


@pytest.fixture(scope="module")
def runs():
    """A whole run of each method, made when it is first asked for."""
    made = {}

    def get(method):
        if method not in made:
            made[method] = Run({"method": method, "tasks": 2, "rounds": 1})
        return made[method]

    return get


def runner_of(prepared, engine):
    parts = (prepared.method, prepared.federations, prepared.samples)
    return LoopEngine(*parts) if engine == "loop" else StackedEngine(*parts, 10, compiled=False)


# --- a mixture of probabilities with logits -------------------------------------------------------


@pytest.mark.parametrize("method", ["fedmes", "knn-per"])
def test_votes_are_mixed_with_probabilities(method, runs):
    """Logits may be shifted by any number without a change in what they say; a mixture with logits
    would change."""
    run = runs(method)
    site, predictor = run.engine.client_data[0][1], run.engine.predictor(0, 1)
    vote, scope = run.engine.method.vote, site.seen[1]
    batch = site.batch(site.plan.samples[1], 1)
    shifted = predictor | {"w.head.bias": predictor["w.head.bias"] + 1000}
    parts = vote.probabilities(predictor, batch.x, scope)
    network, memory, voted = parts["nolip"], parts["memory"], parts["voted"]
    assert voted.all()
    # the two differ, so their mixture is neither
    assert float((network - memory).abs().max()) > 0.1
    for one in (predictor, shifted):
        p = vote.predict(one, batch.x, scope)
        torch.testing.assert_close(p["acc"], 0.5 * memory + 0.5 * network, rtol=0, atol=1e-9)
        torch.testing.assert_close(
            p["acc"].sum(-1), torch.ones_like(p["acc"][:, 0]), rtol=0, atol=1e-9
        )
    tuned = [vote.tune(one, batch, scope)["right"].tolist() for one in (predictor, shifted)]
    assert tuned[0] == tuned[1]
    assert len(set(tuned[0])) > 1  # theta matters


# --- a memory's capacity counted in batches -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fifo", "reservoir", "balanced", "ring"])
@pytest.mark.parametrize("batch", [1, 50])
def test_a_memory_of_seven_is_seven_samples(policy, batch, tmp_path):
    """Whatever the batch size, on disk and in the vote; and no more of them in a step than asked
    for."""
    options = {"clients": 2, "tasks": 2, "rounds": 1, "batch": batch, "engine.precision": "float32"}
    memory = {"memory": 7, "memory.per_task": 5, "memory.policy": policy, "memory.batch": 3}
    result = fedmes.run(**TINY | options | memory, out=tmp_path / "out")
    for k in range(2):
        with np.load(tmp_path / f"out/seed0/client{k}/memory.npz") as memory:
            assert memory["x"].shape == (7, 8, 8, 1)
            assert memory["y"].shape == memory["task"].shape == (7,)
            assert set(memory["task"]) == {0, 1}
    prepared = prepare(result.config)
    met = [len(plan.rows) for plan in prepared.federations[0].plans]
    assert result.memory_share == 7 / min(met)
    for plan in prepared.federations[0].plans:
        assert len(plan.memory[1]) == 5
        assert plan.round(1).memory.shape == (-(-len(plan.samples[1]) // batch), 3)


# --- "FedRep" whose shared keys never match, so nothing is shared ---------------------------------


@pytest.mark.parametrize("method", SHARING)
def test_what_is_sent_arrives(method, runs):
    """Another upload by one client is another server model, and another start for every other
    client: by each entry."""
    run = runs(method)
    method, broadcast, clients = run.engine.method, run.engine.servers[0], run.engine.clients[0]
    site = run.engine.client_data[0][0]
    ctx, sums = site.ctx(site.plan.round(1)), {"loss": doubles(1)[0], "count": doubles(1)[0]}
    there, counts = torch.ones(3, dtype=torch.bool), doubles(1, 1, 1)

    def begun(change):
        """How client 0 starts a round after client 2 has sent other values."""
        uploads = [method.upload(state, ctx) for state in clients]
        sent = {
            n: t + change * (t != 0)
            for n, t in uploads[2].items()
            if n.startswith("w.") and "#" not in n
        }
        uploads[2] |= sent
        stacked = {name: torch.stack([up[name] for up in uploads]) for name in uploads[0]}
        server = broadcast | method.aggregate(broadcast, stacked, there, counts)
        return set(sent), pick(server, "w"), method.begin_round(clients[0], server, sums, ctx)

    (sent, server, start), (_, other_server, other_start) = begun(0.0), begun(1.0)
    assert sent == set(put("w", server)) and len(sent) >= 2
    # FedWeIT shares a part of its weights' parts
    inside = "w.B" if "w.B.body.0.weight" in start else "w"
    for name in server:
        assert not torch.equal(server[name], other_server[name])
        arrived = server[name] != 0  # FedWeIT: what nobody sent stays the client's own
        assert torch.equal(start[f"{inside}.{name}"][arrived], server[name][arrived])
        assert torch.equal(other_start[f"{inside}.{name}"][arrived], other_server[name][arrived])


def test_fedrep_is_not_each_client_alone():
    """Clients that do not share their bodies would end where they end alone."""
    together = Run({"method": "fedrep", "tasks": 1})
    alone = Run({"method": "fedrep", "tasks": 1}, change=only_the_first)
    for name, value in together.servers[-1].items():
        assert not torch.equal(value, alone.servers[-1][name])
    assert not torch.equal(predictions(together, 0, 0, "acc"), predictions(alone, 0, 0, "acc"))


def only_the_first(federation):
    """The same federation, with nobody but client 0 taking part."""
    active = federation.stream.active * np.array([1, 0, 0])
    stream = replace(federation.stream, active=active)
    plans = [Plan(stream, k, plan.capacity, plan.work) for k, plan in enumerate(federation.plans)]
    return replace(federation, stream=stream, plans=plans)


# --- "lr decay" passed as weight decay ------------------------------------------------------------


class Constant(FedAvg):
    """The same slope everywhere, so a step's length is the rate."""

    slope = 1.0

    def gradient(self, params, batch, key):
        return {
            name: torch.full_like(p, self.slope) for name, p in params.items()
        }, batch.mask.sum()


class Flat(Constant):
    slope = 0.0


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_gamma_shortens_steps(optimizer, engine):
    """Round r of every task goes steps * lr * gamma^r, whatever the weights are."""
    moved = lengths(
        {"optim.name": optimizer, "optim.lr": 0.1, "optim.gamma": 0.5}, Constant, engine
    )
    np.testing.assert_allclose(moved, [0.1, 0.05, 0.025] * 2, rtol=1e-6)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_nothing_decays_weights(optimizer, engine):
    """Without a slope not one weight moves, with any gamma."""
    assert (
        lengths({"optim.name": optimizer, "optim.lr": 0.1, "optim.gamma": 0.5}, Flat, engine)
        == [0.0] * 6
    )


def lengths(options, method, engine):
    """How far a step takes the weights in each round: the largest move divided by the steps, over a
    round's start."""
    small = {"clients": 1, "tasks": 2, "rounds": 3, "epochs": 1, "batch": 7}
    prepared = prepare(config.load(None, TINY | small | options), {"method": method})
    runner = runner_of(prepared, engine)
    moved = []
    for g in range(6):
        before = {name: value.clone() for name, value in pick(runner.server_state(0), "w").items()}
        runner.round(g)
        after = pick(runner.server_state(0), "w")
        steps = prepared.federations[0].plans[0].steps(g)
        assert steps > 1
        ways = torch.cat([(before[name] - after[name]).flatten() for name in before]) / steps
        assert float(ways.max() - ways.min()) < 1e-7
        moved.append(float(ways.max()))
    return moved


# --- Adam re-created at every batch ---------------------------------------------------------------


def fedavg_in_torch(prepared, renewed):
    """One client's run with a torch module and torch's Adam, new in each round, or wrongly at each
    batch."""
    conf, federation = prepared.config, prepared.federations[0]
    plan, shape = federation.plans[0], prepared.source.dataset.shape
    seed = keyed_random.seed62(0, "init")
    module = networks.build(
        networks.MODELS["mlp"], "mlp", shape, federation.stream.classes, seed, width=8
    ).double()
    scale = prepared.samples.scale(federation.normalisation)
    for g in range(len(plan.position)):
        work = plan.round(g)
        lr = conf.optim.lr * conf.optim.gamma**work.index
        adam = torch.optim.Adam(module.parameters(), lr)
        scope = torch.from_numpy(plan.seen[work.position])
        for numbers in work.batch:
            if renewed == "batch":
                adam = torch.optim.Adam(module.parameters(), lr)
            rows = torch.from_numpy(plan.rows[numbers[numbers >= 0]])
            logits = module.head(module.features(prepared.samples.take(rows, scale)))
            loss = nn.functional.cross_entropy(
                torch.where(scope, logits, -torch.inf), prepared.samples.y[rows]
            )
            adam.zero_grad()
            loss.backward()
            adam.step()
    return dict(module.named_parameters())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_adam_is_torchs_for_a_round(engine):
    """A client alone is plain PyTorch with one Adam a round; with one a batch it would be somewhere
    else."""
    small = {"method": "fedavg", "clients": 1, "tasks": 2, "epochs": 2}
    prepared = prepare(config.load(None, TINY | small))
    runner = runner_of(prepared, engine)
    for g in range(4):
        runner.round(g)
    mine = pick(runner.server_state(0), "w")
    right, wrong = (fedavg_in_torch(prepared, renewed) for renewed in ("round", "batch"))
    assert mine.keys() == right.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, right[name].detach(), rtol=0, atol=1e-9)
        assert float((value - wrong[name].detach()).abs().max()) > 1e-3


# --- exp(-dist) underflowing to 0/0 in high dimension ---------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "near", "far"),
    [
        ("exp_d", 200.0, 201.0),
        ("exp_d2", 32.0, 1025**0.5),
        ("knnper", 768.0, (768**2 + 4096) ** 0.5),
    ],
)
def test_far_neighbours_vote_in_float32(kernel, near, far):
    """In 4,096 dimensions the farther vote is exp(-1) of the nearer one, where a plain exponential
    makes 0/0."""
    exponents = [float(kernel_exponent(torch.tensor(d), kernel, 4096)) for d in (near, far)]
    assert torch.tensor(exponents).exp().tolist() == [0, 0]
    net = prepare(config.load(None, TINY | {"engine.precision": "float32"})).method.net
    net.logits_and_embedding = lambda params, x: (torch.zeros(len(x), 3), x)
    net.embedding = lambda params, x: x
    vote = MemoryVote(net, config.load(None, {"knn.kernel": kernel}).knn)
    x = torch.zeros(2, 4096)
    x[0, 0], x[1, 0] = near, far
    scope = torch.ones(3, dtype=torch.bool)
    store = Batch(
        x,
        torch.tensor([1, 2]),
        torch.ones(2),
        scope.expand(2, -1),
        torch.zeros(2, dtype=torch.int64),
        torch.arange(2),
    )
    p = vote.probabilities(vote.build_predictor({}, store), torch.zeros(1, 4096), scope)
    memory, voted = p["memory"], p["voted"]
    assert memory.dtype == torch.float32 and voted.tolist() == [True]
    share = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(memory[0], [0, share, 1 - share], rtol=1e-3)


# --- only torch's generator seeded ----------------------------------------------------------------


def seed_everything(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def generators():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("method", ["fedmes", "fedweit"])
def test_no_global_generator_has_a_say(method, engine, tmp_path):
    """Splits, orders, memories, weights and scores are the same whatever was drawn before; and none
    is drawn from."""
    options = {
        "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "synthetic.train": 20,
        "synthetic.test": 3, "stream.frac": 10, "memory": 7, "memory.batch": 3, "memory.policy": "reservoir",
        "model": "mlp", "model.width": 6, "model.dropout": 0.4, "knn.theta": "tuned", "device": "cpu",
        "method": method, "engine": engine,
    }  # fmt: skip
    found = []
    for number in (1, 2):
        seed_everything(number)
        before = generators()
        out = tmp_path / str(number)
        result = fedmes.run(**options, out=out)
        assert generators() == before
        plans = prepare(result.config).federations[0].plans
        orders = [[plan.round(g).batch.tolist() for g in range(2)] for plan in plans]
        memories = [[plan.round(g).memory.tolist() for g in range(2)] for plan in plans]
        files = [p for p in sorted(out.rglob("*")) if p.suffix in (".safetensors", ".json", ".npz")]
        timed = ("result.json", "status.json", "round-000002.json")  # they say how long it took
        files = {str(p.relative_to(out)): p.read_bytes() for p in files if p.name not in timed}
        found.append((result.split_sha256, orders, memories, files))
        assert len(files) == 13 and generators() == before
    seed_everything(0)
    assert found[0] == found[1]
