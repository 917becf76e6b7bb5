"""Any custom data and any result directory: used, or refused in a line or two."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from PIL import Image

import fedmes
from fedmes import config
from fedmes.cli import render
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import checkpoint, run_dir
from fedmes.scenario.custom import open_custom
from fedmes.scenario.stream import Stream
from helpers.fuzzing import cases, well_behaved

pytestmark = pytest.mark.usefixtures("elsewhere")

# --- custom data -------------------------------------------------------------------------------------


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


@pytest.mark.slow
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


@pytest.mark.slow
@cases(70)
@given(damaged(npz_bytes()))
def test_damaged_arrays(content):
    Path("damaged.npz").write_bytes(content)
    with well_behaved():
        open_custom(Path("damaged.npz"), None, 1).stream(0)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        fedmes.extend(out, more, out=out.parent / "longer")
    elif how == "split":
        Stream.load(out / "seed0/split.json")
    else:
        checkpoint.latest(out)
