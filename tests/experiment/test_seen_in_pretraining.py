"""An ImageNet network on a part of ImageNet: everybody who sees the score reads why it is not
fair."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmes.cli import app as cli
from fedmes.models.efficientnet_lite import EfficientNetLite0

NOTE = "split-miniimagenet with lite0: its classes were seen in pretraining: not a fair score"
SMALL = [
    "--benchmark", "split-miniimagenet", "--model", "lite0", "--clients", "2", "--tasks", "1",
    "--rounds", "1", "--epochs", "1", "--memory", "4", "--device", "cpu",
    "--set", "data.image_size=8", "--set", "model.size=32", "--set", "stream.frac=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def miniimagenet(tmp_path, monkeypatch, short_lite0):
    """Six images of each of its 100 classes, and weights as somebody may have them in a file."""
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mini-imagenet"
    folder.mkdir()
    rng = np.random.RandomState(0)
    for part, classes in (("train", range(64)), ("val", range(64, 80)), ("test", range(80, 100))):
        x = rng.randint(0, 256, (6 * len(classes), 8, 8, 3)).astype(np.uint8)
        rows = {f"n{c:02d}": list(range(6 * j, 6 * j + 6)) for j, c in enumerate(classes)}
        content = pickle.dumps({"image_data": x, "class_dict": rows})
        (folder / f"mini-imagenet-cache-{part}.pkl").write_bytes(content)
    torch.save(EfficientNetLite0().state_dict(), "weights.pth")


def run(capsys, *words):
    cli.app([*words], standalone_mode=False)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_a_warning_and_a_note_wherever_the_score_is_shown(capsys):
    given = [*SMALL, "--set", "model.weights=weights.pth"]
    with pytest.warns(RuntimeWarning, match=NOTE):
        said = run(capsys, "run", *given, "--out", "run")
    assert f"note: {NOTE}" in said
    assert json.loads(Path("run/result.json").read_text())["notes"][0] == NOTE
    run(capsys, "report", "run")
    assert NOTE in Path("report.html").read_text()
    with pytest.warns(RuntimeWarning, match=NOTE):
        said = run(capsys, "compare", "--methods", "fedavg,fedmes", *given, "--out", "both")
    assert f"note: {NOTE}" in said


@pytest.mark.slow
def test_no_note_where_nothing_was_seen(capsys):
    said = run(capsys, "run", *SMALL, "--set", "model.weights=none", "--out", "run")
    assert "pretraining" not in said
    assert "note: miniimagenet: 600 of 60,000 images" in said
