"""Any options and any configuration file: validated, run, or refused in a line or two."""

import tempfile
import typing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from fedmes import config
from fedmes.cli import render
from fedmes.config.catalog import options as all_options
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from helpers.fuzzing import cases, well_behaved

pytestmark = pytest.mark.usefixtures("elsewhere")

NUMBERS = [
    0,
    1,
    2,
    3,
    5,
    -1,
    10**9,
    10**12,
    2**70,
    0.0,
    0.5,
    1.5,
    -0.5,
    1e-300,
    1e300,
    float("nan"),
    float("inf"),
]
ODD = [
    "",
    "auto",
    "x",
    "all",
    "é\n",
    "a" * 300,
    True,
    False,
    None,
    [],
    [0],
    [1, 2],
    [-1],
    ["a"],
    {},
    {"a": 1},
    {"": None},
]
MORE = {
    "method": [
        "fedavg",
        "fedmes",
        "fedweit",
        "fedrep",
        "knn-per",
        "flwf-2t",
        "joint",
        "local-er",
        "ditto",
        "fedmess",
    ],
    "model.name": ["linear", "mlp", "cnn2", "auto", "x.py:Net", "nowhere/x.py:Net", ":"],
    "stream.partition": [
        "dirichlet:0",
        "dirichlet:.0",
        "dirichlet:0.001",
        "dirichlet:0.5",
        "dirichlet:1000000",
        "dirichlet:",
    ],
    "knn.features": ["fc", "conv", "block:0", "block:7"],
}


def words(annotation):
    """The words that a field takes."""
    if typing.get_origin(annotation) is typing.Literal:
        return list(typing.get_args(annotation))
    return [
        word
        for part in typing.get_args(annotation)
        if not isinstance(part, str)
        for word in words(part)
    ]


FIELDS = {key: words(option.annotation) for key, option in all_options().items()}


def values(key):
    fitting, numbers, odd = (
        MORE.get(key, FIELDS[key]),
        some.sampled_from(NUMBERS),
        some.sampled_from(ODD),
    )
    return some.one_of(*([some.sampled_from(fitting)] * 2 if fitting else []), numbers, odd)


def stored(made):
    path = Path("config.toml")
    path.write_text(made.to_toml({}), encoding="utf-8")
    return path


def options(keys, most):
    key = some.sampled_from(sorted(keys))
    pair = key.flatmap(lambda key: some.tuples(some.just(key), values(key)))
    return some.lists(pair, max_size=most).map(dict)


@pytest.mark.slow
@cases(300)
@given(
    options(FIELDS, 6),
    some.dictionaries(some.text(max_size=8), some.sampled_from([*NUMBERS, *ODD]), max_size=1),
)
def test_any_options_are_validated(known, unknown):
    with well_behaved():
        made = config.load(None, known | unknown)
        assert config.load(None, config.loading._read_toml(stored(made))) is not None


@pytest.mark.slow
@cases(60)
@given(some.one_of(some.text(max_size=60), some.binary(max_size=60)))
def test_any_configuration_file(content):
    path = Path("any.toml")
    path.write_bytes(
        content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    )
    with well_behaved():
        config.load(path, {})


TINY = {
    "benchmark": "synthetic", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 5, "memory.size": 4,
    "model.name": "linear", "synthetic.train": 8, "synthetic.test": 2, "synthetic.classes": 2, "stream.frac": 4,
    "data.image_size": 8,
}  # fmt: skip
# compilers, GPUs, data that is not there
SLOW = {"engine.compile", "device", "benchmark", "model.stem", "data.path"}


def accepted(key, value):
    """By itself: what would be refused at once tells nothing about a run."""
    try:
        config.load(None, TINY | {key: value})
    except UserError:
        return False
    return True


@pytest.mark.slow
@cases(110)
@given(options(FIELDS.keys() - SLOW, 12), some.sampled_from(MORE["method"]))
def test_tiny_runs(chosen, method):
    chosen = (
        TINY
        | {"method": method}
        | {key: value for key, value in chosen.items() if accepted(key, value)}
    )
    if chosen.get("engine.precision") == "bf16":
        return  # not every CPU has it
    with tempfile.TemporaryDirectory() as folder, well_behaved():
        prepared = prepare(config.load(None, chosen))
        if (
            sum(plan.work.epochs * plan.longest for f in prepared.federations for plan in f.plans)
            < 10**4
        ):
            result = runner.execute(prepared, Path(folder) / "out")
            render.run_report(run_dir.load(Path(folder) / "out"))
            assert result.acc.shape == run_dir.load(Path(folder) / "out").acc.shape
