"""Readers of the official layouts, on small trees made here; on the real images where
FEDMES_TEST_DATA names them."""

import gzip
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedmes
from fedmes import config
from fedmes.config.benchmarks import BENCHMARKS
from fedmes.data import cache, catalog
from fedmes.data.dataset import Dataset
from fedmes.errors import UserError
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.scenario.source import Source

REAL = os.environ.get("FEDMES_TEST_DATA")
real = pytest.mark.skipif(not REAL, reason="FEDMES_TEST_DATA names no folder with the real images")


def picture(path, value, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(path)


def cifar(root, per_class=3):
    folder = root / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", per_class), ("test", 1)):
        y = np.repeat(np.arange(100), count)
        made[part] = rng.integers(0, 256, (len(y), 3, 32, 32), dtype=np.uint8)
        content = {
            b"data": made[part].reshape(len(y), -1),
            b"fine_labels": y.tolist(),
            b"filenames": [b"a"] * len(y),
        }
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(
        pickle.dumps({b"fine_label_names": [f"c{i}".encode() for i in range(100)]})
    )
    return made


def idx(path, values):
    path.parent.mkdir(exist_ok=True)
    header = struct.pack(f">{values.ndim + 1}I", 0x800 + values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def emnist(root, kind, labels):
    x = (np.arange(len(labels) * 784) % 251).astype(np.uint8).reshape(-1, 28, 28)
    for part in ("train", "test"):
        idx(root / "gzip" / f"emnist-{kind}-{part}-images-idx3-ubyte.gz", x.transpose(0, 2, 1))
        idx(root / "gzip" / f"emnist-{kind}-{part}-labels-idx1-ubyte.gz", labels.astype(np.uint8))
    return x


def core50(root, sessions=11):
    for s in range(1, sessions + 1):
        for o in (1, 2, 50):
            for f in range(5):
                picture(
                    root / f"core50_128x128/s{s}/o{o}/C_{s:02d}_{o:02d}_{f:03d}.png", 10 * s + f, 16
                )


# --- CIFAR-100 ------------------------------------------------------------------------------------


def test_cifar100(tmp_path):
    made = cifar(tmp_path)
    data = catalog.load("cifar100", root=tmp_path)
    assert (data.x.shape, data.train_count, data.shape) == ((400, 32, 32, 3), 300, (3, 32, 32))
    np.testing.assert_array_equal(data.x[:300].transpose(0, 3, 1, 2), made["train"])
    np.testing.assert_array_equal(data.y, [*np.repeat(np.arange(100), 3), *range(100)])
    assert data.class_names[7] == "c7"


def python2_pickle(value):
    """As Python 2 wrote the official files: texts are byte strings, also inside of arrays."""
    if isinstance(value, bytes):
        return b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(python2_pickle, value)) + b"e"
    if isinstance(value, dict):
        return (
            b"}(" + b"".join(python2_pickle(part) for item in value.items() for part in item) + b"u"
        )
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
    dtype = b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(map(python2_pickle, value.shape)) + b"t"
    return empty + b"(K\x01" + shape + dtype + b"\x89" + python2_pickle(value.tobytes()) + b"tb"


def test_cifar100_as_it_is_published(tmp_path):
    made = cifar(tmp_path)
    folder = tmp_path / "cifar-100-python"
    for part, count in (("train", 3), ("test", 1)):
        y = np.repeat(np.arange(100), count).tolist()
        x = made[part].reshape(len(y), -1)
        content = {
            b"filenames": [b"a_s_1.png"] * len(y),
            b"batch_label": b"only one",
            b"fine_labels": y,
            b"data": x,
        }
        (folder / part).write_bytes(b"\x80\x02" + python2_pickle(content) + b".")
    names = [f"c{i}".encode() for i in range(100)]
    (folder / "meta").write_bytes(b"\x80\x02" + python2_pickle({b"fine_label_names": names}) + b".")
    data = catalog.load("cifar100", root=tmp_path)
    np.testing.assert_array_equal(data.x[:300].transpose(0, 3, 1, 2), made["train"])
    np.testing.assert_array_equal(data.y[300:], np.arange(100))
    assert (data.class_names[7], data.notes) == ("c7", ("cifar100: 400 of 60,000 images",))


def test_a_pickle_runs_nothing(tmp_path):
    cifar(tmp_path)

    class Bad:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "cifar-100-python/train").write_bytes(pickle.dumps({b"data": Bad()}))
    with pytest.raises(UserError, match="train: not a pickle of plain data"):
        catalog.load("cifar100", root=tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("damage", ["truncated", "other"])
def test_a_damaged_file_is_named_and_a_repaired_one_read(tmp_path, damage):
    cifar(tmp_path)
    path = tmp_path / "cifar-100-python/test"
    whole = path.read_bytes()
    path.write_bytes(
        whole[:1000] if damage == "truncated" else pickle.dumps({b"data": np.zeros(3)})
    )
    with pytest.raises(UserError, match="cifar-100-python/test: "):
        catalog.load("cifar100", root=tmp_path)
    path.write_bytes(whole)
    assert len(catalog.load("cifar100", root=tmp_path).y) == 400


# --- EMNIST ---------------------------------------------------------------------------------------


def test_emnist_drops_the_two_smallest_classes_and_turns_images(tmp_path):
    labels = np.concatenate([np.repeat(np.arange(62), 5), np.delete(np.arange(62), [19, 45])])
    x = emnist(tmp_path, "byclass", labels)  # the same file twice: twice as many of each
    data = catalog.load("emnist", root=tmp_path)
    assert len(data.class_names) == 60
    assert not {"J", "j"} & set(data.class_names)
    np.testing.assert_array_equal(np.bincount(data.y[: data.train_count]), np.full(60, 10))
    np.testing.assert_array_equal(np.bincount(data.y[data.train_count :]), np.full(60, 2))
    np.testing.assert_array_equal(data.x[0, :, :, 0], x[0])
    assert data.notes and "fewer than 2,000" in data.notes[0]


def test_letters(tmp_path):
    emnist(tmp_path, "letters", np.tile(np.arange(1, 27), 2))
    data = catalog.load("emnist-letters", root=tmp_path)
    assert (len(data.class_names), data.train_count, data.class_names[0]) == (26, 52, "A")
    assert (data.y.min(), data.y.max()) == (0, 25)


def test_a_truncated_archive(tmp_path):
    emnist(tmp_path, "letters", np.arange(1, 27))
    path = tmp_path / "gzip/emnist-letters-test-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for damaged in (whole[:-200], gzip.compress(gzip.decompress(whole)[:-1]), b"", b"no gzip"):
        path.write_bytes(damaged)
        with pytest.raises(
            UserError, match=r"test-images-idx3-ubyte.gz: truncated or damaged .* fetch it again"
        ):
            catalog.load("emnist-letters", root=tmp_path)
    path.write_bytes(whole)
    assert len(catalog.load("emnist-letters", root=tmp_path).y) == 52


# --- CORe50 ---------------------------------------------------------------------------------------


def test_core50(tmp_path):
    core50(tmp_path)
    data = catalog.load("core50", root=tmp_path, image_size=8)
    assert (data.x.shape[1:], len(data.class_names), data.train_count) == (
        (8, 8, 3),
        550,
        11 * 3 * 4,
    )
    assert set(data.y) == {50 * s + o for s in range(11) for o in (0, 1, 49)}
    objects = catalog.load("core50", root=tmp_path, image_size=8, labels="objects")
    assert len(objects.class_names) == 50
    np.testing.assert_array_equal(50 * objects.session + objects.y, data.y)
    assert (data.x[:, 0, 0, 0] // 10 == data.y // 50 + 1).all()
    assert "165 of 164,866 images" in data.notes[0]


def test_a_missing_session(tmp_path):
    core50(tmp_path, sessions=10)
    with pytest.raises(
        UserError, match="s11 of 11 session folders are missing or empty; unpack it again"
    ):
        catalog.load("core50", root=tmp_path)
    (tmp_path / "core50_128x128/s11/o1").mkdir(parents=True)
    with pytest.raises(
        UserError, match="s11 of 11 session folders are missing or empty; unpack it again"
    ):
        catalog.load("core50", root=tmp_path)
    core50(tmp_path)
    assert len(catalog.load("core50", root=tmp_path).y) == 165


# --- MiniImageNet and TinyImageNet ----------------------------------------------------------------


@pytest.mark.parametrize("layout", ["folders", "pickles", "lists"])
def test_miniimagenet(tmp_path, layout):
    folder = tmp_path / "mini-imagenet"
    names = [f"n{i:02d}" for i in range(6)]
    for part, own in (("train", names[:3]), ("val", names[3:5]), ("test", names[5:])):
        if layout == "folders":
            for name in own:
                for i in range(6):
                    picture(folder / part / name / f"{name}_{i}.png", int(name[1:]) * 10 + i)
        elif layout == "pickles":
            folder.mkdir(exist_ok=True)
            x = np.stack(
                [np.full((8, 8, 3), int(n[1:]) * 10 + i, np.uint8) for n in own for i in range(6)]
            )
            rows = {name: list(range(6 * j, 6 * j + 6)) for j, name in enumerate(own)}
            content = pickle.dumps({"image_data": x, "class_dict": rows})
            (folder / f"mini-imagenet-cache-{part}.pkl").write_bytes(content)
        else:
            for name in own:
                for i in range(6):
                    picture(folder / "images" / f"{name}{i}.png", int(name[1:]) * 10 + i)
            lines = [f"{name}{i}.png,{name}" for name in own for i in range(6)]
            (folder / f"{part}.csv").write_text("filename,label\n" + "\n".join(lines) + "\n")
    data = catalog.load("miniimagenet", root=tmp_path, image_size=8)
    assert (data.class_names, data.train_count, data.x.shape) == (tuple(names), 30, (36, 8, 8, 3))
    expected = [10 * c + i for c in range(6) for i in range(5)] + [10 * c + 5 for c in range(6)]
    assert data.x[:, 0, 0, 0].tolist() == expected
    assert "36 of 60,000 images" in data.notes[0]


@pytest.mark.parametrize("named", ["../../../private.png", "/private.png", "sub/val_0.JPEG"])
def test_tinyimagenet_names_no_files_outside(named, tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    picture(root / "train/n1/images/n1_0.JPEG", 1)
    picture(root / "val/images/val_0.JPEG", 2)
    picture(tmp_path / "private.png", 3)
    (root / "val/val_annotations.txt").write_text(f"{named}\tn1\t0\t0\t1\t1\n")
    with pytest.raises(
        UserError, match=r"val_annotations\.txt: names '.*', which is not in images/"
    ):
        catalog.load("tinyimagenet", root=tmp_path)


def test_postscript_in_a_data_set_is_not_run(tmp_path):
    """Pillow would hand it to Ghostscript, whatever the file is called."""
    for i in range(2):
        picture(tmp_path / f"mini-imagenet/a/{i}.jpg", i)
    program = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n(x) run\n%%EOF\n"
    (tmp_path / "mini-imagenet/a/2.jpg").write_text(program)
    with pytest.raises(
        UserError, match=r"2\.jpg: cannot be read as an image \(none of PNG, JPEG\)"
    ):
        catalog.load("miniimagenet", root=tmp_path)


def test_tinyimagenet_and_a_corrupt_picture(tmp_path):
    root = tmp_path / "tiny-imagenet-200"
    for c, name in enumerate(("n1", "n2")):
        for i in range(3):
            picture(root / "train" / name / "images" / f"{name}_{i}.JPEG", 100 * c + i)
        picture(root / "val" / "images" / f"val_{c}.JPEG", 100 * c + 50)
    (root / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn1\t0\t0\t1\t1\nval_1.JPEG\tn2\t0\t0\t1\t1\n"
    )
    data = catalog.load("tinyimagenet", root=tmp_path, image_size=4)
    assert (data.y.tolist(), data.train_count, data.x.shape[1:]) == (
        [0, 0, 0, 1, 1, 1, 0, 1],
        6,
        (4, 4, 3),
    )
    broken = root / "train/n2/images/n2_1.JPEG"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:100])
    with pytest.raises(UserError, match=r"n2_1.JPEG: cannot be read .*; fetch or copy it again"):
        catalog.load("tinyimagenet", root=tmp_path, image_size=4)
    assert len(list((tmp_path / ".fedmes-cache").iterdir())) == 1  # that of before
    broken.write_bytes(whole)
    np.testing.assert_array_equal(
        catalog.load("tinyimagenet", root=tmp_path, image_size=4).x, data.x
    )
    (root / "val/val_annotations.txt").write_text("val_0.JPEG\tn3\n")
    with pytest.raises(UserError, match=r"val_annotations.txt: class n3 has no training images"):
        catalog.load("tinyimagenet", root=tmp_path)


# --- the cache ------------------------------------------------------------------------------------


def test_the_cache_is_used_and_follows_the_files(tmp_path, monkeypatch):
    cifar(tmp_path)
    first = catalog.load("cifar100", root=tmp_path)
    entry = catalog.CATALOG["cifar100"]
    monkeypatch.setitem(catalog.CATALOG, "cifar100", replace(entry, read=None))
    again = catalog.load("cifar100", root=tmp_path)  # nothing is read
    np.testing.assert_array_equal(again.x, first.x)
    assert isinstance(again.x, np.memmap)
    again.x[0] = 0  # in memory only
    np.testing.assert_array_equal(catalog.load("cifar100", root=tmp_path).x, first.x)
    os.utime(tmp_path / "cifar-100-python/train", (1, 1))
    with pytest.raises(TypeError):  # another file, another cache
        catalog.load("cifar100", root=tmp_path)


def test_statistics_are_kept(tmp_path, monkeypatch):
    cifar(tmp_path)
    data = catalog.load("cifar100", root=tmp_path)
    pixels = np.array(data.x[:300], np.float64).reshape(-1, 3) / 255
    monkeypatch.setattr("fedmes.scenario.source.statistics", None)  # nothing is computed again
    kept = Source(catalog.load("cifar100", root=tmp_path), None).normalisation(None)
    np.testing.assert_allclose(kept.mean, [pixels.mean(0)], rtol=1e-12)
    np.testing.assert_allclose(kept.std, [pixels.std(0)], rtol=1e-9)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full, the disk that is always full"
)
@pytest.mark.parametrize("file", ["x.npy", "labels.npz", "about.json"])
def test_no_space_is_left(tmp_path, monkeypatch, file):
    cifar(tmp_path)

    def folder_on_a_full_disk(prefix, dir):
        made = Path(dir) / f"{prefix}x"
        made.mkdir()
        (made / file).symlink_to("/dev/full")
        return str(made)

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match="no space is left for the decoded images, 1 MB"),
    ):
        patch.setattr(cache.tempfile, "mkdtemp", folder_on_a_full_disk)
        catalog.load("cifar100", root=tmp_path)
    assert list((tmp_path / ".fedmes-cache").iterdir()) == []
    assert len(catalog.load("cifar100", root=tmp_path).y) == 400


