"""The user's own data as folders of images."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedmes.config.federation_options import FederationOptions
from fedmes.errors import UserError
from fedmes.scenario.custom import open_site
from helpers.custom_tables import names, opened, refused, rng


def picture(path, mode="L", size=(6, 4), value=None, seed=0):
    """An image file; `size` is width and height, `value` fills it with one grey or colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new(mode, size, value) if value is not None else None
    if image is None:
        shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
        image = Image.fromarray(rng(seed).integers(0, 256, shape).astype(np.uint8))
    image.save(path)
    return path


def folders(
    root, clients=("a", "b"), tasks=("t1", "t2"), classes=("cat", "dog"), train=2, test=1, **options
):
    seed = 0
    for client in clients:
        for task in tasks:
            for label in classes:
                for part, count in (("train", train), ("test", test)):
                    for i in range(count):
                        picture(
                            root / client / task / part / label / f"{i}.png", seed=seed, **options
                        )
                        seed += 1
    return root


def test_folders_become_a_stream(tmp_path):
    root = folders(tmp_path / "data", clients=("site10", "site2"), tasks=("task10", "task2"))
    source = opened(root, rounds=1)
    stream = source.stream(0)
    assert names(stream) == {"site2": ["task2", "task10"], "site10": ["task2", "task10"]}
    assert source.dataset.class_names == ("cat", "dog")
    assert source.dataset.shape == (1, 4, 6)
    assert len(source.dataset.y) == 2 * 2 * 2 * 3
    for client in stream.clients:
        for task in client.tasks:
            assert (len(task.train), len(task.test)) == (4, 2)
            assert source.dataset.y[task.train].tolist() == [0, 0, 1, 1]
            assert source.dataset.y[task.test].tolist() == [0, 1]


def test_every_image_is_where_it_belongs(tmp_path):
    """Each file has one grey of its own, which tells where it came from."""
    values, value = {}, 0
    for client in ("a", "b"):
        for task in ("t1", "t2"):
            for part in ("train", "test"):
                for label in ("cat", "dog"):
                    value += 9
                    picture(tmp_path / client / task / part / label / "i.png", value=value)
                    values[client, task, part, label] = value
    source = opened(tmp_path)
    stream = source.stream(0)
    for client in stream.clients:
        for task in client.tasks:
            for part, rows in (("train", task.train), ("test", task.test)):
                for row in rows:
                    label = source.dataset.class_names[source.dataset.y[row]]
                    assert set(source.dataset.x[row].ravel()) == {
                        values[client.name, task.name, part, label]
                    }


def test_grey_pixels_are_kept(tmp_path):
    root = folders(tmp_path)
    data = opened(root).dataset
    first = np.asarray(Image.open(root / "a" / "t1" / "train" / "cat" / "0.png"))
    assert (data.x.dtype, data.x.shape[1:]) == (np.uint8, (4, 6, 1))
    assert any(np.array_equal(x[..., 0], first) for x in data.x)


def test_colour_pixels_are_kept(tmp_path):
    root = folders(tmp_path, mode="RGB")
    data = opened(root).dataset
    first = np.asarray(Image.open(root / "a" / "t1" / "train" / "cat" / "0.png"))
    assert (data.x.shape[1:], data.shape) == ((4, 6, 3), (3, 4, 6))
    assert any(np.array_equal(x, first) for x in data.x)


def test_grey_among_colour_becomes_colour(tmp_path):
    folders(tmp_path, mode="RGB")
    grey = picture(tmp_path / "a" / "t1" / "train" / "cat" / "grey.png", value=99)
    data = opened(tmp_path).dataset
    assert data.x.shape[1:] == (4, 6, 3)
    assert sum(bool((x == 99).all()) for x in data.x) == 1
    assert grey.exists()


def test_jpeg_files_and_upper_case_suffixes(tmp_path):
    for number, name in enumerate(("a.jpg", "b.jpeg", "c.JPG", "d.PNG")):
        picture(tmp_path / "c" / "t" / "train" / "k" / name, value=50 * number + 20, size=(8, 8))
    picture(tmp_path / "c" / "t" / "test" / "k" / "e.JPEG", value=230, size=(8, 8))
    data = opened(tmp_path).dataset
    assert data.x.shape == (5, 8, 8, 1)
    means = sorted(float(x.mean()) for x in data.x)
    assert all(
        abs(mean - value) <= 2 for mean, value in zip(means, (20, 70, 120, 170, 230), strict=True)
    )


