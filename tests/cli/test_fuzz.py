"""Whatever a user hands over, a command succeeds or says in a line or two what is wrong: no
traceback, no hang.

The cases are the same each time. Longer, with others: FEDMES_FUZZ=20 python -m pytest
tests/cli/test_fuzz.py
"""

import os
import shutil
import signal
import tempfile
import typing
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from PIL import Image

from fedmes import config
from fedmes.cli import render
from fedmes.config.options import Config, Section
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint, run_dir
from fedmes.scenario.own import open_own
from fedmes.scenario.stream import Stream
from helpers.waiting import HANGS

LONGER = int(os.environ.get("FEDMES_FUZZ", "0"))


def cases(count):
    return settings(
        max_examples=count * max(1, LONGER),
        derandomize=not LONGER,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@contextmanager
def well_behaved():
    """A user error is fine if it can be read; anything else is not."""

    def stop(*_):
        raise TimeoutError(f"still busy after {HANGS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except UserError as error:
        assert 1 <= len(str(error).strip().splitlines()) <= 2, error
        assert len(str(error)) < 2000, error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True, scope="module")
def elsewhere():
    """Nothing is written where the tests lie."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        yield
        os.chdir(before)


# --- configurations -------------------------------------------------------------------------------

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


def fields():
    for name, field in Config.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            for part, inner in field.annotation.model_fields.items():
                yield f"{name}.{inner.alias or part}", words(inner.annotation)
        else:
            yield name, words(field.annotation)


FIELDS = dict(fields())


def values(key):
    fitting, numbers, odd = (
        MORE.get(key, FIELDS[key]),
        some.sampled_from(NUMBERS),
        some.sampled_from(ODD),
    )
    return some.one_of(*([some.sampled_from(fitting)] * 2 if fitting else []), numbers, odd)


def options(keys, most):
    key = some.sampled_from(sorted(keys))
    pair = key.flatmap(lambda key: some.tuples(some.just(key), values(key)))
    return some.lists(pair, max_size=most).map(dict)


@cases(300)
@given(
    options(FIELDS, 6),
    some.dictionaries(some.text(max_size=8), some.sampled_from([*NUMBERS, *ODD]), max_size=1),
)
def test_any_options_are_validated(known, unknown):
    with well_behaved():
        made = config.load(None, known | unknown)
        assert config.load(None, config.loading._read_toml(stored(made))) is not None


def stored(made):
    path = Path("config.toml")
    path.write_text(made.to_toml({}), encoding="utf-8")
    return path


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


# --- own data -------------------------------------------------------------------------------------

N = 16
GOOD = {
    "x": np.random.RandomState(0).rand(N, 3).astype(np.float32),
    "y": np.tile([0, 1], N // 2),
    "client": np.repeat(["a", "b"], N // 2),
    "task": np.tile(np.repeat([0, 1], N // 4), 2),
    "split": np.tile([0, 0, 1, 1], N // 4),
}
DTYPES = ["u1", "i1", "i8", "u8", "f2", "f4", "f8", "c8", "?", "U3", "S3", "M8[s]", "O", "f4,i4"]


@some.composite
def changed_arrays(draw):
    """Good data in which something is not as it should be, or is unusual."""
    made = dict(GOOD)
    for _ in range(draw(some.sampled_from([1, 1, 2]))):
        name = draw(some.sampled_from(sorted(GOOD)))
        value = made.get(name, GOOD[name])
        change = draw(
            some.sampled_from(["gone", "dtype", "shape", "length", "values", "one value", "other"])
        )
        if change == "gone":
            made.pop(name, None)
            continue
        if change == "dtype":
            try:
                value = value.astype(draw(some.sampled_from(DTYPES)))
            except (ValueError, TypeError):
                continue
        elif change == "shape":
            shape = draw(
                some.sampled_from(
                    [
                        (N, 1),
                        (N, 2, 2),
                        (N, 2, 2, 3),
                        (N, 9, 8, 1),
                        (0,),
                        (0, 3),
                        (),
                        (N, 0),
                        (1, N),
                    ]
                )
            )
            value = np.resize(value, shape)
        elif change == "length":
            value = value[: draw(some.integers(0, N))]
        elif change == "values":
            pool = draw(
                some.sampled_from(
                    [
                        [0],
                        [0, 1, 2],
                        [-1, 5],
                        [2**62, -(2**62)],
                        [0, np.nan],
                        [np.inf, 1],
                        [1e38, -1e38],
                    ]
                )
            )
            value = np.resize(np.array(pool), value.shape)
        elif change == "one value":
            value = value.copy()
            if value.size:
                value.flat[draw(some.integers(0, value.size - 1))] = draw(
                    some.sampled_from([0, 1, 7])
                )
        else:
            value = draw(
                some.sampled_from(
                    [np.array(["", "é/..", "a\n"] * 6)[:N], np.arange(N), np.zeros(N, "U0")]
                )
            )
        made[name] = value
    return made


def learn(path, image_size=None):
    numbers = {
        "data.path": str(path),
        "rounds": 1,
        "epochs": 1,
        "model": "linear",
        "data.image_size": image_size,
    }
    made = config.load(None, {key: value for key, value in numbers.items() if value is not None})
    with tempfile.TemporaryDirectory() as folder:
        runner.execute(prepare(made), Path(folder) / "out")


@cases(90)
@given(changed_arrays())
def test_any_arrays(made):
    np.savez("own.npz", **made, allow_pickle=True)
    with well_behaved():
        learn(Path("own.npz"))


@some.composite
def damaged(draw, content):
    """Bytes with a part gone, changed, doubled or put in."""
    at, length = (
        draw(some.integers(0, len(content))),
        draw(some.sampled_from([0, 1, 8, len(content)])),
    )
    new = draw(
        some.one_of(some.just(b""), some.binary(min_size=1, max_size=8), some.just(content[:50]))
    )
    return content[:at] + new + content[at + length :]


def npz_bytes():
    with tempfile.TemporaryFile() as file:
        np.savez(file, **GOOD)
        file.seek(0)
        return file.read()


@cases(70)
@given(damaged(npz_bytes()))
def test_damaged_arrays(content):
    Path("damaged.npz").write_bytes(content)
    with well_behaved():
        open_own(Path("damaged.npz"), None, 1).stream(0)


def png_bytes(mode, size, kind="PNG"):
    with tempfile.TemporaryFile() as file:
        Image.new(mode, size, 1).save(file, kind)
        file.seek(0)
        return file.read()


PICTURE = some.one_of(
    some.builds(
        png_bytes,
        some.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
        some.sampled_from([(8, 8), (9, 4)]),
    ),
    damaged(png_bytes("RGB", (8, 8))),
    *(
        damaged(png_bytes(mode, (8, 8), kind))
        for kind in ("BMP", "GIF", "PPM", "TIFF", "WEBP")
        for mode in ("L", "RGB")
    ),
    damaged(png_bytes("I;16", (8, 8), "TIFF")),
    some.binary(max_size=20),
)


PLACES = [
    f"{client}/{task}/{part}/{label}/{i}.png"
    for client in "ab" for task in "12" for part in ("train", "test") for label in "xy" for i in "01"
]  # fmt: skip
ODD_PLACES = [
    "a/1/x.png",
    "a/other/1.png",
    "a/1/valid/x/1.png",
    "b",
    "c/1/train/x/1.png",
    "a/1/train/z/1.png",
    "a/.x/1",
]


@cases(60)
@given(
    some.dictionaries(
        some.sampled_from(PLACES + ODD_PLACES), some.one_of(some.none(), PICTURE), max_size=3
    ),
    some.sampled_from([None, None, 8, 1, 10**9]),
)
def test_any_folders(changes, image_size):
    """Good folders in which some pictures are others, missing, or where none belongs."""
    files = dict.fromkeys(PLACES, png_bytes("RGB", (8, 8))) | changes
    with tempfile.TemporaryDirectory() as folder, well_behaved():
        for name, content in files.items():
            path = Path(folder) / name
            if (
                content is not None
                and not path.is_dir()
                and not any(parent.is_file() for parent in path.parents)
            ):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        learn(folder, image_size)


# --- result directories ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run, one that stopped after a round, and data that could follow."""
    folder = tmp_path_factory.mktemp("runs")
    first, more = folder / "own.npz", folder / "more.npz"
    np.savez(first, **GOOD)
    np.savez(more, **(GOOD | {"task": GOOD["task"] + 2}))
    numbers = {
        "data.path": str(first),
        "rounds": 1,
        "epochs": 1,
        "model": "linear",
        "checkpoint.every": "round",
    }
    prepared = prepare(config.load(None, numbers))
    runner.execute(prepared, folder / "finished")

    def enough(now):
        if now.rounds_done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.execute(prepared, folder / "stopped", enough)
    return folder


NAMES = [
    "config.toml",
    "result.json",
    "accuracy.npz",
    "rounds.csv",
    "seed0/split.json",
    "checkpoint",
    ".lock",
]
NAMES += [
    f"checkpoint/round-00000{n}.{kind}"
    for n in (1, 2)
    for kind in ("safetensors", "json", "sha256")
]


@cases(130)
@given(some.data())
def test_any_result_directory(runs, data):
    state = data.draw(some.sampled_from(["finished", "stopped"]))
    with tempfile.TemporaryDirectory() as folder, well_behaved():
        out = Path(folder) / "out"
        shutil.copytree(runs / state, out)
        for name in data.draw(some.lists(some.sampled_from(NAMES), min_size=1, max_size=2)):
            path = out / name
            change = data.draw(
                some.sampled_from(["remove", "folder", "damage", "damage", "damage", "garbage"])
            )
            if change == "remove":
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            elif change == "folder" and not path.exists():
                path.mkdir(parents=True)
            elif path.is_file():
                garbage = some.one_of(
                    some.binary(max_size=30),
                    some.sampled_from([b"[]", b"{}", b"[" * 9999, b"x = 1"]),
                )
                path.write_bytes(
                    data.draw(garbage if change == "garbage" else damaged(path.read_bytes()))
                )
        use(
            out,
            runs / "more.npz",
            data.draw(some.sampled_from(["load", "resume", "again", "extend", "split", "state"])),
        )


def use(out, more, how):
    if how == "load":
        render.run_report(run_dir.load(out))
    elif how == "resume":
        if (stored := run_dir.stored_config(out)) is not None:
            prepared = prepare(config.stored(stored, out))
            if not run_dir.finished(out, prepared.config):
                runner.execute(prepared, out, resume=True)
    elif how == "again":
        made = config.load(out / "config.toml", {})
        runner.execute(prepare(made), out)
    elif how == "extend":
        runner.extend(out, more, out=out.parent / "longer")
    elif how == "split":
        Stream.load(out / "seed0/split.json")
    else:
        checkpoint.latest(out)
