"""Options that change nothing are said in a warning, and only these."""

import warnings

import pytest

import fedmes

TINY = {"benchmark": "synthetic", "clients": 2, "tasks": 1, "rounds": 1, "epochs": 1}
TINY |= {"model": "linear", "synthetic.train": 8, "device": "cpu"}


def warned(run, *args, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(*args, **TINY | options)
    return [str(each.message) for each in caught if "changes nothing" in str(each.message)]


@pytest.mark.parametrize(
    ("method", "other"), [("fedavg", "fedprox.mu"), ("fedmes-plus", "fedmes.lambda")]
)
def test_an_option_of_another_method(method, other, tmp_path):
    said = [f"{other}: method {method} has no such option, so 3.0 changes nothing"]
    assert warned(fedmes.run, method=method, out=tmp_path, **{other: 3.0}) == said


@pytest.mark.parametrize("method", ["fedprox", "fedmes", "der++", "fedstats", "flwf-2t"])
def test_an_option_of_the_method_itself(method, tmp_path):
    own = {
        "fedprox": {"fedprox.mu": 3.0},
        "fedmes": {"fedmes.lambda": "rescaled"},
        "der++": {"derpp.alpha": 0.3},
        "fedstats": {"fedstats.prior": 4.0},
        "flwf-2t": {"flwf2t.temp": 3.0},
    }
    assert warned(fedmes.run, method=method, out=tmp_path, **own[method]) == []


def test_a_comparison_has_the_options_of_all_its_methods(tmp_path):
    methods = ["fedavg", "fedprox"]
    assert warned(fedmes.compare, methods, out=tmp_path, **{"fedprox.mu": 3.0}) == []
