"""`fedmes predict`: for a reader, as JSON, and when there is nothing to say."""

import json
import shutil
import sys
from collections import Counter

import pytest
from PIL import Image

import fedmes
from fedmes.cli import app as cli
from fedmes.data import digits as digits_data
from helpers.client_directories import edit


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """The program as it is started, in this process: (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedmes", "predict", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for i, image in enumerate(digits_data.load().x[:30]):
        Image.fromarray(image[..., 0]).save(folder / f"{i:02}.png")
    return folder


NO_PICTURE = "cannot be read as an image (none of PNG, JPEG, BMP, GIF, PPM, TIFF, WEBP)"


def test_command_for_few_images(command, digits_run, images, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    client = digits_run / "seed0/client0"
    few = [images / "00.png", tmp_path / "bad.png", images / "01.png"]
    status, out, err = command(client, *few, "--show", "why.png")
    assert status == 0
    assert err == f"skipped: {tmp_path}/bad.png: {NO_PICTURE}\n"
    said = fedmes.load_client(client).predict([images / "00.png", images / "01.png"])
    lines = out.splitlines()
    assert "network alone" in lines[0]
    assert "memory alone" in lines[0]
    for line, one in zip(lines[1:], said, strict=True):
        assert f" {one.label} " in line
        assert f"{one.probability:.3f}" in line
        assert f"{one.neighbours[0].label} ({one.neighbours[0].distance:.3g})" in line
    with Image.open(tmp_path / "why.png") as shown:
        assert shown.format == "PNG"


def test_command_as_json_has_everything(command, digits_run, images, tmp_path):
    (tmp_path / "bad.png").write_text("no picture")
    client = digits_run / "seed0/client0"
    status, out, _ = command(client, images, tmp_path / "bad.png", "--json", "--task", "1")
    content = json.loads(out)
    assert status == 0
    assert set(content) == {"client", "task", "images", "skipped"}
    assert content["task"] == 1
    assert content["client"] == fedmes.load_client(client).as_dict()
    assert content["skipped"] == [{"image": f"{tmp_path}/bad.png", "reason": NO_PICTURE}]
    said = fedmes.load_client(client).predict(digits_data.load().x[:30], task=1)
    assert [image.pop("image") for image in content["images"]] == [
        f"{images}/{i:02}.png" for i in range(30)
    ]
    assert content["images"] == [one.as_dict() for one in said]
    assert set(content["images"][0]) == {
        "label", "probability", "network", "memory", "neighbours", "probabilities", "unlike"
    }  # fmt: skip
    assert set(content["images"][0]["neighbours"][0]) == {"index", "label", "task", "distance"}


def test_command_sums_up_many_images(command, digits_run, images):
    client = digits_run / "seed0/client0"
    status, out, err = command(client, images)
    assert (status, err) == (0, "")
    said = fedmes.load_client(client).predict(digits_data.load().x[:30])
    table = [line.split() for line in out.partition("\n\n")[0].splitlines()[1:]]
    assert {label: int(count) for label, count, _ in table} == Counter(said.labels)
    agree = (said.network.argmax(1) == said.memory.argmax(1)).sum()
    assert f"network and memory agree about {agree} of 30" in out


def test_clients_by_name(command, digits_run, images, tmp_path):
    edit_name(tmp_path / "run", digits_run, ["berlin", "rome"])
    status, by_name, err = command(tmp_path / "run", images, "--client", "rome", "--json")
    assert (status, err) == (0, "")
    assert json.loads(by_name)["client"]["name"] == "rome"
    _, in_seed, _ = command(tmp_path / "run/seed0", images, "--client", "rome", "--json")
    assert in_seed == by_name
    known = "there are seed0/client0 berlin, seed0/client1 rome\n"
    for arguments, words in (
        ([tmp_path / "run", images], f"run: say which client with --client NAME; {known}"),
        ([tmp_path / "run", images, "--client", "x"], f"run has no client x; {known}"),
        ([tmp_path / "run/seed0/client0", images, "--client", "x"], "is a client directory itself"),
    ):
        status, out, err = command(*arguments)
        assert (status, out) == (2, "")
        assert words in err


def edit_name(folder, run, names):
    for k, name in enumerate(names):
        shutil.copytree(run / f"seed0/client{k}", folder / f"seed0/client{k}")
        edit(folder / f"seed0/client{k}", lambda about, name=name: about.update(client=name))


def test_command_with_nothing_to_say(command, digits_run, tmp_path):
    client = digits_run / "seed0/client0"
    (tmp_path / "bad.png").write_text("no picture")
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ([client, tmp_path / "bad.png"], "error: nothing there could be read"),
        ([client, tmp_path / "empty"], "no images there"),
        ([client, tmp_path / "bad.png", "--show", "why.jpg"], "needed is the name of a .png file"),
        ([client, tmp_path / "bad.png", "--show", "absent/why.png"], "cannot be written there"),
        ([tmp_path, tmp_path / "bad.png"], "holds no client.json"),
    ):
        status, out, err = command(*arguments)
        assert (status, out) == (2, "")
        assert words in err
        assert "Traceback" not in err
