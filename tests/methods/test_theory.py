"""What can be proved about the method, checked with numbers; where the printed theorems fail, the
tests say so."""

from itertools import pairwise

import pytest
import torch
from torch.func import vmap

from fedmes.methods.fedmes import correct
from fedmes.methods.optimizers import SGD


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def directions(g, gm, w=None, received=None, lam=None):
    """The method's direction for each row, and where it is rule 2's."""
    zero = torch.zeros_like(g)
    w, received = (zero if part is None else part for part in (w, received))
    lam = torch.zeros(len(g), dtype=g.dtype) if lam is None else lam
    d, violated = vmap(correct)({"p": w}, {"p": received}, {"p": g}, {"p": gm}, lam)
    return d["p"], violated


def descend(w, d, eta):
    return SGD().step({"p": w}, {"p": d}, {}, vector(eta)[0])[0]["p"]


# --- fact 1: rule 2 does not lower the loss on the memory -----------------------------------------


def test_rule2_direction_is_orthogonal_to_the_memory_gradient():
    """Fact 1: the first-order change of the memory loss is zero, so the proof's d = A*gm with A > 0
    cannot be."""
    generator = torch.Generator().manual_seed(1)
    g, gm = (torch.randn(5000, 12, generator=generator, dtype=torch.float64) for _ in range(2))
    d, violated = directions(g, gm)
    assert 2000 < int(violated.sum()) < 3000
    inner = (d * gm).sum(-1)[violated].abs()
    assert (inner <= 1e-12 * (g.norm(dim=-1) * gm.norm(dim=-1))[violated]).all()
    assert (d.norm(dim=-1)[violated] > 0).all()
    assert torch.equal(d[~violated], g[~violated])  # lambda 0: rule 1 is the plain gradient


def spd(generator, count, size):
    """Random symmetric positive definite matrices."""
    a = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    return a @ a.mT / size + 0.1 * torch.eye(size, dtype=torch.float64)


def test_rule2_never_lowers_a_quadratic_memory_loss():
    """Fact 1, against Theorem 1 as printed: each rule-2 step changes the memory loss by exactly
    +.5*eta^2*d'Hd."""
    generator = torch.Generator().manual_seed(2)
    problems, size, eta = 400, 5, 0.05
    current, memory = spd(generator, problems, size), spd(generator, problems, size)
    a, b, w = (
        torch.randn(problems, size, generator=generator, dtype=torch.float64) for _ in range(3)
    )

    def times(h, v):
        return (h @ v[..., None])[..., 0]

    def loss(w):
        return 0.5 * ((w - b) * times(memory, w - b)).sum(-1)

    steps = 0
    for _ in range(100):
        d, violated = directions(times(current, w - a), times(memory, w - b))
        new = descend(w, d, eta)
        change = (loss(new) - loss(w))[violated]
        exact = (0.5 * eta**2 * (d * times(memory, d)).sum(-1))[violated]
        slack = 1e-13 * (1 + loss(w)[violated])
        assert (change >= -slack).all()
        assert ((change - exact).abs() <= slack).all()
        steps += int(violated.sum())
        # only rule 2 moves: a problem that recovers stays where it is
        w = torch.where(violated[:, None], new, w)
    assert steps > 5000


# --- fact 2: repeated rule 2 need not make the inner product positive -----------------------------


def repeat_rule2(w, current_gradient, eta, steps):
    """Iterates, directions and inner products with the memory loss .5*||w||^2, until rule 2
    stops."""
    path, taken, inner = [w], [], []
    for _ in range(steps):
        g = current_gradient(w)
        inner.append(float(g @ w))
        d, violated = directions(g[None], w[None])
        if not violated[0]:
            break
        w = descend(w, d[0], eta)
        path.append(w)
        taken.append(d[0])
    return path, taken, inner


