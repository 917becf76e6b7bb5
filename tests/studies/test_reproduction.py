"""docs/paper-results.md and docs/beyond.md: every number in their tables is the one in the file it
links to. The studies' pages in results/ are those that the program makes of the runs there."""

import json
import re
from pathlib import Path

import pytest

from fedmes.report import figures
from fedmes.studies import learning_rates, reproduce
from fedmes.studies.definitions import STUDIES
from fedmes.studies.runs import Scope

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = ("paper-results.md", "beyond.md")
CELL = re.compile(r"\[(\.\d+)(?: ± (\.\d+))? / (\.\d+) / (-?\.\d+)\]\[(r\d+)\]")
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
    "cell", CELLS, ids=lambda cell: f"{Path(cell[4]).parent.name}-{cell[5]}{cell[6]}"
)
def test_a_cell_says_what_its_result_says(cell):
    mean, spread, last, forgetting, link, score, alone = cell
    content = json.loads((DOCS / link).read_text(encoding="utf-8"))
    found = content["metrics_nolip" if alone else "metrics"][score]
    accuracy = found["acc_all"]
    assert mean == short(accuracy["mean"], 3)
    assert spread == (short(accuracy["std"], 3) if len(content["seeds"]) > 1 else "")
    assert last == short(found["acc_final"]["mean"], 3)
    assert forgetting == short(found["fr"]["mean"], 2)


@pytest.mark.slow
@pytest.mark.parametrize("study", [name for name in STUDIES if (ROOT / "results" / name).is_dir()])
def test_a_page_is_what_the_program_makes_of_the_runs(study, monkeypatch):
    monkeypatch.chdir(ROOT)
    for module in (reproduce, learning_rates):
        monkeypatch.setattr(module, "replace_text", lambda path, text: None)
    monkeypatch.setattr(figures, "save", lambda figure, folder, name: None)
    (written,) = reproduce.reproduce([Scope(study, Path("results"))], None)
    assert written.text == written.page.read_text(encoding="utf-8")
