"""The accounts that sites keep themselves, and what the server does when a budget is spent."""

import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes import config
from fedmes.common.gaussian_mechanism import epsilon_of, noise_for
from fedmes.engines.flower.roster import Roster
from fedmes.errors import UserError
from fedmes.experiment import simulation
from fedmes.experiment.prepare import prepare
from fedmes.methods.dp_sgd import simulated_noise, unpredictable_noise
from fedmes.results import checkpoint, status
from helpers.flower_runs import TINY, flower, loop

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

SMALL = TINY | {"method": "local-er", "engine.precision": "float64"}
SAMPLES = {"privacy.sample_clip": 0.5, "privacy.noise_multiplier": 3.0}
UPDATES = {"method": "fedavg", "privacy.clip": 0.1, "privacy.epsilon": 1.0}


def rounds_of(count):
    """The epsilon of so many noised updates, each with epsilon 1."""
    return epsilon_of(count * noise_for(1.0, 1e-5) ** -2, 1e-5)


@pytest.mark.slow
def test_sites_train_and_count_as_one_process_does(tmp_path):
    here = loop(tmp_path / "loop", SMALL | SAMPLES)
    there = flower(tmp_path / "flower", SMALL | SAMPLES)
    assert there.privacy == here.privacy
    assert [row["epsilon_sample"] for row in there.rounds] == [
        row["epsilon_sample"] for row in here.rounds
    ]
    assert [row["loss"] for row in there.rounds] == pytest.approx(
        [row["loss"] for row in here.rounds]
    )


@pytest.mark.slow
def test_updates_add_up_and_a_budget_ends_the_run(tmp_path):
    budget = (rounds_of(3) + rounds_of(4)) / 2
    result = flower(tmp_path / "out", SMALL | UPDATES | {"privacy.budget": budget})
    assert result.privacy["epsilon"] == {"site": [[pytest.approx(rounds_of(3))] * 3]}
    says = f"privacy.budget: {budget:g}, and another round would exceed it"
    assert result.stopped == f"stopped early after round 3 of 4: {says}"
    sites = status.read(tmp_path / "out").sites
    assert [site.epsilon for site in sites] == [{"site": pytest.approx(rounds_of(3))}] * 3


def client_of(directory, options):
    prepared = prepare(config.load(None, SMALL | options | {"engine.name": "flower"}))

    def client():
        return simulation.simulated_client(directory, prepared.config, 0, {"partition-id": 1})

    def asked(g):
        site = client()
        broadcast = prepared.method.server(site.initial)
        return site.train(g, site.receive(broadcast, {}, 0)).facts

    return client, asked


def test_a_site_counts_what_left_it_once(tmp_path):
    """Also if it is asked again, and each time by a new process."""
    _, asked = client_of(tmp_path, UPDATES)
    found = [asked(g).work.epsilon["site"] for g in (0, 0, 1, 1, 1, 2)]
    assert found == pytest.approx([rounds_of(n) for n in (1, 1, 2, 2, 2, 3)])


def test_a_site_refuses_what_its_budget_does_not_allow(tmp_path):
    """Whatever the server thinks of it."""
    _, asked = client_of(tmp_path, UPDATES | {"privacy.budget": rounds_of(2) + 0.01})
    assert [asked(g).spent for g in (0, 1)] == [False, True]
    with pytest.raises(UserError, match=r"another round would make it"):
        asked(2)
    assert asked(1).spent  # what it has sent, it sends again


def test_the_rounds_of_older_sites_count(tmp_path):
    client, asked = client_of(tmp_path, UPDATES)
    asked(0), asked(1)
    folder = client().directory
    tensors, about = checkpoint.latest(folder)
    older = {name: t for name, t in tensors.items() if not name.startswith("ledger.")}
    checkpoint.save(folder, about["saves"] + 1, older, about | {"saves": about["saves"] + 1})
    assert client().ledger.epsilon()["site"] == pytest.approx(rounds_of(2))


def test_noise_repeats_in_simulations_alone(tmp_path):
    client, _ = client_of(tmp_path, SAMPLES)
    site = client()
    assert site.method.dp_sgd.draw is simulated_noise
    parts = ("name", "directory", "method", "initial", "site", "save_predictor")
    real = type(site)(*(getattr(site, part) for part in parts), scheduled=False)
    assert real.method.dp_sgd.draw is unpredictable_noise


def test_real_sites_go_on_without_each_other():
    """A simulation ends with the first budget that is spent."""
    options = {"privacy.clip": 1.0, "privacy.epsilon": 1.0, "privacy.budget": 2.0, "clients": 2}
    real = {"federation.sites": ["a", "b"], "federation.classes": ["x"], "federation.shape": [4]}
    for more, spent in (({}, True), (real, False)):
        roster = Roster(config.load(None, options | more))
        roster.nodes, roster.names = {0: 10, 1: 11}, {0: "a", 1: "b"}
        assert not roster.spent
        roster.spenders.add(1)
        assert bool(roster.spent) == spent
        assert roster.sites_left_out["b"] == "its privacy budget is spent"
        roster.spenders.add(0)
        assert roster.spent == "privacy.budget: 2, and another round would exceed it"


def test_what_is_saved_without_noise_is_what_it_was(tmp_path):
    client, asked = client_of(tmp_path, {"method": "fedavg"})
    assert asked(0).work.epsilon == {}
    tensors, _ = checkpoint.latest(client().directory)
    assert all(not name.startswith("ledger.") for name in tensors)
    assert all(torch.isfinite(t).all() for t in tensors.values())