@pytest.mark.parametrize("mode", ["1", "P", "RGBA", "LA", "CMYK"])
def test_other_kinds_of_images(tmp_path, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    for part, value in (("train", 0), ("test", 255)):
        path = tmp_path / "c" / "t" / part / "k" / f"i.{suffix}"
        path.parent.mkdir(parents=True)
        Image.new("L", (8, 8), value).convert(
            "RGB" if mode in ("P", "RGBA", "CMYK") else "L"
        ).convert(mode).save(path)
    source = opened(tmp_path)
    task = source.stream(0).clients[0].tasks[0]
    assert source.dataset.x[task.train[0]].max() <= 2
    assert source.dataset.x[task.test[0]].min() >= 253


def test_what_is_skipped_is_named_with_a_count(tmp_path):
    """Other files, folders of pictures that lie too deep and hidden folders; not what file managers
    leave behind."""
    folders(tmp_path)
    (tmp_path / "README.txt").write_text("about")
    (tmp_path / ".git").mkdir()
    cat = tmp_path / "a" / "t1" / "train" / "cat"
    for name in ("0.xyz", "1.XYZ", "notes", "Thumbs.db", ".DS_Store"):
        (cat / name).write_bytes(b"x")
    picture(cat / "more" / "9.png")
    (tmp_path / "b" / "t2" / "test" / "dog" / "0.dcm").write_bytes(b"x")
    (tmp_path / "b" / ".t0" / "train" / "cat").mkdir(parents=True)
    said = (
        ".git: skipped (hidden folder)",
        "a/t1: 4 skipped (2 .xyz, 1 folder, 1 no suffix)",
        "b/.t0: skipped (hidden folder)",
        "b/t2: 1 skipped (.dcm)",
    )
    with pytest.warns(RuntimeWarning) as warned:
        data = opened(tmp_path).dataset
    assert len(data.y) == 24
    assert data.notes == said
    assert [str(w.message) for w in warned] == [f"{tmp_path}: {'; '.join(said)}"]


@pytest.mark.parametrize("place", ["a/t1/train/cat", "b/t2/test/dog"])
def test_a_class_that_would_vanish_is_an_error(tmp_path, place):
    folders(tmp_path)
    for file in (tmp_path / place).iterdir():
        file.rename(file.with_suffix(".xyz"))
    assert refused(tmp_path).startswith(f"{tmp_path / place}: no picture among its files, ")


def test_mixed_sizes_need_an_image_size(tmp_path):
    folders(tmp_path)
    odd = picture(tmp_path / "b" / "t2" / "train" / "dog" / "9.png", size=(5, 7))
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(odd) in str(error.value)
    assert "5x7" in str(error.value)
    assert "6x4" in str(error.value)
    assert "data.image_size" in str(error.value)
    assert opened(tmp_path, image_size=8).dataset.shape == (1, 8, 8)


def test_image_size_resizes_smoothly_and_only_where_needed(tmp_path):
    picture(tmp_path / "c" / "t" / "train" / "k" / "0.png", size=(8, 8), seed=1)
    picture(tmp_path / "c" / "t" / "test" / "k" / "0.png", size=(16, 32), value=140)
    source = opened(tmp_path, image_size=8)
    task = source.stream(0).clients[0].tasks[0]
    original = np.asarray(Image.open(tmp_path / "c" / "t" / "train" / "k" / "0.png"))
    assert np.array_equal(source.dataset.x[task.train[0], ..., 0], original)
    assert (source.dataset.x[task.test[0]] == 140).all()


def test_no_test_folders_is_a_drawn_split(tmp_path):
    source = opened(folders(tmp_path, train=10, test=0))
    tests = []
    for seed in (0, 1, 0):
        stream = source.stream(seed)
        tests.append([task.test.tolist() for c in stream.clients for task in c.tasks])
        for client in stream.clients:
            for task in client.tasks:
                assert source.dataset.y[task.test].tolist() == [0, 0, 1, 1]
                assert source.dataset.y[task.train].tolist() == [0] * 8 + [1] * 8
    assert tests[0] == tests[2] != tests[1]


def test_clients_with_different_tasks_in_folders(tmp_path):
    folders(tmp_path, clients=("a",), tasks=("1", "2", "11"))
    folders(tmp_path, clients=("b",), tasks=("2",))
    stream = opened(tmp_path, rounds=1).stream(0)
    assert names(stream) == {"a": ["1", "2", "11"], "b": ["2"]}
    assert stream.position.tolist() == [[0, 0], [1, -1], [2, -1]]


def test_statistics_of_folders(tmp_path):
    source = opened(folders(tmp_path, mode="RGB"))
    stream = source.stream(0)
    rows = np.concatenate([task.train for c in stream.clients for task in c.tasks])
    train = source.dataset.x[rows] / 255
    normalisation = source.normalisation(stream)
    np.testing.assert_allclose(normalisation.mean[0], train.mean(axis=(0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(normalisation.std[0], train.std(axis=(0, 1, 2)), rtol=1e-9)


# --- folders that are wrong -----------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["text", "empty", "truncated", "flipped"])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_a_corrupt_image_is_named(tmp_path, damage, suffix):
    folders(tmp_path, size=(40, 40))
    path = picture(tmp_path / "a" / "t1" / "train" / "cat" / f"bad.{suffix}", size=(40, 40))
    whole = path.read_bytes()
    damaged = {
        "text": b"not an image",
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "flipped": whole[:3] + bytes(20) + whole[23:],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{path}: cannot be read as an image")


def test_an_empty_folder(tmp_path):
    assert "no CLIENT folder inside; expected CLIENT/TASK/CLASS/images" in refused(tmp_path)


@pytest.mark.parametrize(
    ("inner", "kind"),
    [("c", "TASK"), ("c/t", "CLASS"), ("c/t/train", "CLASS")],
)
def test_an_empty_folder_further_down(tmp_path, inner, kind):
    folder = tmp_path.joinpath(*inner.split("/"))
    folder.mkdir(parents=True)
    with pytest.raises(UserError) as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{folder}: no {kind} folder inside")


def test_folders_without_images(tmp_path):
    folder = tmp_path / "c" / "t" / "train" / "k"
    folder.mkdir(parents=True)
    assert refused(tmp_path).startswith(
        f"{folder.parents[1]}: has no pictures; expected CLIENT/TASK/CLASS"
    )
    (folder / "a.xyz").write_bytes(b"x")
    assert refused(tmp_path).startswith(
        f"{folder}: no picture among its files, 1 skipped (.xyz); read are .bmp, "
    )


def test_an_unexpected_folder_name(tmp_path):
    folders(tmp_path)
    picture(tmp_path / "b" / "t2" / "valid" / "cat" / "0.png")
    message = refused(tmp_path)
    assert message.startswith(
        f"{tmp_path / 'b' / 't2' / 'valid'}: expected CLIENT/TASK/CLASS/images"
    )


def test_a_level_too_few(tmp_path):
    """CLIENT/train/CLASS instead of CLIENT/TASK/train/CLASS."""
    for part in ("train", "test"):
        picture(tmp_path / "a" / part / "cat" / "0.png")
    assert refused(tmp_path)


def test_classes_without_train_and_test_hold_a_fifth_out(tmp_path):
    """CLIENT/TASK/CLASS, as everybody has it: the same as CLIENT/TASK/train/CLASS alone."""
    folders(tmp_path / "plain", train=10, test=0)
    folders(tmp_path / "named", train=10, test=0)
    for folder in (tmp_path / "plain").glob("*/*/train"):
        for label in folder.iterdir():
            label.rename(folder.parent / label.name)
        folder.rmdir()
    plain = opened(tmp_path / "plain")
    named = opened(tmp_path / "named")
    assert plain.stream(0).sha256() == named.stream(0).sha256()
    assert (plain.dataset.x == named.dataset.x).all()
    assert [len(task.test) for task in plain.stream(0).clients[0].tasks] == [4, 4]


def test_tasks_come_as_a_file_lists_them(tmp_path):
    folders(tmp_path, tasks=("paint", "press", "weld"))
    (tmp_path / "tasks.txt").write_text("weld\n\npaint\npress\nlater\n")
    assert [task.name for task in opened(tmp_path).stream(0).clients[0].tasks] == [
        "weld", "paint", "press"
    ]  # fmt: skip
    (tmp_path / "tasks.txt").write_text("weld\npress\n")
    assert refused(tmp_path).endswith("tasks.txt: does not list task paint")
    (tmp_path / "tasks.txt").write_text("weld\nweld\n")
    assert refused(tmp_path).endswith("tasks.txt: a task is listed twice")


def test_a_task_without_test_images_holds_its_own_fifth_out(tmp_path):
    """Beside tasks that have them, which are left as they are: in a simulation and at a site of
    that name."""
    folders(tmp_path, tasks=("t1",))
    folders(tmp_path, clients=("a",), tasks=("t2",), train=10, test=0)
    source = opened(tmp_path)
    (first, second), _ = (client.tasks for client in source.stream(0).clients)
    assert (len(first.train), len(first.test)) == (4, 2)
    assert source.dataset.y[second.test].tolist() == [0, 0, 1, 1]
    assert source.dataset.y[second.train].tolist() == [0] * 8 + [1] * 8
    assert source.stream(1).clients[0].tasks[1].test.tolist() != second.test.tolist()
    agreed = FederationOptions(classes=["cat", "dog"], shape=[1, 4, 6], mean=[0.5], std=[0.5])
    site = open_site(tmp_path / "a", "a", agreed, None, 1).stream(0).clients[0]
    of_site = [task.test.tolist() for task in site.tasks]
    assert of_site == [task.test.tolist() for task in (first, second)]


def test_a_task_without_training_images(tmp_path):
    folders(tmp_path, tasks=("t1",))
    folders(tmp_path, clients=("b",), tasks=("t2",), train=0)
    assert "client b, task t2 has no training data" in refused(tmp_path)


def test_a_class_that_is_only_tested_in_folders(tmp_path):
    folders(tmp_path)
    picture(tmp_path / "a" / "t1" / "test" / "fox" / "0.png")
    assert (
        "client a, task t1 has test samples of class fox but no training samples of it"
        in refused(tmp_path)
    )