def test_counter_example_that_never_recovers():
    """Fact 2, against the printed remark: the iteration stops at a point with a negative inner
    product."""
    target, eta = vector(4.0, 0.0), 0.05
    path, taken, inner = repeat_rule2(vector(0.6, 0.8), lambda w: w - target, eta, 300)
    assert len(taken) == 300  # rule 2 at every step
    assert all(value < 0 for value in inner)
    assert abs(inner[0] + 1.4) < 1e-12
    losses = [0.5 * float(w @ w) for w in path]
    for step, rise in enumerate((0.0128, 0.0096649, 0.0069839)):
        assert abs(losses[step + 1] - losses[step] - rise) < 5e-8
        assert (
            abs(losses[step + 1] - losses[step] - 0.5 * eta**2 * float(taken[step] @ taken[step]))
            < 1e-12
        )
    assert all(after >= before - 1e-15 for before, after in pairwise(losses))
    torch.testing.assert_close(path[-1], vector(1.043398, 0.0), rtol=0, atol=1e-6)
    assert abs(inner[-1] + 3.084913) < 1e-6
    assert abs(losses[0] - 0.5) < 1e-12 and abs(losses[-1] - 0.544340) < 1e-6
    assert float(taken[-1].norm()) < 1e-9


def test_example_that_recovers():
    """Fact 2: with another Hessian the inner product is nonnegative after 5 steps; neither outcome
    is a rule."""
    stretch, target = vector(1.0, 10.0), vector(0.0, 1.0)
    path, _, inner = repeat_rule2(vector(1.0, 0.5), lambda w: stretch * (w - target), 0.05, 100)
    assert abs(inner[0] + 1.5) < 1e-12
    assert len(path) == 6 and len(inner) == 6
    assert all(value < 0 for value in inner[:5]) and inner[5] >= 0


