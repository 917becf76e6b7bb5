"""docs/leaderboard.md: it is what the program makes of results/, every number is the one in the file
that its row links to, and a click on a head sorts."""

import importlib.util
import json
import re
from pathlib import Path

from fedmes.methods import METHODS
from helpers.browser import IN_BROWSER

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/leaderboard.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| \[([^\]]+)\]\(\.\./(results/\S+)/result\.json\) +\|(.*)\|$", re.M)
ORDER = [
    (score, key) for score in ("oblivious", "masked") for key in ("acc_all", "acc_final", "fr")
]


def test_the_page_is_what_the_program_makes_of_the_results(monkeypatch):
    monkeypatch.chdir(ROOT)
    spec = importlib.util.spec_from_file_location("leaderboard", ROOT / "docs/leaderboard.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == PAGE, "python docs/leaderboard.py"


def test_a_row_says_what_its_result_says():
    rows = ROW.findall(PAGE)
    assert len(rows) > 40
    for method, directory, cells in rows:
        result = json.loads((ROOT / directory / "result.json").read_text(encoding="utf-8"))
        *scores, up, down, seconds, _, command = (cell.strip() for cell in cells.split("|"))
        assert method == result["method"] and method in METHODS
        for cell, (score, key) in zip(scores, ORDER, strict=True):
            number = result["metrics"][score][key]
            spread = f" ± {number['std']:.3f}" if len(result["seeds"]) > 1 else ""
            assert cell == f"{number['mean']:.3f}{spread}", (directory, score, key)
        sent = result["communication"]
        assert (up, down) == (f"{sent['up_bytes'] / 1e6:.1f}", f"{sent['down_bytes'] / 1e6:.1f}")
        assert seconds == f"{result['seconds']['train']:.0f}"
        assert command == f"`fedmes run {directory}/config.toml`"
        assert (ROOT / directory / "config.toml").is_file()


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_a_click_on_a_head_sorts(self, browser, tmp_path):
        rows = [("b", "0.3 ± 0.1", "-0.1"), ("c", "-", "0.2"), ("a", "0.12 ± 0.0", "0.05")]
        lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        heads = "".join(f"<th>{head}</th>" for head in ("method", "Acc, no task id", "FR"))
        script = (ROOT / "docs/leaderboard.js").read_text(encoding="utf-8")
        page = tmp_path / "page.html"
        page.write_text(
            f"<meta charset='utf-8'><h1 id='leaderboard'>L</h1><table><thead><tr>{heads}</tr></thead>"
            f"<tbody>{lines}</tbody></table><script>{script}</script>",
            encoding="utf-8",
        )
        browser.get(page.as_uri())

        def after_a_click(column):
            browser.find_elements("css selector", "th button")[column].click()
            cells = browser.find_elements("css selector", "tbody tr td:first-child")
            return "".join(cell.text for cell in cells)

        assert [after_a_click(1), after_a_click(1)] == ["bac", "abc"]
        assert [after_a_click(2), after_a_click(2)] == ["bac", "cab"]
        assert [after_a_click(0), after_a_click(0)] == ["abc", "cba"]
        sorted_by = browser.find_elements("css selector", "th[aria-sort=descending]")
        assert [head.text for head in sorted_by] == ["method ▾"]
