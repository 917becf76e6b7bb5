"""`fedmes evaluate`: labelled folders and files, counted by hand."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

import fedmes
from fedmes.cli import app as cli
from fedmes.data import digits as digits_data
from fedmes.errors import UserError
from fedmes.prediction.evaluation import evaluate


@pytest.fixture
def client(digits_run):
    return fedmes.load_client(digits_run / "seed0/client0")


@pytest.fixture
def arrays(tmp_path):
    data = digits_data.load()
    np.savez(tmp_path / "own.npz", x=data.x[:200], y=data.y[:200])
    return tmp_path / "own.npz"


def test_a_file_counted_by_hand(client, arrays):
    data = digits_data.load()
    found = evaluate(client, arrays)
    said = np.array(client.predict(data.x[:200]).labels)
    labels = data.y[:200].astype(str)
    assert found.samples == 200
    assert found.accuracy() == (said == labels).mean()
    for label in found.labels:
        chosen = labels == label
        assert found.accuracy((label,)) == (said[chosen] == label).mean()
        for predicted in found.said:
            count = found.counts[found.labels.index(label), found.said.index(predicted)]
            assert count == (chosen & (said == predicted)).sum()
    met = client.as_dict()["classes"]
    assert found.not_met == [str(c) for c in range(10) if str(c) not in met]
    assert sorted(sum(found.tasks, ())) == sorted(met)
    for names in found.tasks:
        chosen = np.isin(labels, names)
        assert found.accuracy(names) == (said == labels)[chosen].mean()


def test_folders_are_the_labels(client, tmp_path):
    data = digits_data.load()
    for i in range(30):
        folder = tmp_path / "checked" / "week1" / f"{data.y[i]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.x[i, ..., 0]).save(folder / f"{i}.png")
    (folder / "bad.png").write_text("no picture")
    np.savez(tmp_path / "same.npz", x=data.x[:30], y=data.y[:30].astype(str))
    by_folder = evaluate(client, tmp_path / "checked")
    by_file = evaluate(client, tmp_path / "same.npz")
    assert by_folder.counts.tolist() == by_file.counts.tolist()
    assert [name for name, _ in by_folder.skipped] == [str(folder / "bad.png")]
    Image.fromarray(data.x[0, ..., 0]).save(tmp_path / "checked" / "loose.png")
    with pytest.raises(UserError, match="lies in no folder named as its class"):
        evaluate(client, tmp_path / "checked")


def test_command(digits_run, client, arrays, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["fedmes", "evaluate", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code, *capsys.readouterr()

    directory = digits_run / "seed0/client0"
    found = evaluate(client, arrays)
    status, out, err = call(directory, arrays, "--out", "report")
    assert (status, err) == (0, "")
    assert f"accuracy {found.accuracy():.3f} of 200 samples, no task id" in out
    assert "cannot predict: " + ", ".join(found.not_met) in out
    lines = (tmp_path / "report/confusion.csv").read_text().splitlines()
    assert lines[0] == "label," + ",".join(found.said)
    assert lines[1] == "0," + ",".join(map(str, found.counts[0]))
    with Image.open(tmp_path / "report/confusion.png") as picture:
        assert picture.format == "PNG"
    status, out, err = call(directory, arrays, "--json")
    assert json.loads(out) == found.as_dict()
    (tmp_path / "empty").mkdir()
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 8, 8, 1), np.uint8))
    for path, words in (
        ("absent", "there is no such file or folder"),
        ("empty", "no labelled samples there that could be read"),
        ("x.npz", "has no array y; needed are x and y"),
    ):
        status, out, err = call(directory, path)
        assert (status, out) == (2, "")
        assert words in err


def test_a_client_with_fewer_tasks_than_others(tmp_path):
    """It is evaluated on its own tasks, and asked for no other."""
    rng = np.random.default_rng(0)
    client = np.repeat(["long", "short"], [60, 20])
    y = np.concatenate([np.repeat(np.arange(6), 10), np.repeat([0, 1], 10)])
    x = rng.normal(size=(80, 6)) + 3 * np.eye(6)[y]
    np.savez(tmp_path / "uneven.npz", x=x.astype("f"), y=y, client=client, task=y // 2)
    fedmes.run(data=tmp_path / "uneven.npz", rounds=1, epochs=1, out=tmp_path / "run")
    np.savez(tmp_path / "labelled.npz", x=x.astype("f"), y=y)
    tasks = {"long": [["0", "1"], ["2", "3"], ["4", "5"]], "short": [["0", "1"]]}
    for number, (name, classes) in enumerate(tasks.items()):
        client = fedmes.load_client(tmp_path / f"run/seed0/client{number}")
        assert client.name == name
        found = evaluate(client, tmp_path / "labelled.npz")
        assert [task["classes"] for task in found.as_dict()["tasks"]] == classes
        assert found.accuracy(()) is None
    with pytest.raises(UserError, match="this client has tasks 0 to 0, not 1"):
        client.predict(x, task=1)
