"""docs/reproduction.md and docs/beyond.md: every number in their tables is the one in the file it links to."""

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("reproduction.md", "beyond.md")
CELL = re.compile(r'\[(\.\d+) ± (\.\d+) / (-?\.\d+)\]\(([^ )]+) "(oblivious|masked)(, network alone)?"\)')
CELLS = [cell for page in PAGES for cell in CELL.findall((DOCS / page).read_text(encoding="utf-8"))]


def short(value, digits):
    return f"{value:z.{digits}f}".replace("0.", ".", 1)  # z: no -.00


@pytest.mark.parametrize("page", PAGES)
def test_there_are_cells(page):
    assert len(CELL.findall((DOCS / page).read_text(encoding="utf-8"))) > 20


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{Path(cell[3]).parent.name}-{cell[4]}{cell[5]}")
def test_a_cell_says_what_its_result_says(cell):
    mean, spread, forgetting, link, score, alone = cell
    content = json.loads((DOCS / link).read_text(encoding="utf-8"))
    found = content["metrics_nolip" if alone else "metrics"][score]
    accuracy = found["acc_all"]
    assert (mean, spread) == (short(accuracy["mean"], 3), short(accuracy["std"], 3))
    assert forgetting == short(found["fr"]["mean"], 2)