def test_isotropic_losses_never_recover():
    """Fact 2: with current and memory Hessians that are multiples of the identity no violated start
    recovers."""
    generator = torch.Generator().manual_seed(4)
    w, a = (torch.randn(1000, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    start = ((w - a) * w).sum(-1) < -1e-3
    assert int(start.sum()) > 50
    w, a = w[start], a[start]
    for _ in range(200):
        d, violated = directions(0.7 * (w - a), 1.8 * w)
        assert violated.all()
        w = descend(w, d, 0.1)


# --- fact 3: what does hold is the bound for steps along the memory gradient, transient included --


def test_sgd_bound_with_its_transient():
    """Fact 3: the SGD bound holds at every step; the printed "for s >= 2" drops its transient and
    does not hold."""
    generator = torch.Generator().manual_seed(6)
    h = vector(0.5, 1.0, 1.5, 2.0)
    c, smooth, noise, eta, mu = 0.5, 2.0, 0.3, 0.2, 1.0
    replicas, steps = 4000, 400
    w = torch.full((replicas, 4), 3.0, dtype=torch.float64)
    gaps = []
    for _ in range(steps):
        gaps.append(float((0.5 * w * h * w).sum(-1).mean()))
        kick = (noise / 4) ** 0.5 * torch.randn(
            replicas, 4, generator=generator, dtype=torch.float64
        )
        w = w - eta * (h * w + kick)
    gap = vector(*gaps)

    floor = eta * smooth * noise / (2 * c * mu)
    assert abs(floor - 0.12) < 1e-12
    transient = (1 - eta * c * mu) ** torch.arange(steps, dtype=torch.float64) * (gap[0] - floor)
    assert (gap <= 1.02 * (floor + transient)).all()

    exact = float(0.5 * eta * (noise / 4) * (1 / (2 - eta * h)).sum())
    assert abs(exact - 0.017213) < 1e-6
    assert abs(float(gap[200:].mean()) - exact) < 0.0003

    paper = smooth * noise / (2 * c**2 * mu**2)
    assert abs(paper - 1.2) < 1e-12
    assert gaps[0] == 22.5
    assert abs(gaps[1] - 11.26) < 0.03
    assert gaps[1] > 9 * paper  # Theorem 1 as printed fails here


# --- Theorem 2: the averaged personal models have a limit of their own ----------------------------

H, A = vector(1.0, 3.0)[:, None], vector(0.0, 4.0)[:, None]


def round_of_local_steps(w, steps, lam=1.0, eta=0.1):
    """Local gradient steps of rule 1 (no memory) from the global model: each client's personal
    model."""
    received = w.expand_as(H)
    personal = received
    for _ in range(steps):
        g = H * (personal - A)
        d, violated = directions(
            g, torch.zeros_like(g), personal, received, torch.full((2,), lam, dtype=torch.float64)
        )
        assert not violated.any()
        personal = descend(personal, d, eta)
    return personal


def test_exact_local_solves_minimise_the_moreau_envelope():
    """Theorem 2 as printed does not cover FedMeS: the limit is 2.4, not the average loss's
    minimiser 3."""
    lam = 1.0
    w, errors = torch.zeros(1, dtype=torch.float64), []
    for _ in range(60):
        personal = (H * A + lam * w) / (H + lam)
        w = personal.mean(0)
        errors.append(2.4 - float(w))
    assert abs(float(w) - 2.4) < 1e-12
    torch.testing.assert_close(personal[:, 0], vector(1.2, 3.6), rtol=0, atol=1e-12)
    envelope_gradient = (lam * H / (H + lam) * (w - A)).mean()
    assert abs(float(envelope_gradient)) < 1e-12
    assert abs(float((H * A).sum() / H.sum()) - 3.0) < 1e-12
    torch.testing.assert_close(
        vector(*errors[:4]), vector(0.9, 0.3375, 0.126563, 0.047461), rtol=0, atol=1e-6
    )
    ratios = [after / before for before, after in pairwise(errors[:20])]
    assert all(abs(ratio - 0.375) < 1e-6 for ratio in ratios)


@pytest.mark.slow
def test_many_local_steps_of_rule1_solve_the_local_problem():
    """Theorem 2: rule 1, repeated, is the exact local solve that the envelope's fixed point
    needs."""
    w = torch.zeros(1, dtype=torch.float64)
    for _ in range(22):
        personal = round_of_local_steps(w, 90)
        w = personal.mean(0)
    assert abs(float(w) - 2.4) < 1e-7
    torch.testing.assert_close(personal[:, 0], vector(1.2, 3.6), rtol=0, atol=1e-7)


def test_finite_local_steps_end_between_the_two_minimisers():
    """Theorem 2: with E local steps the fixed points are 3.0, 2.691781 and 2.411084, between 2.4
    and 3."""
    for steps, rounds, expected in ((1, 80, 3.0), (5, 40, 2.691781), (20, 30, 2.411084)):
        w = torch.zeros(1, dtype=torch.float64)
        for _ in range(rounds):
            w = round_of_local_steps(w, steps).mean(0)
        assert abs(float(w) - expected) < 1e-6


def test_ditto_ratio_stays_bounded():
    """Theorem 2 holds for Ditto proper: personal models converge at the rate of an independent
    global solver."""
    generator = torch.Generator().manual_seed(7)
    lam, clients, size = 1.5, 4, 3
    h = 0.5 + 1.5 * torch.rand(clients, size, generator=generator, dtype=torch.float64)
    a = torch.randn(clients, size, generator=generator, dtype=torch.float64)
    w_star = (h * a).sum(0) / h.sum(0)
    v_star = (h * a + lam * w_star) / (h + lam)
    w = torch.full((size,), 5.0, dtype=torch.float64)
    v = w.expand(clients, size)
    first = None
    for _ in range(30):
        w = w - 0.35 * (h * (w - a)).mean(0)
        for _ in range(5):
            v = v - 0.2 * (h * (v - a) + lam * (v - w))
        globally = float((w - w_star).square().sum())
        personally = (v - v_star).square().sum(-1)
        assert (personally / globally < 10).all()
        first = first or (globally, float(personally.max()))
    assert globally < 1e-12 * first[0] and float(personally.max()) < 1e-12 * first[1]
