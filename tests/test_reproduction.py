"""docs/reproduction.md: every number in its tables is the one in the file it links to."""

import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "reproduction.md"
CELL = re.compile(r'\[(\.\d+) ± (\.\d+) / (-?\.\d+)\]\(([^ )]+) "(oblivious|masked)(, network alone)?"\)')
CELLS = CELL.findall(PAGE.read_text(encoding="utf-8"))


def short(value, digits):
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def test_there_are_cells():
    assert len(CELLS) > 20


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{Path(cell[3]).parent.name}-{cell[4]}{cell[5]}")
def test_a_cell_says_what_its_result_says(cell):
    mean, spread, forgetting, link, score, alone = cell
    content = json.loads((PAGE.parent / link).read_text(encoding="utf-8"))
    found = content["metrics_nolip" if alone else "metrics"][score]
    accuracy = found["acc_all"]
    assert (mean, spread) == (short(accuracy["mean"], 3), short(accuracy["std"], 3))
    assert forgetting == short(found["fr"]["mean"], 2)