def test_a_cache_that_was_not_finished_is_never_used(tmp_path):
    """The process dies with everything written but the name."""
    made = cifar(tmp_path)
    dying = (
        "import os, pathlib, sys; from fedmes.data import cache, catalog; cache.os.replace = lambda *_: os._exit(9); "
        "catalog.load('cifar100', root=pathlib.Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", dying, str(tmp_path)]).returncode == 9
    (left,) = (tmp_path / ".fedmes-cache").iterdir()
    assert (left / "x.npy").stat().st_size > 1_000_000
    (left / "x.npy").write_bytes(b"")
    np.testing.assert_array_equal(
        catalog.load("cifar100", root=tmp_path).x[:300].transpose(0, 3, 1, 2), made["train"]
    )


@pytest.mark.parametrize("file", ["x.npy", "labels.npz", "about.json"])
@pytest.mark.parametrize("length", [None, 0, 200])
def test_a_cache_that_was_damaged_is_made_anew(tmp_path, file, length):
    cifar(tmp_path)
    first = np.array(catalog.load("cifar100", root=tmp_path).x)
    (folder,) = (tmp_path / ".fedmes-cache").iterdir()
    if length is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes((folder / file).read_bytes()[:length])
    np.testing.assert_array_equal(catalog.load("cifar100", root=tmp_path).x, first)
    assert (folder / file).stat().st_size > 200
    assert len(list((tmp_path / ".fedmes-cache").iterdir())) == 1


