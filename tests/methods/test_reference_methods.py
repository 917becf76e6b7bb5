"""The methods that class-incremental papers compare with: what is left without their own part, and
their predictions by hand. The oracle has the rest."""

import pytest
import torch

from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.methods.base import Batch
from fedmes.methods.glfc import compensation
from fedmes.tensors import pick, put
from helpers.runs_of_methods import TINY, Run, assert_same_training, moved

pytestmark = pytest.mark.usefixtures("unrehearsed")


@pytest.fixture(scope="module")
def plain():
    return Run({"method": "fedavg"})


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("er", {"memory": 0}),
        ("der++", {"memory": 0}),
        ("ewc", {"ewc.lam": 0}),
        ("mas", {"mas.lam": 0}),
        ("fedproto", {"fedproto.ld": 0}),
        ("ccvr", {"ccvr.steps": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_without_its_part_it_is_fedavg(method, options, plain):
    other = Run({"method": method} | options)
    assert moved(plain) > 0.01
    assert_same_training(plain, other, 1e-12)
    assert plain.accuracy() == other.accuracy()


def test_without_logits_der_is_er():
    replayed = Run({"method": "er"})
    other = Run({"method": "der++", "derpp.alpha": 0, "derpp.beta": 1})
    assert_same_training(replayed, other, 1e-12)


def test_a_large_alpha_keeps_what_a_stored_sample_was_answered():
    """Nearer to the logits that were stored after the first task than without; of other places,
    nothing was ever stored."""

    def apart(alpha):
        options = {"derpp.alpha": alpha, "optim.name": "sgd", "optim.lr": 0.01}
        run = Run({"method": "der++", "tasks": 2} | options)
        data, state = run.engine.client_data[0][0], run.engine.clients[0][0]
        mem = data.batch(data.plan.memory[1], 1)
        then, w = state["past.logits"], pick(state, "w")
        empty = sorted(set(range(len(then))) - set(data.plan.place.tolist()))
        assert empty and not then[empty].any()
        away = run.prepared.method.net.logits(w, mem.x) - then[mem.place]
        return float(away[:, data.classes[0]].norm())

    assert 0 < apart(30.0) < 0.5 * apart(0.0)


@pytest.mark.parametrize("method", ["ewc", "mas"])
def test_a_large_penalty_holds_what_mattered(method):
    """The more a weight mattered in the first task, the less it moves in the second."""
    run = Run(
        {"method": method, "tasks": 2, f"{method}.lam": 1e4, "optim.name": "sgd", "optim.lr": 1e-5}
    )
    state = run.engine.clients[0][0]
    held, changed = state["importance.head.weight"], run.servers[-1]["head.weight"]
    assert held.min() >= 0 and held.max() > 0
    free = Run({"method": "fedavg", "tasks": 2, "optim.name": "sgd", "optim.lr": 1e-5})
    anchor = run.servers[1]["head.weight"]
    torch.testing.assert_close(anchor, free.servers[1]["head.weight"], rtol=0, atol=1e-15)
    drift = (changed - anchor).norm() / (free.servers[-1]["head.weight"] - anchor).norm()
    assert 0 < drift < 0.999


def of(method, **options):
    chosen = TINY | {"method": method, "model": "linear"} | options
    del chosen["model.width"]
    return prepare(config.load(None, chosen)).method


def samples(x, y, classes):
    x, y = torch.tensor(x, dtype=torch.float64), torch.tensor(y)
    count = len(y)
    scope = torch.ones(count, classes, dtype=torch.bool)
    mask = torch.ones(count, dtype=torch.float64)
    return Batch(x, y, mask, scope, torch.zeros_like(y), torch.arange(count))


def test_icarl_predicts_the_nearest_mean_of_exemplars():
    """Whatever the heads say; classes without exemplars are no candidates."""
    method = of("icarl")
    classes, width = method.net.initial["head.weight"].shape

    def vector(*first):
        return [*first, *[0.0] * (width - len(first))]

    stored = [vector(1, 0), vector(0, 5), vector(0, 0, 3)]
    store = samples(stored, [0, 0, 2], classes)
    w = put("w", {name: torch.zeros_like(p).double() for name, p in method.net.initial.items()})
    predictor = w | method.embed_memory({n[2:]: p for n, p in w.items()}, store)
    x = torch.tensor([vector(2, 2), vector(9, 1), vector(1, 0, 2)], dtype=torch.float64)
    everything = torch.ones(classes, dtype=torch.bool)
    p = method.predict(predictor, x, everything, torch.tensor(-1), None)["acc"]
    # the mean of (1, 0) and (0, 1) is (1, 1) / 2, on the unit sphere (1, 1) / sqrt 2
    assert p.argmax(1).tolist() == [0, 0, 2]
    assert (p[:, [1, *range(3, classes)]] == 0).all()
    cosine = 2 / 5**0.5, 1 / 10**0.5  # of the third with both means
    ratio = torch.tensor(2 * (cosine[0] - cosine[1])).exp()
    assert float(p[2, 2] / p[2, 0]) == pytest.approx(float(ratio), rel=1e-6)


def test_ccvr_gives_old_classes_back_their_say():
    """A head that has forgotten class 0 altogether, and features that tell both classes apart."""
    method = of("ccvr", **{"ccvr.steps": 200})
    classes, width = method.net.initial["head.weight"].shape
    w = {name: torch.zeros_like(p).double() for name, p in method.net.initial.items()}
    w["head.bias"][1] = 4.0
    n, s = torch.zeros(classes).double(), torch.zeros(classes, width).double()
    n[:2] = 0.5  # of all samples, each
    s[0, 0], s[1, 0] = -1.0, 1.0
    known = {"n": n, "s": s, "q": 2 * s.square() + 0.01 * n[:, None]}
    head = method.calibrated(w, known)
    means = torch.zeros(2, width).double()
    means[:, 0] = torch.tensor([-2.0, 2.0])
    logits = means @ head["head.weight"].T + head["head.bias"]
    assert logits[:, :2].argmax(1).tolist() == [0, 1]
    assert torch.equal(head["head.weight"][2:], w["head.weight"][2:])  # of unknown classes
    nobody = method.calibrated(w, {name: torch.zeros_like(t) for name, t in known.items()})
    assert all(torch.equal(nobody[name], w[name]) for name in nobody)


def test_glfc_weighs_samples_among_their_own_kind():
    batch, mem = samples([[0.0]] * 2, [1, 1], 2), samples([[0.0]], [0], 2)
    logit = torch.tensor([0.25, 0.75]).logit()
    logits = [torch.stack([torch.zeros(2), logit], 1).double(), torch.zeros(1, 2).double()]
    old = torch.tensor([True, False])
    of_batch, of_memory = compensation(logits, (batch, mem), old)
    assert of_batch.tolist() == pytest.approx([1.5, 0.5])  # .75 and .25, by their mean
    assert of_memory.tolist() == [1.0]
    first, _ = compensation(logits, (batch, mem), torch.tensor([False, False]))
    assert first.tolist() == [1.0, 1.0]
