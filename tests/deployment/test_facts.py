"""What sites say about their data, and the configuration that is made of it."""

import tomllib

import numpy as np
import pytest
from PIL import Image

from fedmes import config
from fedmes.deployment import facts, site
from fedmes.errors import UserError
from fedmes.experiment.prepare import agreement
from helpers.forked import fedmes


def draw(folder, rng, count, size, channels=None):
    folder.mkdir(parents=True)
    for i in range(count):
        shape = (*size, channels) if channels else size
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(folder / f"{i}.png")


@pytest.fixture
def data(tmp_path):
    """Two sites; the second month of one has no `test` folder."""
    rng = np.random.default_rng(0)
    months = {
        "north": {"2025-01": ("bolt", "nut"), "2025-02": ("axle", "nut")},
        "south": {"2025-01": ("gear", "bolt")},
    }
    for name, tasks in months.items():
        for task, labels in tasks.items():
            for label in labels:
                draw(tmp_path / "data" / name / task / "train" / label, rng, 5, (4, 6))
                if (name, task) != ("north", "2025-02"):
                    draw(tmp_path / "data" / name / task / "test" / label, rng, 2, (4, 6))
    return tmp_path / "data"


def written(tmp_path, data, *names, **options):
    paths = []
    for name in names:
        paths.append(tmp_path / f"{name}.toml")
        facts.facts_of(name, data / name, **options).write(paths[-1])
    return paths


def test_facts_of_a_site(tmp_path, data):
    (path,) = written(tmp_path, data, "north")
    found = facts.read(path)
    assert found == facts.facts_of("north", data / "north")
    assert [task.model_dump() for task in found.tasks] == [
        {"name": "2025-01", "classes": ["bolt", "nut"], "train": 10, "test": 4},
        # a fifth is held out
        {"name": "2025-02", "classes": ["axle", "nut"], "train": 8, "test": 2},
    ]
    assert (found.samples, found.shape, found.image_size) == ("uint8", [1, 4, 6], None)
    assert found.classes == ["bolt", "nut", "axle"]
    assert found.pixels.count == 18 * 4 * 6
    first, *tasks = found.describe().splitlines()
    assert first.startswith(
        "2 tasks in this order, 3 classes; 18 samples to learn from and 6 to test with, of 1x4x6, "
    )
    assert tasks == ["  2025-01     10 + 4  bolt, nut", "  2025-02      8 + 2  axle, nut"]


def test_a_federation_agrees_on_what_one_machine_would_compute(tmp_path, data):
    for label in ("axle", "nut"):  # or what is held out would depend on the numbers of classes
        draw(data / "north/2025-02/test" / label, np.random.default_rng(3), 1, (4, 6))
    paths = written(tmp_path, data, "north", "south")
    made = facts.federation_config(paths, {"method": "fedavg", "rounds": 3})
    everything = agreement(config.load(None, {"data.path": str(data)})).federation
    assert made.federation.sites == ["north", "south"]
    assert made.federation.classes == ["bolt", "nut", "axle", "gear"]
    assert made.federation.shape == everything.shape == [1, 4, 6]
    assert (made.federation.mean, made.federation.std) == (everything.mean, everything.std)
    assert (made.method, made.rounds, made.tasks) == ("fedavg", 3, 10)
    (tmp_path / "config.toml").write_text(made.asked_toml())
    assert config.load(tmp_path / "config.toml", {}) == made


def test_grey_beside_colours(tmp_path, data):
    rng = np.random.default_rng(1)
    draw(data / "east/t/train/bolt", rng, 5, (4, 6), channels=3)
    grey, colour = written(tmp_path, data, "south", "east")
    agreed = facts.federation_config([grey, colour], {}).federation
    assert agreed.shape == [3, 4, 6]
    known = [facts.read(path).pixels for path in (grey, colour)]
    blue = (known[0].total[0] + known[1].total[2]) / (known[0].count + known[1].count) / 255
    assert agreed.mean[2] == pytest.approx(blue, abs=1e-15)


