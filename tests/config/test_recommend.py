"""`--method auto`: which method is taken for which network, and what was asked for goes before."""

import pytest

from fedmes import config
from helpers.forked import fedmes

LITE0 = {"model": "lite0"}


@pytest.mark.parametrize(
    ("asked", "method", "word"),
    [
        ({}, "fedmes-plus", "trained"),
        ({"model": "cnn6"}, "fedmes-plus", "trained"),
        (LITE0, "fedstats", "frozen"),
        ({"model.name": "timm:vit_small_patch16_224"}, "fedstats", "frozen"),
        (LITE0 | {"model.train": "adapters"}, "fedstats", "adapters"),
        (LITE0 | {"model.train": "last:1"}, "fedmes-plus", "more than the head"),
        (LITE0 | {"engine.precision": "bf16"}, "fedmes-plus", "engine.precision=bf16"),
        (LITE0 | {"device": "mps"}, "fedmes-plus", "device=mps"),
        (LITE0 | {"privacy.sample_clip": 1.0}, "fedmes-plus", "privacy.sample_clip"),
        (LITE0 | {"server.robust": "median"}, "fedmes-plus", "server.robust"),
        (LITE0 | {"server.robust": "none"}, "fedstats", "frozen"),
    ],
)
def test_the_network_and_what_sums_cannot_do_decide(asked, method, word):
    found = config.load(None, asked | {"method": "auto"})
    assert found.method == method
    assert found.choice.startswith(f"method: {method} (") and word in found.choice
    assert "\n" not in found.choice


def test_statistics_need_one_round_unless_more_are_asked_for():
    found = config.load(None, LITE0 | {"method": "auto", "benchmark": "split-cifar100"})
    assert (found.rounds, found.epochs, found.model.levels) == (1, 1, 5)
    asked = LITE0 | {"method": "auto", "rounds": 3, "model.levels": 1}
    found = config.load(None, asked)
    assert (found.rounds, found.epochs, found.model.levels) == (3, 1, 1)


def test_adapters_learn_in_the_first_rounds():
    found = config.load(None, LITE0 | {"method": "auto", "model.train": "adapters"})
    assert (found.rounds, found.epochs, found.fedstats.adapt) == (4, 3, 3)


def test_a_method_that_was_asked_for_needs_no_reason(tmp_path):
    assert config.load(None, {"method": "fedavg"}).choice == ""
    file = tmp_path / "c.toml"
    file.write_text('method = "auto"\nmodel = "lite0"\n')
    assert config.load(file, {}).method == "fedstats"
    assert config.load(file, {"method": "fedavg"}).method == "fedavg"


def test_the_command_says_what_it_took_and_the_result_has_its_name(tmp_path):
    sizes = ["--clients", "2", "--tasks", "1", "--rounds", "1", "--epochs", "1"]
    status, _, err = fedmes("run", "--method", "auto", *sizes, "--out", "run", "-q", cwd=tmp_path)
    assert status == 0 and "method: fedmes-plus (a network that is trained" in err
    assert 'method = "fedmes-plus"' in (tmp_path / "run" / "config.toml").read_text()