def test_a_folder_that_cannot_be_written_to(tmp_path):
    made = cifar(tmp_path)
    (tmp_path / ".fedmes-cache").write_text("in the way")
    data = catalog.load("cifar100", root=tmp_path)
    np.testing.assert_array_equal(data.x[:300].transpose(0, 3, 1, 2), made["train"])
    assert data.statistics is not None


# --- what is missing, and what is there -----------------------------------------------------------


def test_a_missing_data_set_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    with pytest.raises(
        UserError,
        match=r"cifar100 is not in .*cifar-100-python.*`fedmes data fetch cifar100` gets it from https",
    ):
        fedmes.run(benchmark="split-cifar100", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_too_few_classes(tmp_path, monkeypatch):
    for name in ("n1", "n2"):
        for i in range(2):
            picture(tmp_path / "mini-imagenet" / name / f"{i}.png", i)
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    with pytest.raises(
        UserError,
        match="split-miniimagenet has 10 tasks, but the data that was found has 2 classes",
    ):
        fedmes.run(benchmark="split-miniimagenet", out=tmp_path / "out")


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_benchmark_of_several_sources_runs(tmp_path, monkeypatch, engine):
    """Each source is normalised by itself, in both engines alike."""
    rng = np.random.default_rng(1)

    def small(name, image_size, **_):
        classes, dark = {"cifar100": (20, 0), "miniimagenet": (20, 100), "tinyimagenet": (40, 180)}[
            name
        ]
        y = np.concatenate([np.repeat(np.arange(classes), 6), np.arange(classes)])
        x = rng.integers(0, 60, (len(y), image_size, image_size, 3)).astype(np.uint8) + np.uint8(
            dark
        )
        return Dataset(x, y, tuple(map(str, range(classes))), 6 * classes)

    monkeypatch.setattr(catalog, "load", small)
    prepared = prepare(
        config.load(None, {
            "benchmark": "fusion-40", "clients": 2, "tasks": 2, "rounds": 1, "epochs": 1, "model": "mlp",
            "model.width": 8, "data.image_size": 4, "stream.frac": 3, "engine": engine, "engine.precision": "float64",
        })
    )  # fmt: skip
    plan, scale = (
        prepared.federations[0].plans[0],
        prepared.samples.scale(prepared.federations[0].normalisation),
    )
    assert scale[0].shape == (3, 3)
    import torch

    x = prepared.samples.take(torch.arange(6 * 80), scale)
    source = prepared.source.dataset.source[: 6 * 80]
    for number in range(3):
        assert x[source == number].mean().abs() < 1e-6
        assert x[source == number].std() == pytest.approx(1, abs=1e-3)
    if engine == "stacked":
        from fedmes.engines.stacked.batches import Batches

        rows = torch.from_numpy(plan.rows[:4])
        stacked, _, _ = Batches(prepared.samples, prepared.federations, "seen").samples(
            rows[None, None]
        )
        torch.testing.assert_close(stacked[0, 0], prepared.samples.take(rows, scale))
    result = runner.execute(prepared, tmp_path / "out")
    assert np.isfinite(result.acc[0, :, -1]).all()


def test_fedmes_data_says_what_is_there(tmp_path, capsys):
    from typer import Exit

    from fedmes.cli import data as commands

    emnist(tmp_path, "letters", np.arange(1, 27))
    commands.list_data(tmp_path)
    said = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert " found " in said["emnist-letters"] and "not found" in said["cifar100"]
    commands.check("emnist-letters", tmp_path)
    assert (
        "emnist-letters: 52 of 145,600 images; 26 classes, 26 + 26 images"
        in capsys.readouterr().out
    )
    with pytest.raises(Exit) as status:
        commands.check("miniimagenet", tmp_path)
    assert status.value.exit_code == 1
    assert "there is no official download" in capsys.readouterr().out
    with pytest.raises(UserError, match="did you mean 'cifar100'"):
        commands.check("cifar10", tmp_path)


# --- real images, where there are any -------------------------------------------------------------


@real
@pytest.mark.parametrize(
    ("name", "train", "test", "mean", "std"),
    [
        ("cifar100", 500, 100, (0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
        # its smallest classes have fewer than 2,000 images
        ("emnist", None, None, (0.174,), (0.332,)),
        ("miniimagenet", 500, 100, None, None),
    ],
)
def test_real_counts_and_statistics(name, train, test, mean, std):
    there(name)
    data = catalog.load(name, root=Path(REAL), image_size=None if mean else 32)
    labels = data.y[: data.train_count], data.y[data.train_count :]
    assert [len(np.bincount(y)) for y in labels] == [60 if name == "emnist" else 100] * 2
    if train is not None and not data.notes:
        assert [set(np.bincount(y)) for y in labels] == [{train}, {test}]
    if mean is not None:
        np.testing.assert_allclose(data.statistics.mean[0], mean, atol=1e-3)
        np.testing.assert_allclose(data.statistics.std[0], std, atol=1e-3)


@real
@pytest.mark.parametrize(
    "benchmark", [name for name, b in BENCHMARKS.items() if set(b.data) & set(catalog.CATALOG)]
)
def test_real_benchmarks_run(benchmark, tmp_path, monkeypatch):
    there(*BENCHMARKS[benchmark].data)
    monkeypatch.setenv("FEDMES_DATA", REAL)
    small = {"width": 20} if BENCHMARKS[benchmark].defaults["model"]["name"] == "resnet18" else {}
    result = fedmes.run(
        benchmark=benchmark, clients=2, tasks=2, rounds=1, epochs=1, stream={"frac": 10, "test_frac": 0.05},
        memory=20, data={"image_size": 28 if "emnist" in BENCHMARKS[benchmark].data[0] else 32}, out=tmp_path / "out",
        model=small,
    )  # fmt: skip
    assert np.isfinite(result.acc[0, :, -1]).all()


def there(*names):
    for name in names:
        if not catalog.find(name, Path(REAL)):
            pytest.skip(f"{name} is not in the folder that FEDMES_TEST_DATA names")