def test_images_of_several_sizes(tmp_path, data):
    draw(data / "south/2025-02/train/bolt", np.random.default_rng(2), 5, (8, 8))
    north, south = written(tmp_path, data, "north", "south")
    assert facts.read(south).shape == [1, 0, 0]
    assert "of several sizes\n" in facts.read(south).describe()
    with pytest.raises(UserError, match=r"south.toml: images of several sizes; agree on a size"):
        facts.federation_config([north, south], {})
    resized = written(tmp_path, data, "north", "south", image_size=8)
    made = facts.federation_config(resized, {})
    assert (made.federation.shape, made.data.image_size) == ([1, 8, 8], 8)
    assert len(made.federation.mean) == 1
    with pytest.raises(UserError, match=r"samples are 1x8x8, in .*north.toml 1x4x6"):
        written(tmp_path, data, "north")
        facts.federation_config([north, south], {})


def test_a_pretrained_network_says_its_size_and_normalises_itself(tmp_path, data):
    draw(data / "south/2025-02/train/bolt", np.random.default_rng(2), 5, (8, 8))
    paths = written(tmp_path, data, "north", "south")
    made = facts.federation_config(paths, {"model": "lite0", "model.size": 32})
    assert (made.federation.shape, made.federation.mean) == ([1, 32, 32], [])


def test_vectors_and_arrays(tmp_path):
    labels = np.array(["a", "b"] * 5)
    where = {"y": labels, "client": np.zeros(10, int), "task": np.zeros(10, int)}
    np.savez(tmp_path / "x.npz", x=np.zeros((10, 7), np.float32), **where)
    found = facts.facts_of("lab", tmp_path / "x.npz")
    assert (found.samples, found.shape, found.pixels) == ("float32", [7], None)
    with pytest.raises(UserError, match="have one size"):
        facts.facts_of("lab", tmp_path / "x.npz", 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("fedmes-site-facts-1", "another-1"), "not the facts of a site, .*format: "),
        (("[1, 4, 6]", "[4, 6]"), "channels, height, width; or one length"),
        (("[1, 4, 6]", "[3, 4, 6]"), "one sum for each channel"),
        (('"uint8"', '"float32"'), "sums are of images of one size"),
        (("count = 432", "count = 0"), "pixels.count: Input should be greater than 0"),
        (("[[tasks]]", "[[tasks"), "not the facts of a site"),
    ],
)
def test_what_is_no_such_file(tmp_path, data, change, says):
    (path,) = written(tmp_path, data, "north")
    assert change[0] in path.read_text()
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(UserError, match=says):
        facts.read(path)


def test_every_site_has_its_own_name(tmp_path, data):
    (path,) = written(tmp_path, data, "north")
    with pytest.raises(UserError, match="a site named north, as in"):
        facts.federation_config([path, path], {})
    with pytest.raises(UserError, match="cannot be read"):
        facts.federation_config([path, tmp_path / "nowhere.toml"], {})


@pytest.mark.slow
@pytest.mark.flower
def test_commands(tmp_path, data):
    for name in ("north", "south"):
        status, out, err = fedmes("site", "init", name, "--data", f"data/{name}", cwd=tmp_path)
        assert (status, err) == (0, "")
        assert f"\n{tmp_path / name / 'site-facts.toml'}\n" in out
    before = (tmp_path / "north/site-facts.toml").read_text()
    status, out, _ = fedmes("site", "facts", "north", "--image-size", "8", cwd=tmp_path)
    assert status == 0 and "of 1x8x8, mean" in out
    assert (tmp_path / "north/site-facts.toml").read_text() != before
    fedmes("site", "facts", "north", cwd=tmp_path)
    files = ["north/site-facts.toml", "south/site-facts.toml"]
    status, out, err = fedmes("federation", "config", *files, "--set", "rounds=2", cwd=tmp_path)
    assert (status, err) == (0, "")
    assert tomllib.loads(out)["rounds"] == 2
    agreed = tomllib.loads(out)["federation"]
    assert agreed["classes"] == ["bolt", "nut", "axle", "gear"]
    assert agreed["keys"] == [site.fingerprint(tmp_path / name) for name in ("north", "south")]
    status, out, err = fedmes("federation", "config", "north/site.toml", cwd=tmp_path)
    assert (status, out) == (2, "") and err.startswith("error: north/site.toml: not the facts")
