"""What can be predicted: arrays, pictures, files and folders of them."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from PIL import Image

import fedmes
from fedmes import config
from fedmes.data import digits as digits_data
from fedmes.errors import UserError
from fedmes.prediction import picture
from fedmes.prediction.client import Client, predict_files
from fedmes.results import client_dir


def test_pictures_arrays_paths_and_lists_are_the_same_samples(digits_run, tmp_path):
    client = fedmes.load_client(digits_run / "seed0/client0")
    images = digits_data.load().x[:3]
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(tmp_path / f"{i}.png")
    np.save(tmp_path / "all.npy", images)
    np.savez(tmp_path / "all.npz", x=images[..., 0], y=np.zeros(3))
    pictures = [Image.fromarray(image[..., 0]) for image in images]
    files = [tmp_path / f"{i}.png" for i in range(3)]
    for given in (
        images, images[..., 0], pictures, files, [str(f) for f in files], [images[0], pictures[1], files[2]],
        tmp_path / "all.npy", tmp_path / "all.npz", [p.convert("RGB") for p in pictures],
        np.repeat(images, 3, axis=3),
    ):  # fmt: skip
        np.testing.assert_array_equal(client.samples(given), images)
    for one in (images[0], images[0, ..., 0], pictures[0], files[0]):
        np.testing.assert_array_equal(client.samples(one), images[:1])


def test_other_sizes_and_colours_as_in_reading_data(tmp_path):
    """A folder of mixed pictures read as training data, and each of them given to predict: the same
    pixels."""
    from fedmes.data.custom import read_folders

    rng = np.random.RandomState(0)
    folder = tmp_path / "data/site/task/train/kind"
    folder.mkdir(parents=True)
    Image.fromarray(rng.randint(0, 256, (20, 30, 3), np.uint8)).save(folder / "a.png")
    Image.fromarray(rng.randint(0, 256, (16, 16), np.uint8)).save(folder / "b.png")
    Image.fromarray(rng.randint(0, 256, (12, 12, 4), np.uint8)).save(folder / "c.png")
    Image.fromarray(rng.randint(0, 256, (40, 8, 3), np.uint8)).save(folder / "d.jpg")
    table = read_folders(tmp_path / "data", 12)
    client = object.__new__(Client)
    client.shape, client.voters, client.columns = (3, 12, 12), table.dataset, ()
    client.config = config.load(None, {})
    client.normalisation = client_dir.Normalisation(((0.0,) * 3,), ((1.0,) * 3,))
    np.testing.assert_array_equal(client.samples(sorted(folder.iterdir())), table.dataset.x)
    client.shape = (1, 12, 12)
    assert client.samples(folder / "a.png").shape == (1, 12, 12, 1)
    for wrong in (np.zeros((2, 12, 12, 5), np.uint8), np.zeros((1, 2, 12, 12, 1), np.uint8)):
        with pytest.raises(UserError, match="samples have shape"):
            client.samples(wrong)
    client.shape = (2, 12, 12)
    with pytest.raises(UserError, match="not learned from pictures"):
        client.samples(folder / "a.png")


def test_many_files_come_in_order_and_bad_ones_lose_no_others(digits_run, tmp_path, monkeypatch):
    for module in ("client", "inputs"):
        monkeypatch.setattr(f"fedmes.prediction.{module}.CHUNK", 7)  # several blocks
    client = fedmes.load_client(digits_run / "seed0/client0")
    images = digits_data.load().x[:30]
    for i, image in enumerate(images):
        folder = tmp_path / f"{i // 10}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(image[..., 0]).save(folder / f"{i:02}.png")
    (tmp_path / "1/15.png").write_bytes((tmp_path / "1/15.png").read_bytes()[:60])
    (tmp_path / "1/notes.txt").write_text("no picture")
    (tmp_path / "1/._16.png").write_text("no picture either")
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    names, labels, reasons = [], [], {}
    paths = [
        tmp_path / "2",
        tmp_path / "1",
        tmp_path / "objects.npy",
        tmp_path / "absent.png",
        tmp_path / "0/00.png",
    ]
    for item, prediction in predict_files(client, paths):
        if prediction is None:
            reasons[item.name.rpartition("/")[2]] = item.reason
        else:
            names.append(int(item.name[-6:-4]))
            labels.append(prediction.label)
    assert names == [*range(20, 30), *range(10, 15), *range(16, 20), 0]
    assert labels == client.predict(images[names]).labels
    assert list(reasons) == ["15.png", "1", "objects.npy", "absent.png"]
    assert reasons["1"] == "1 skipped (.txt)"
    assert "no such file" in reasons["absent.png"]


def test_a_picture_shows_the_image_and_its_neighbours(digits_run, tmp_path):
    client = fedmes.load_client(digits_run / "seed0/client0")
    np.save(tmp_path / "two.npy", client.voters.x[:2])
    found = list(predict_files(client, [tmp_path / "two.npy"]))
    (ax,) = picture.draw(client, found).axes
    images = {}
    for image in ax.images:
        left, _, _, top = image.get_extent()
        images[round(left, 6), round(top, 6)] = image.get_array()
    frames = {frame.get_xy(): to_hex(frame.get_edgecolor()) for frame in ax.patches}
    for row, (item, prediction) in enumerate(found):
        top = 0.4 + picture.HEIGHT * row
        places = [(picture.LEFT + i * picture.STEP, top) for i in range(len(prediction.neighbours))]
        itself = images[0, round(top, 6)]
        np.testing.assert_allclose(itself * 255, item.sample[..., 0], atol=1e-4)
        np.testing.assert_array_equal(
            itself, images[round(picture.LEFT, 6), round(top, 6)]
        )  # its own nearest neighbour
        same = [near.label == prediction.label for near in prediction.neighbours]
        assert [frames[place] for place in places] == [
            picture.SAME if alike else picture.OTHER for alike in same
        ]
        written = [text.get_text() for text in ax.texts]
        assert f"{prediction.label}   {prediction.probability:.3f}" in written
