"""Custom data in a few lines."""

import numpy as np
import pytest
from PIL import Image

from fedmes.cli import app as cli
from fedmes.scenario.summary import summary


def pictures(root, sizes=((4, 4),)):
    for site, months in (("berlin", ("Jan", "Feb")), ("rome", ("Feb",))):
        for month in months:
            for label in ("good", "scratch"):
                folder = root / site / month / label
                folder.mkdir(parents=True)
                for i in range(5):
                    Image.new("L", sizes[i % len(sizes)]).save(folder / f"{i}.png")


def test_folders(tmp_path):
    pictures(tmp_path)
    assert list(summary(tmp_path)) == [
        f"{tmp_path}: 2 clients, 2 tasks, 2 classes, 30 samples",
        "samples of 1x4x4 values (uint8)",
        "berlin: 2 tasks, in this order",
        "  0 Jan: 8 for training, 2 for testing; good, scratch",
        "  1 Feb: 8 for training, 2 for testing; good, scratch",
        "rome: 1 task, in this order",
        "  0 Feb: 8 for training, 2 for testing; good, scratch",
    ]


def test_several_sizes_are_said_and_counted_all_the_same(tmp_path):
    pictures(tmp_path, sizes=((4, 4), (6, 4)))
    lines = list(summary(tmp_path))
    assert lines[0].endswith("2 clients, 2 tasks, 2 classes, 30 samples")
    assert lines[1].startswith("images of several sizes (")
    assert "6x4 pixels" in lines[1]


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedmes", "data", "check", "own.npz"])
    y = np.arange(20) % 2
    x = np.zeros((20, 3), np.float32)
    np.savez("own.npz", x=x, y=y, client=np.zeros(20, int), task=y)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    assert capsys.readouterr().out.splitlines() == [
        "own.npz: 1 client, 2 tasks, 2 classes, 20 samples",
        "samples of 3 values (float32)",
        "0: 2 tasks, in this order",
        "  0 0: 8 for training, 2 for testing; 0",
        "  1 1: 8 for training, 2 for testing; 1",
    ]
