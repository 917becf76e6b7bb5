"""Readers of the official layouts, on small trees made here."""

import gzip
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from fedmes.data import catalog
from fedmes.errors import UserError
from helpers.published_layouts import cifar, emnist, picture


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
