"""One source of options: the fields, from which flags, help and docs/options.md come."""

from pathlib import Path

import pytest

from fedmes import config
from fedmes.config import docs
from fedmes.config.catalog import options, role_of
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.results import run_dir
from helpers.forked import fedmes as command

PAGE = Path(__file__).parents[2] / "docs/options.md"


def test_the_page_is_made_from_the_fields():
    assert PAGE.read_text(encoding="utf-8") == docs.page()


def test_every_option_says_what_it_means_what_it_changes_and_its_default():
    for option in options().values():
        assert option.description and option.default, option.key
        assert option.role in docs.TITLES, option.key


def test_roles():
    assert role_of("device") == role_of("engine.precision") == "engine"
    assert role_of("knn.theta") == role_of("eval.model") == "evaluation"
    assert role_of("fedmes.lambda") == "method"


def test_flags_and_their_help_are_those_of_the_fields(tmp_path):
    text = " ".join(command("run", "--help", cwd=tmp_path)[1].replace("│", " ").split())
    for option in options().values():
        if option.flag:
            assert option.flag in text
    assert "communication rounds per task; default: by benchmark" in text
    text = command("federation", "up", "--help", cwd=tmp_path)[1]
    assert "--sites" in text and "--clients" not in text and "--engine" not in text


# --- former names ---------------------------------------------------------------------------------

FORMER = [{"told": "block"}, {"told": "all"}, {"task_classes": "block"}, {"task_classes": "all"}]


@pytest.mark.parametrize("content", FORMER)
def test_a_former_name_and_value_mean_the_same(content, tmp_path):
    (key, value), *_ = content.items()
    file = tmp_path / "c.toml"
    file.write_text(f'[eval]\n{key} = "{value}"\n')
    assert config.load(file, {}).eval.task_classes == "all"
    assert config.load(None, {f"eval.{key}": value}).eval.task_classes == "all"
    assert config.load(None, {"eval": content}).eval.task_classes == "all"
    sizes = {"rounds": 1, "epochs": 1, "batch": 1}
    assert Config.model_validate(sizes | {"eval": content}).eval.task_classes == "all"
    assert Config.model_validate(sizes).with_({f"eval.{key}": value}).eval.task_classes == "all"


def test_a_later_value_wins_under_either_name(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('[eval]\ntold = "block"\n')
    assert config.load(file, {"eval.task_classes": "own"}).eval.task_classes == "own"
    file.write_text('[eval]\ntask_classes = "own"\n')
    assert config.load(file, {"eval.told": "block"}).eval.task_classes == "all"


def test_a_directory_with_the_former_name_is_the_same_run(tmp_path):
    new = config.load(None, {"eval.task_classes": "all"})
    text = new.to_toml({"fedmes": "0.1.0"})
    assert 'task_classes = "all"' in text
    (tmp_path / "config.toml").write_text(text.replace('task_classes = "all"', 'told = "block"'))
    stored = run_dir.stored_config(tmp_path)
    assert stored == run_dir.comparable(new)
    assert run_dir.contradictions(stored, new) == []


# --- former defaults ------------------------------------------------------------------------------


def test_a_run_from_before_there_was_a_pull_had_none(tmp_path):
    """It writes down what it takes; a file that somebody wrote leaves it to the default."""
    taken = config.load(None, {"method": "fedmes-plus", "fedmesplus.balance": 3.0})
    content = taken.to_toml({"fedmes": "0.2.0"})
    assert "pull" not in content
    file = tmp_path / "config.toml"
    file.write_text(content)
    assert config.load(file, {}).fedmesplus.pull == 0
    assert config.load(file, {"fedmesplus.pull": 0.1}).fedmesplus.pull == 0.1
    assert run_dir.stored_config(tmp_path)["fedmesplus"]["pull"] == 0
    file.write_text(content.replace("balance = 3.0", "balance = 3.0\npull = 0.01"))
    assert config.load(file, {}).fedmesplus.pull == 0.01
    assert run_dir.stored_config(tmp_path)["fedmesplus"]["pull"] == 0.01
    file.write_text(content.partition("[versions]")[0])
    assert config.load(file, {}).fedmesplus.pull is None


def test_a_run_of_another_method_is_the_same_run_whatever_it_was_told_of_fedmes_plus(tmp_path):
    """As in a comparison, whose options are for all of its methods."""
    asked = config.load(None, {"method": "fedavg", "fedmesplus.balance": 1.0})
    (tmp_path / "config.toml").write_text(asked.to_toml({"fedmes": "0.2.0"}))
    assert run_dir.stored_config(tmp_path) == run_dir.comparable(asked)


def test_a_wrong_value_is_refused_under_the_present_name():
    with pytest.raises(UserError, match=r"eval.task_classes: must be 'own' or 'all', not 'some'"):
        config.load(None, {"eval.told": "some"})


def test_a_benchmarks_options_for_its_network_are_not_for_another():
    own = config.load(None, {"benchmark": "fcil-cifar100-10x10"})
    assert (own.model.name, own.model.stem) == ("resnet18", 3)
    same = config.load(None, {"benchmark": "fcil-cifar100-10x10", "model": "resnet18"})
    assert same.model.stem == 3
    other = config.load(None, {"benchmark": "fcil-cifar100-10x10", "model": "lite0"})
    assert (other.model.name, other.model.stem) == ("lite0", None)
