"""Noise that keeps its promise: calibrated exactly, drawn once a round, and the same however often
it is asked."""

import math

import mpmath
import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.common.gaussian_mechanism import delta_of, noise_for
from fedmes.config.federation_options import Privacy
from fedmes.engines.flower import privacy
from fedmes.errors import UserError
from fedmes.experiment import simulation
from fedmes.experiment.prepare import prepare

pytestmark = pytest.mark.flower

CASES = [(e, d) for e in (0.001, 0.1, 0.5, 1.0, 8.0, 16.0, 100.0) for d in (1e-12, 1e-5, 1e-2)]


def exact_delta(epsilon, shift):
    """The same profile with fifty digits."""
    epsilon, shift = mpmath.mpf(epsilon), mpmath.mpf(shift)
    above = mpmath.ncdf(shift / 2 - epsilon / shift)
    return above - mpmath.exp(epsilon) * mpmath.ncdf(-shift / 2 - epsilon / shift)


def exact_noise(epsilon, delta):
    """The root of log(delta) in the logarithm of the deviation, by bisection with fifty digits."""
    low, high = mpmath.mpf(-40), mpmath.mpf(40)
    for _ in range(150):
        middle = (low + high) / 2
        too_little = exact_delta(epsilon, mpmath.exp(-middle)) > mpmath.mpf(delta)
        low, high = (middle, high) if too_little else (low, middle)
    return mpmath.exp(high)


@pytest.mark.parametrize(("epsilon", "delta"), CASES)
def test_noise_is_exact(epsilon, delta):
    with mpmath.workdps(50):
        want = exact_noise(epsilon, delta)
        assert abs(noise_for(epsilon, delta) / want - 1) < 1e-9
        assert abs(exact_delta(epsilon, 1 / noise_for(epsilon, delta)) / delta - 1) < 1e-8


@pytest.mark.parametrize(("epsilon", "shift"), [(0.5, 0.3), (1.0, 1.0), (8.0, 2.0)])
def test_the_profile_is_what_privacy_means(epsilon, shift):
    """The most by which any event is likelier under one input than exp(epsilon) times that under
    another."""

    def excess(x):
        return max(0, mpmath.npdf(x, shift, 1) - mpmath.exp(epsilon) * mpmath.npdf(x, 0, 1))

    begins = epsilon / shift + shift / 2  # where the two are equal
    with mpmath.workdps(30):
        want = mpmath.quad(excess, [begins, begins + 5, begins + 10, begins + 40])
    assert delta_of(epsilon, shift) == pytest.approx(float(want), rel=1e-9)


def test_what_was_promised_before():
    """The classical formula, for half of what can change: who asked for epsilon 8 had 18.9."""
    before = math.sqrt(2 * math.log(1.25e5)) / 8  # in units of clip
    assert delta_of(8.0, 2 / before) == pytest.approx(0.15, abs=0.005)
    assert delta_of(18.9, 2 / before) == pytest.approx(1e-5, rel=0.05)
    assert 2 * noise_for(8.0, 1e-5) == pytest.approx(1.2005, abs=1e-4)


def test_rounds_add_up():
    """R rounds are one with sqrt(R) times the shift: what docs/deployment.md says of 10, 25 and 100
    of them."""
    shift = 1 / noise_for(8.0, 1e-5)
    for rounds, epsilon in ((10, 35.6), (25, 69.4), (100, 208.9)):
        assert delta_of(epsilon - 0.1, rounds**0.5 * shift) > 1e-5
        assert delta_of(epsilon + 0.1, rounds**0.5 * shift) < 1e-5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"clip": 1.0, "epsilon": 101.0}, "privacy.epsilon: 101 is not between 0.001 and 100"),
        ({"clip": 1.0, "epsilon": 1e-9}, "privacy.epsilon: 1e-09 is not between"),
        (
            {"clip": 1.0, "epsilon": 1.0, "delta": 0.5},
            "privacy.delta: 0.5 is not between 1e-12 and 0.01",
        ),
        ({"clip": 1.0, "epsilon": 1.0, "delta": 1e-300}, "privacy.delta: 1e-300 is not between"),
    ],
)
def test_nonsense_is_refused(options, says):
    with pytest.raises(UserError, match=says):
        privacy.check(Privacy(**options))


