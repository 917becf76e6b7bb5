"""FedAGEM, FLwF and training alone: worked numbers (V9, rules like V2's), and what must be equal to
what."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad_and_value

import fedmes
from fedmes import config
from fedmes.methods.fedagem import FedAGEM
from fedmes.methods.fedmes import CORRECTIONS
from fedmes.methods.flwf import FLwF, FLwF2T
from fedmes.methods.local import Local, LocalER
from fedmes.methods.losses import distillation
from fedmes.tensors import distance, pick
from helpers.runs_of_methods import Run, assert_same, assert_same_training
from helpers.small_vectors import (
    CONTEXT,
    RECEIVED,
    G,
    W,
    close,
    doubles,
    one,
    points,
    without_network,
)

pytestmark = pytest.mark.usefixtures("unrehearsed")


# --- FedAGEM, and FedMeS's other corrections ------------------------------------------------------


class UniformFedAGEM(FedAGEM):
    average = "uniform"


@pytest.mark.slow
def test_property_1_fedmes_without_pull_and_vote_is_fedagem():
    """lambda 0, theta 0, uniform weights, local models: bit for bit, with rule 2 in use."""
    fedmes_ = Run({"fedmes.lambda": 0.0, "knn.theta": 0.0})
    fedagem = Run({"eval.model": "personal"}, UniformFedAGEM)
    assert_same_training(fedmes_, fedagem)
    assert fedmes_.accuracy() == fedagem.accuracy()
    rule2 = [row.report["rule2"] for row in fedagem.rows]
    assert rule2 == [row.report["rule2"] for row in fedmes_.rows]
    assert max(rule2) > 0


@pytest.mark.slow
def test_fedagem_averages_by_samples_and_evaluates_the_global_model(runs):
    run = runs("fedagem")
    sizes = [len(site.plan.samples[2]) for site in run.engine.client_data[0]]
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
    taught = method.taught(state, broadcast, batch.x)
    close(method.loss(state, STUDENT, batch, CONTEXT, *taught), expected)


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


@pytest.mark.slow
def test_flwf_is_fedavg_in_the_first_task():
    """Exactly, because there is no past; afterwards it is not."""
    flwf, fedavg = Run({"method": "flwf"}), Run({"method": "fedavg"})
    for g in (0, 1):
        assert_same(flwf.servers[g], fedavg.servers[g])
    assert float(distance(flwf.servers[-1], fedavg.servers[-1])) > 1e-4


@pytest.mark.slow
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
            assert torch.equal(seen, run.engine.client_data[0][client].seen[position - 1])


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
    state = method.init(one(0.0, 0.0), CONTEXT)
    close(
        method.step(state, {}, points((2.0, 0.0)), points((1.0, -1.0)), CONTEXT)["w.p"], (0.3, -0.1)
    )
    close(method.step(state, {}, points((2.0, 0.0)), points(), CONTEXT)["w.p"], (0.2, 0.0))


@pytest.mark.slow
def test_joint_iterates_over_the_samples_of_all_tasks_so_far(runs):
    plans = [site.plan for site in runs("joint").engine.client_data[0]]
    for plan in plans:
        for g in range(6):
            work = plan.round(g)
            everything = np.concatenate(plan.samples[: g // 2 + 1])
            for epoch in range(2):
                walked = work.batch[work.epoch == epoch].ravel()
                np.testing.assert_array_equal(np.sort(walked[walked >= 0]), everything)


@pytest.mark.slow
def test_joint_is_local_in_the_first_task(runs):
    joint, local = runs("joint"), runs("local")
    for k in range(3):
        assert_same(joint.clients[1][k], local.clients[1][k])
        assert float(distance(joint.clients[2][k], local.clients[2][k])) > 1e-4
