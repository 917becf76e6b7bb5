"""A method or model of one's own with a mistake in it: written to a file, and refused in two lines."""

import sys
from pathlib import Path
from textwrap import dedent

import pytest

import fedmes
from fedmes.errors import UserError

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 3, "rounds": 2, "epochs": 1, "batch": 8, "stream.frac": 10,
    "synthetic.train": 20, "synthetic.test": 3, "memory": 9, "model": "mlp", "model.width": 6, "device": "cpu",
}  # fmt: skip
ENGINES = ["loop", "stacked"]


@pytest.fixture
def write(tmp_path, monkeypatch):
    """A file in the working directory, with a class `Mine` that has these functions."""
    monkeypatch.chdir(tmp_path)

    def write(body, base="FedAvg", name="mine.py"):
        head = "import torch\nfrom torch import nn\nfrom fedmes.methods import FedAvg, Method, pick\n\n"
        text = f"{head}class Mine({base}):\n" + "".join(
            f"    {line}\n" for line in dedent(body).strip().splitlines()
        )
        Path(name).write_text(text)
        return text

    yield write
    sys.modules.pop("fedmes_user_mine", None)


def refused(engine, **options):
    with pytest.raises(UserError) as error:
        fedmes.run(**TINY | {"engine": engine, "out": "out"} | options)
    assert not Path("out").exists()  # nothing is written
    return str(error.value).splitlines()


def line_of(text, marked):
    """The number of the line that has these words."""
    (found,) = [number for number, line in enumerate(text.splitlines(), 1) if marked in line]
    return found