# --- an update ------------------------------------------------------------------------------------


def received():
    return {"w.a": torch.full((40_000,), 3.0), "w.b": torch.zeros(3)}


def upload(value):
    return {"w.a": received()["w.a"], "w.b": torch.tensor([value, 0.0, 0.0])}


@pytest.mark.parametrize(("moved", "kept"), [(0.0, 0.0), (0.5, 0.5), (8.0, 2.0)])
def test_clipping_keeps_short_updates(moved, kept):
    sent = privacy.protected(upload(moved), received(), Privacy(clip=2.0))
    assert torch.equal(sent["w.a"], received()["w.a"])
    assert sent["w.b"].tolist() == pytest.approx([kept, 0.0, 0.0])
    assert privacy.protected(upload(moved), received(), Privacy())["w.b"].tolist() == [
        moved,
        0.0,
        0.0,
    ]


@pytest.mark.parametrize("moved", [1.0, 1e6, float("nan"), float("inf")])
def test_noise_hides_any_two_updates(moved):
    """Its deviation is that for twice the clip; an update that is no number looks like any
    other."""
    options = Privacy(clip=0.1, epsilon=8.0, delta=1e-5)
    sent = privacy.protected(upload(moved), received(), options)
    noise = sent["w.a"].double() - 3.0
    want = 0.2 * noise_for(8.0, 1e-5)
    # six deviations of such an estimate are 2 %
    assert float(noise.std()) == pytest.approx(want, rel=0.03)
    assert abs(float(noise.mean())) < 6 * want / 200
    assert torch.isfinite(sent["w.b"]).all() and sent["w.b"].abs().max() < 6 * want + 0.1
    again = privacy.protected(upload(moved), received(), options)
    assert not torch.equal(sent["w.a"], again["w.a"])


def test_clipping_alone_does_not_hide_that_training_has_failed():
    """So that the server leaves the update out."""
    assert torch.isnan(
        privacy.protected(upload(float("nan")), received(), Privacy(clip=1.0))["w.b"][0]
    )


def test_a_round_that_is_asked_for_again_has_the_same_noise(tmp_path):
    """Also after the site was started anew, and after its task has ended."""
    tiny = {
        "benchmark": "synthetic", "clients": 2, "tasks": 1, "rounds": 2, "epochs": 1, "batch": 8, "method": "fedavg",
        "model.name": "linear", "synthetic.classes": 2, "synthetic.train": 6, "synthetic.test": 2,
        "data.image_size": 4, "privacy.clip": 0.1, "privacy.epsilon": 1.0, "engine.name": "flower",
    }  # fmt: skip
    prepared = prepare(config.load(None, tiny))

    def client():
        return simulation.simulated_client(tmp_path, prepared.config, 0, {"partition-id": 1})

    broadcast = prepared.method.server(client().initial)
    first = client()
    asked = [first.train(0, first.receive(broadcast, {}, 0)).upload]
    asked += [
        again.train(0, again.receive(broadcast, {}, 0)).upload
        for again in (client(), client(), first)
    ]
    first.evaluate(broadcast)
    asked.append(client().train(0, broadcast).upload)
    for sent in asked[1:]:
        assert all(torch.equal(t, asked[0][name]) for name, t in sent.items())
    next_round = client()
    later = next_round.train(1, next_round.receive(broadcast, {}, 0)).upload
    assert not np.array_equal(later["w.head.weight"], asked[0]["w.head.weight"])


def test_a_secure_sum_over_one_client_is_refused_beforehand():
    options = {"benchmark": "synthetic", "engine.name": "flower", "method": "fedavg"}
    options |= {"privacy.secure_aggregation": True, "device": "cpu"}
    assert prepare(config.load(None, options | {"clients": 2})).config.clients == 2
    with pytest.raises(UserError, match="a sum over one client hides nothing"):
        prepare(config.load(None, options | {"clients": 1}))
