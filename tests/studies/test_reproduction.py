"""docs/paper-results.md and docs/beyond.md: every number in their tables is the one in the file it
links to."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("paper-results.md", "beyond.md")
CELL = re.compile(r"\[(\.\d+) ± (\.\d+) / (-?\.\d+)\]\[(r\d+)\]")
TARGET = re.compile(r'^\[(r\d+)\]: (\S+) "(oblivious|masked)(, network alone)?"$', re.M)


def cells(page):
    """Every number of a page with the file that it is from and which number of it that is."""
    text = (DOCS / page).read_text(encoding="utf-8")
    targets = {key: target for key, *target in TARGET.findall(text)}
    return [(*numbers, *targets[key]) for *numbers, key in CELL.findall(text)]


CELLS = [cell for page in PAGES for cell in cells(page)]


def short(value, digits):
    return f"{value:z.{digits}f}".replace("0.", ".", 1)  # z: no -.00


@pytest.mark.parametrize("page", PAGES)
def test_there_are_cells(page):
    assert len(cells(page)) > 20


@pytest.mark.parametrize(
    "cell", CELLS, ids=lambda cell: f"{Path(cell[3]).parent.name}-{cell[4]}{cell[5]}"
)
def test_a_cell_says_what_its_result_says(cell):
    mean, spread, forgetting, link, score, alone = cell
    content = json.loads((DOCS / link).read_text(encoding="utf-8"))
    found = content["metrics_nolip" if alone else "metrics"][score]
    accuracy = found["acc_all"]
    assert (mean, spread) == (short(accuracy["mean"], 3), short(accuracy["std"], 3))
    assert forgetting == short(found["fr"]["mean"], 2)
