"""The report from result directories: the same numbers, plain words, and nothing that does not belong there."""

import base64
import csv
import io
import itertools
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import typer

import fedmes
import made
from fedmes import cli, metrics, report
from fedmes.commands.options import configuration
from fedmes.errors import UserError
from fedmes.report import clients, commands, gather, rows, series, verdict
from fedmes.report.gather import Run
from fedmes.tables import NUMBERS

SMALL = {"clients": 3, "tasks": 3, "rounds": 2, "epochs": 1, "memory": 12, "model": {"name": "mlp", "width": 8}}


class Page(HTMLParser):
    """What a browser would find: elements by tag with their attributes and text; script elements as raw text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append({"tag": tag, "attributes": dict(attributes), "text": "", "inside": list(self.open)})
        if tag not in ("meta", "link", "br"):
            self.open.append(self.found[-1])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()["tag"] != tag:
            pass

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            each
            for each in self.found
            if each["tag"] == tag and all(each["attributes"].get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag, **attributes):
        (element,) = self.all(tag, **attributes)
        return element

    @property
    def data(self):
        return json.loads(self.one("script", id="data")["text"])


def read(path):
    return Page(path.read_text(encoding="utf-8"))


def report_on(tmp_path, *directories, **options):
    report.write(list(directories), tmp_path / "page.html", **options)
    return read(tmp_path / "page.html")


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Two methods really trained, with two seeds, in one folder."""
    folder = tmp_path_factory.mktemp("real")
    for method in ("fedavg", "fedmes"):
        fedmes.run(**SMALL, seeds=[0, 4], method=method, out=folder / method)
    return folder


@pytest.fixture(scope="module")
def real_page(real, tmp_path_factory):
    return report_on(tmp_path_factory.mktemp("page"), real)


def printed(value):
    """Three digits and a true minus sign; no minus zero."""
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}".replace("-", "\u2212")


def rounded(values):
    return [None if value is None else round(value, 3) + 0.0 for value in values]


# The same numbers as in result.json


def test_every_number_of_the_table_is_that_of_result_json(real, real_page):
    body = [row for row in real_page.all("tr") if any(up["tag"] == "tbody" for up in row["inside"])]
    seen = {}
    for row in body:
        cells = [each for each in real_page.found if row in each["inside"]]
        heads = [each["attributes"]["data-name"] for each in cells if each["attributes"].get("data-name")]
        numbers = [each for each in cells if each["tag"] == "span" and each["attributes"].get("class")]
        for head in heads:
            seen[head] = [(each["attributes"]["class"].split()[0], each["text"]) for each in numbers]
    assert set(seen) == {"fedavg", "fedmes", "fedmes, network alone"}
    for name, family in (("fedavg", "metrics"), ("fedmes", "metrics"), ("fedmes, network alone", "metrics_nolip")):
        content = json.loads((real / name.split(",")[0] / "result.json").read_text())[family]
        expected = []
        for key in NUMBERS:
            for score in ("oblivious", "masked"):
                number = content[score][key]
                expected.append((score, f"{printed(number['mean'])}±{printed(number['std'])[1:]}"))
        assert seen[name] == expected


def test_curves_in_the_page_are_those_of_result_json(real, real_page):
    (group,) = real_page.data["groups"]
    assert [run["label"] for run in group["runs"]] == ["fedavg", "fedmes"]
    figures = {figure["id"]: figure for figure in group["figures"]}
    for place, run in enumerate(group["runs"]):
        content = json.loads((real / run["label"] / "result.json").read_text())["metrics"]
        for score in ("oblivious", "masked"):
            (accuracy,) = figures["accuracy"]["panels"][score]
            assert accuracy["series"][place]["y"] == rounded(content[score]["acc_task"])
            (forgetting,) = figures["forgetting"]["panels"][score]
            assert forgetting["series"][place]["y"] == rounded(content[score]["fr_task"][1:])
            (own,) = figures["clients"]["panels"][score][place]["series"]
            assert own["y"] == rounded(content[score]["acc_client"])
            (time,) = figures["time"]["panels"][score]
            assert time["points"][place]["y"] == round(content[score]["acc_all"]["mean"], 3)


def unpack(text, tasks):
    """As page.js does it."""
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    codes = [digits.index(a) * 64 + digits.index(b) for a, b in zip(text[::2], text[1::2], strict=True)]
    matrix = np.full((tasks, tasks), np.nan)
    matrix[np.tril_indices(tasks)] = [np.nan if code == 4095 else code / 1000 for code in codes]
    return matrix


def test_matrices_in_the_page_are_those_of_accuracy_npz(real, real_page):
    (group,) = real_page.data["groups"]
    for entry in group["entries"]:
        method, _, alone = entry["label"].partition(", ")
        with np.load(real / method / "accuracy.npz") as arrays:
            for score, name in (("oblivious", "acc"), ("masked", "acc_masked")):
                acc = arrays[f"{name}_nolip" if alone else name]
                for k in range(3):
                    texts = {None: entry["mean"][score][k]} | {s: entry["seeds"][s][score][k] for s in range(2)}
                    for s, text in texts.items():
                        true = acc[:, k].mean(axis=0) if s is None else acc[s, k]
                        shown = unpack(text, 3)
                        assert np.array_equal(np.isnan(shown), np.isnan(true))
                        assert [f"{v:.3f}" for v in shown.flat] == [f"{v:.3f}" for v in true.flat]


def test_packing_rounds_halves_as_printing_does():
    values = np.array(
        [[k / 80 for k in range(81)], [k / 2000 for k in range(81)], [k / 16 for k in range(17)] * 4 + [0] * 13]
    )
    for row in values:
        square = np.full((81, 81), np.nan)
        square[80] = row
        assert [f"{v:.3f}" for v in unpack(clients.pack(square), 81)[80]] == [f"{v:.3f}" for v in row]


def test_the_page_loads_nothing_and_allows_no_other_script(real_page):
    assert not real_page.all("img") and not real_page.all("iframe")
    assert [each["attributes"]["href"] for each in real_page.all("link")] == ["data:,"]
    assert all("src" not in each["attributes"] for each in real_page.all("script"))
    policy = next(each["attributes"]["content"] for each in real_page.all("meta") if "content" in each["attributes"])
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


# Who wins


def runs_of(*given, **options):
    """Runs by (label, Acc_ALL of each seed)."""
    return [
        Run.of(made.result(made.triangle(values, seeds=len(values)), method=label, **options), label)
        for label, values in given
    ]


def test_a_lead_larger_than_the_spread_wins():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.6]), ("fedmes", [0.8, 0.8]), ("ditto", [0.4, 0.4])), "oblivious")
    assert (found.kind, found.leaders) == ("wins", ("fedmes",))
    assert found.headline == "fedmes wins, 0.250 ahead of fedavg"
    assert "0.800" in found.text and "between +0.200 and +0.300" in found.text and "0.050" in found.text
    assert "the lead is larger than the spread over seeds" in found.text


def test_methods_are_compared_seed_by_seed():
    """Both vary by 0.2 over seeds, but their difference does not."""
    found = verdict.judge(runs_of(("fedavg", [0.3, 0.7]), ("fedmes", [0.35, 0.75])), "oblivious")
    assert found.kind == "wins"


def test_a_lead_within_the_spread_leaves_the_order_open():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.7]), ("fedmes", [0.7, 0.6])), "oblivious")
    assert (found.kind, found.leaders) == ("open", ("fedmes",))
    assert "not larger than the spread over seeds" in found.text
    assert "within the spread" in found.headline


def test_a_lead_that_prints_like_the_spread_does_not_win():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.5]), ("fedmes", [0.5001, 0.5023])), "oblivious")
    assert found.kind == "open"  # 0.0012 and 0.0011: both print as 0.001


def test_of_one_seed_nothing_is_said_about_spread():
    found = verdict.judge(runs_of(("fedavg", [0.5]), ("fedmes", [0.8])), "oblivious")
    assert found.kind == "one seed"
    assert "nothing can be said about the spread" in found.text
    assert "wins" not in found.headline


def test_equal_in_all_printed_digits_is_a_tie():
    given = ("fedavg", [0.8, 0.8]), ("fedmes", [0.8001, 0.8003]), ("ditto", [0.2, 0.2])
    found = verdict.judge(runs_of(*given), "oblivious")
    assert (found.kind, found.leaders) == ("tie", ("fedmes", "fedavg"))
    assert "0.800" in found.headline


def test_one_result_has_nothing_to_be_compared_with():
    found = verdict.judge(runs_of(("fedmes", [0.8, 0.9])), "oblivious")
    assert found.kind == "single"
    assert "nothing else to compare" in found.text


def test_a_run_without_accuracy_is_named_and_not_ranked():
    nothing = float("nan")
    found = verdict.judge(runs_of(("fedavg", [nothing, nothing]), ("fedmes", [0.8, 0.9])), "oblivious")
    assert (found.kind, found.leaders) == ("single", ("fedmes",))
    assert found.notes == ("No accuracy was measured for fedavg.",)
    assert verdict.judge(runs_of(("fedavg", [nothing, nothing])), "masked").kind == "none"


def test_a_seed_without_accuracy_is_left_out_of_the_spread():
    found = verdict.judge(runs_of(("fedavg", [0.5, float("nan")]), ("fedmes", [0.8, 0.7])), "oblivious")
    assert found.kind == "one seed"


def test_what_keeps_all_data_is_a_reference_and_does_not_win():
    found = verdict.judge(runs_of(("fedavg", [0.5, 0.6]), ("joint", [0.9, 0.9])), "oblivious")
    assert (found.kind, found.leaders) == ("single", ("fedavg",))
    assert found.notes[0].startswith("joint reaches 0.900 but keeps all data")
    everything = Run.of(made.result(made.triangle([0.9]), method="knn-per", **{"knnper.store": "all"}))
    assert everything.keeps_all_data
    assert not Run.of(made.result(made.triangle([0.9]), method="knn-per")).keeps_all_data


def test_oblivious_and_masked_are_judged_each_for_itself(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5, 0.5], 2), masked=made.triangle([0.9, 0.9], 2), method="fedavg")
    made.write(tmp_path / "b", made.triangle([0.6, 0.6], 2), masked=made.triangle([0.8, 0.8], 2), method="fedmes")
    page = report_on(tmp_path, tmp_path)
    assert page.one("h1")["text"] == "fedmes wins, 0.100 ahead of fedavg"
    texts = [each["text"] for each in page.all("p")]
    assert any(text.startswith("With the task id given, fedavg reaches") for text in texts)


# Which directories


def test_a_folder_of_folders_is_searched_and_nothing_counted_twice(tmp_path):
    inner = tmp_path / "runs/compare"
    for method in ("fedavg", "fedmes"):
        made.write(inner / method, made.triangle([0.5]), method=method)
    groups, left_out = gather.gather([tmp_path / "runs", inner / "fedmes", inner])
    assert [[run.label for run in group.runs] for group in groups] == [["fedavg", "fedmes"]]
    assert left_out == []


def test_other_splits_seeds_and_data_are_never_compared(tmp_path):
    base = made.triangle([0.5], clients=2)
    made.write(tmp_path / "a", base)
    made.write(tmp_path / "b", base, method="fedmes")
    made.write(tmp_path / "other-split", base, split="b" * 64)
    made.write(tmp_path / "other-seed", base, seeds=[7])
    made.write(tmp_path / "other-images", base, **{"data.image_size": 16})
    made.write(tmp_path / "other-noise", base, **{"synthetic.noise": 2.0})
    page = report_on(tmp_path, tmp_path)
    assert len(page.data["groups"]) == 5
    assert page.one("h1")["text"] == "5 comparisons"
    text = page.one("main")["text"]
    assert "only where benchmark, splits and seeds are the same" in text
    assert sorted(len(group["runs"]) for group in page.data["groups"]) == [1, 1, 1, 1, 2]


def broken_ones(folder):
    """Directories that hold no result of this version, and a word of the reason for each."""
    acc = made.triangle([0.5], clients=2)

    def one(name, **options):
        return made.write(folder / name, acc, **options)

    (one("unfinished") / "result.json").unlink()
    (one("no-config") / "config.toml").unlink()
    (one("cut-json") / "result.json").write_text('{"benchmark": "synth')
    (one("json-list") / "result.json").write_text("[]")
    npz = one("cut-npz") / "accuracy.npz"
    npz.write_bytes(npz.read_bytes()[:-40])
    (one("no-npz") / "accuracy.npz").unlink()
    (one("text-npz") / "accuracy.npz").write_text("hello")
    (one("foreign-config") / "config.toml").write_text('title = "another program"\n')
    (one("cut-config") / "config.toml").write_text("benchmark = ")
    one("older", versions={"fedmes": "0.0.9"})
    one("newer", versions={"fedmes": "1.0.0"})
    np.savez(one("other-shape") / "accuracy.npz", acc=acc[:, :1], acc_masked=acc[:, :1])
    np.savez(one("no-accuracies") / "accuracy.npz", acc=acc * 100, acc_masked=acc * 100)
    np.savez(one("other-numbers") / "accuracy.npz", acc=acc * 0.9, acc_masked=acc * 0.9)
    np.savez(one("no-masked") / "accuracy.npz", acc=acc)
    rounds = one("text-rounds") / "rounds.csv"
    rounds.write_text(rounds.read_text().replace("0.25", "soon"))
    strange = one("strange-rounds") / "rounds.csv"
    strange.write_text(strange.read_text().replace("\n0,0,0,0", "\n0,99,0,0"))
    renamed = one("other-method") / "result.json"
    renamed.write_text(renamed.read_text().replace("fedavg", "fedprox"))
    (folder / "file.txt").write_text("no directory")
    (folder / "empty").mkdir()
    return {
        "unfinished": "unfinished", "no-config": "config.toml", "cut-json": "broken", "json-list": "broken",
        "cut-npz": "broken", "no-npz": "broken", "text-npz": "broken", "foreign-config": "broken",
        "cut-config": "config.toml", "older": "fedmes 0.0.9", "newer": "fedmes 1.0.0", "other-shape": "accuracy.npz",
        "no-accuracies": "no accuracies", "other-numbers": "disagree", "no-masked": "accuracy.npz",
        "text-rounds": "broken", "strange-rounds": "rounds.csv", "other-method": "disagree",
    }  # fmt: skip


def test_broken_unfinished_and_foreign_directories_are_named_and_left_out(tmp_path, capsys):
    reasons = broken_ones(tmp_path / "runs")
    made.write(tmp_path / "runs/whole", made.triangle([0.5]))
    out = tmp_path / "page.html"
    extra = [str(tmp_path / "runs/empty"), str(tmp_path / "runs/file.txt"), str(tmp_path / "nowhere")]
    cli.app(["report", str(tmp_path / "runs"), *extra, "--out", str(out)], standalone_mode=False)
    said = capsys.readouterr()
    page = read(out)
    lines = {line.split(": ")[1].rpartition("/")[2]: line for line in said.err.splitlines()}
    items = {
        each["text"].split(": ")[0].rpartition("/")[2]: each["text"] for each in page.all("li") if "/" in each["text"]
    }
    for name, reason in (reasons | {"empty": "no run", "file.txt": "not a directory", "nowhere": "not exist"}).items():
        assert reason in lines[name], name
        assert reason in items[name], name
        assert len(lines[name]) < 500
    assert len(lines) == len(reasons) + 3
    assert [run["label"] for run in page.data["groups"][0]["runs"]] == ["fedavg"]


def test_a_patch_release_is_no_other_version(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]), versions={"fedmes": "0.1.7"})
    made.write(tmp_path / "b", made.triangle([0.5]), versions={"fedmes": "source"}, method="fedmes")
    groups, left_out = gather.gather([tmp_path])
    assert len(groups[0].runs) == 2 and not left_out


def test_without_any_result_nothing_is_written(tmp_path):
    broken_ones(tmp_path / "runs")
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-m", "fedmes", "report", "runs", "--csv", "t.csv", "--figures", "figures"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: report: no finished run")
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_a_page_that_cannot_be_written_is_one_line(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    with pytest.raises(UserError, match="is a directory"):
        report.write([tmp_path / "a"], tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        report.write([tmp_path / "a"], tmp_path / "file/page.html")


def test_a_page_is_replaced_whole(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    for _ in range(2):
        report.write([tmp_path / "a"], tmp_path / "new/page.html")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["page.html"]


def test_a_report_needs_neither_torch_nor_matplotlib(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]))
    code = (
        "import sys; from pathlib import Path; from fedmes import cli, report;"
        "report.write([Path('a')], Path('page.html'));"
        "print(sorted({'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Names and escaping

EVIL = "<img src=x onerror=alert(1)>"


def test_text_from_files_stays_text(tmp_path):
    stream = made.plain_stream(2, 2, names=[f"</script>{EVIL}", "b&b"])
    stream[0]["tasks"][0]["name"] = EVIL
    options = {"method": f"own.py:{EVIL}", "stream": stream, "notes": [f"note {EVIL}"]}
    made.write(tmp_path / "<b>bold", made.triangle([0.5]), versions=made.VERSIONS | {"torch": EVIL}, **options)
    (tmp_path / "<i>broken").mkdir()
    (tmp_path / "<i>broken/config.toml").write_text(f'"{EVIL}" = 1\n')
    raw_page = report_on(tmp_path, tmp_path)
    text = (tmp_path / "page.html").read_text()
    assert "<img" not in text and "<b>bold" not in text and "<i>broken" not in text
    assert text.count("</script>") == 4  # ours
    assert raw_page.data["groups"][0]["clients"] == [f"</script>{EVIL}", "b&b"]
    assert raw_page.data["groups"][0]["runs"][0]["label"] == EVIL
    assert EVIL in raw_page.one("main")["text"]


def test_runs_of_one_method_are_called_by_what_sets_them_apart(tmp_path):
    for size in (10, 5, 100):
        made.write(tmp_path / f"m{size}", made.triangle([size / 200]), method="fedmes", **{"memory.size": size})
    made.write(tmp_path / "mixed", made.triangle([0.4]), method="fedmes", **{"memory.size": [5, 25]})
    made.write(tmp_path / "avg", made.triangle([0.2]))
    (group,) = gather.gather([tmp_path])[0]
    names = ["fedavg", "fedmes memory 5", "fedmes memory 5, 25", "fedmes memory 10", "fedmes memory 100"]
    assert [run.label for run in group.runs] == names
    (method, members) = next(iter(gather.memory_sweeps(group.runs).items()))
    assert (method, [series.memory_size(run.result) for run in members]) == ("fedmes", [5, 10, 15, 100])
    page = report_on(tmp_path, tmp_path)
    figures = {figure["id"]: figure for figure in page.data["groups"][0]["figures"]}
    (line,) = figures["memory"]["panels"]["oblivious"][0]["series"]
    assert figures["memory"]["x"] == [5, 10, 15, 100]
    assert line["y"] == [0.025, 0.05, None, 0.5]
    assert line["mixed"] == [[2, 0.4, "5, 25"]]
    assert len(figures["boxes"]["panels"]["masked"][0]["boxes"]) == 5
    assert "differ in memory.size too" in page.one("main")["text"]


def test_the_same_run_in_two_directories_has_two_names(tmp_path):
    for name in ("one", "two"):
        made.write(tmp_path / name, made.triangle([0.5]))
    (group,) = gather.gather([tmp_path])[0]
    assert [run.label for run in group.runs] == [f"fedavg [{tmp_path / name}]" for name in ("one", "two")]


def test_methods_keep_their_looks_and_no_two_look_alike():
    from fedmes.methods import METHODS
    from fedmes.report import style

    assert set(style.KNOWN) == set(METHODS)
    assert len({(look.colour, look.dash) for look in style.KNOWN.values()}) == len(METHODS)
    own = runs_of(*((f"own.py:Own{i}", [0.5]) for i in range(8)), ("fedmes", [0.5]))
    looks = style.looks(own)
    assert looks[-1] == style.KNOWN["fedmes"]
    assert len({(look.colour, look.dash) for look in looks}) == 9


# How protanopes, deuteranopes and tritanopes see linear RGB (Machado, Oliveira and Fernandes, 2009, severity 1).
SIGHT = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colours):
    values = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB, whose distances are roughly those that one sees."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = (np.clip(rgb, 0, 1) @ to_xyz.T / [0.9505, 1, 1.089]).T
    x, y, z = (np.where(v > 0.008856, np.cbrt(v), 7.787 * v + 16 / 116) for v in (x, y, z))
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_everybody(sight):
    from fedmes.report import style

    for palette in (style.LIGHT, style.DARK):
        seen = lab(linear(palette) @ np.asarray(SIGHT[sight]).T)
        apart = [np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2)]
        assert min(apart) > 20


def test_colours_stand_out_from_the_background():
    from fedmes.report import style

    for palette, background in ((style.LIGHT, "#faf9f7"), (style.DARK, "#1e2023")):
        *own, back = linear([*palette, background]) @ [0.2126, 0.7152, 0.0722]
        for luminance in own:
            assert (max(luminance, back) + 0.05) / (min(luminance, back) + 0.05) >= 3


# Commands, tables for a paper


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "fedmes", "memory.size": [5, 25], "optim.lr": 0.003, "fedmes.lambda": "rescaled", "knn.k": 3},
        {"method": "my methods/own.py:Own", "engine.stack": 2, "stream.partition": "dirichlet:0.5"},
    ],
)
def test_the_command_makes_the_same_configuration(options):
    run = Run.of(made.result(made.triangle([0.5, 0.6], 2), **options), directory="runs/a")
    words = shlex.split(commands.command(run))
    assert words[:2] == ["fedmes", "run"]
    context = typer.main.get_command(cli.app).commands["run"].make_context("run", words[2:])
    assert configuration(context.params).options() == run.config.options()


def test_own_data_are_named_in_the_command(own_npz, tmp_path):
    fedmes.run(data={"path": str(own_npz)}, **SMALL | {"clients": 2}, out=tmp_path / "run")
    (group,) = gather.gather([tmp_path / "run"])[0]
    assert f"--data {own_npz}" in commands.command(group.runs[0])
    assert "own data own.npz" in group.title
    page = report_on(tmp_path, tmp_path / "run")
    assert page.data["groups"][0]["clients"] == ["a", "b"]
    matrix = unpack(page.data["groups"][0]["entries"][0]["mean"]["oblivious"][1], 3)
    assert np.isnan(matrix[2]).all() and not np.isnan(matrix[1, :2]).any()  # b has two tasks


def test_csv_holds_every_number_as_result_json_has_it(real, tmp_path):
    report.write([real], tmp_path / "page.html", csv=tmp_path / "table.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert {(line["run"], line["predicts"]) for line in lines} == {
        ("fedavg", "network"), ("fedmes", "network + memory"), ("fedmes", "network alone"),
    }  # fmt: skip
    for line in lines:
        content = json.loads((real / line["method"] / "result.json").read_text())
        family = content["metrics_nolip" if line["predicts"] == "network alone" else "metrics"]
        for score in ("oblivious", "masked"):
            for key in NUMBERS:
                assert float(line[f"{score}_{key}_mean"]) == family[score][key]["mean"]
                assert float(line[f"{score}_{key}_std"]) == family[score][key]["std"]
        assert line["split_sha256"] == content["split_sha256"]
        assert line["seeds"] == "0 4"
        assert int(line["up_bytes"]) == content["communication"]["up_bytes"]


def test_latex_table(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5, 0.6], 2), method="own_methods.py:A_b")
    made.write(tmp_path / "b", made.triangle([0.7, 0.8], 2), method="fedmes", nolip=made.triangle([0.1, 0.1], 2))
    made.write(tmp_path / "c", made.triangle([0.9, 0.9], 2), method="joint")
    report.write([tmp_path], tmp_path / "page.html", latex=tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    lines = [line for line in text.splitlines() if line.endswith(r"\\")][2:]
    assert lines[0].startswith(r"joint & $0.900 \pm 0.000$")
    assert lines[1].startswith(r"fedmes & $\mathbf{0.750} \pm 0.050$")
    assert lines[2].startswith(r"A\_b & $0.550 \pm 0.050$")
    assert lines[3].startswith(r"fedmes, network alone & $0.100 \pm 0.000$")
    assert {line.count("&") for line in lines} == {6}
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1


def test_a_table_of_one_task_has_no_forgetting(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5], tasks=1))
    page = report_on(tmp_path, tmp_path, csv=tmp_path / "t.csv", latex=tmp_path / "t.tex")
    assert "forgetting" not in {figure["id"] for figure in page.data["groups"][0]["figures"]}
    (line,) = csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text()))
    assert line["oblivious_fr_mean"] == ""
    assert "$0.500$ & -- & $0.500$" in (tmp_path / "t.tex").read_text()


def test_best_numbers_are_bold_and_references_are_not(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]), method="fedavg")
    made.write(tmp_path / "b", made.triangle([0.4]), method="fedmes")
    made.write(tmp_path / "c", made.triangle([0.9]), method="joint")
    (group,) = gather.gather([tmp_path])[0]
    assert rows.best(rows.rows_of(group))["oblivious", "acc_all"] == "0.500"


# What happened in rounds.csv


def test_seconds_are_those_of_the_slowest_client_and_rounds_are_averaged():
    run = Run.of(made.result(made.triangle([0.5, 0.5], 2, clients=3), method="fedmes"))
    compute, talk = series.wall_clock(run.result, run.rounds)
    assert (compute, talk) == (2 * 2 * 2.25, 4.0)  # two tasks of two rounds; the last client takes 2.25 s
    rule2 = series.by_round(run.config, run.rounds, "rule2")
    np.testing.assert_allclose(rule2.mean, [0, 0, 0.1, 0.1])
    np.testing.assert_allclose(rule2.std, 0, atol=1e-12)
    np.testing.assert_allclose(series.by_round(run.config, run.rounds, "distance").mean, [0.51, 0.51, 1.51, 1.51])
    plain = Run.of(made.result(made.triangle([0.5])))
    assert series.by_round(plain.config, plain.rounds, "lambda") is None


def test_seeds_in_any_order_keep_their_rows():
    result = made.result(made.triangle([0.5, 0.5], 2), seeds=[5, 2])
    for row in result.rounds:
        row["distance"] = row["seed"]
    run = Run.of(result)
    curve = series.by_round(run.config, run.rounds, "distance")
    assert curve.mean.tolist() == [3.5] * 4
    assert curve.std.tolist() == [1.5] * 4


def test_a_run_without_rows_still_has_a_page(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]), rounds=False)
    page = report_on(tmp_path, tmp_path)
    assert "rounds" not in {figure["id"] for figure in page.data["groups"][0]["figures"]}


def test_what_the_vote_adds():
    acc, alone = made.random_accuracy(0, 2, 3, 3), made.random_accuracy(1, 2, 3, 3)
    curve = series.vote_by_task(made.result(acc, nolip=alone, method="fedmes"), "oblivious")
    expected = np.array(metrics.summary(acc)["acc_task"]) - metrics.summary(alone)["acc_task"]
    np.testing.assert_allclose(curve.mean, expected)


# Private data


def test_samples_are_there_only_when_asked_for(real, tmp_path, real_page):
    plain = report_on(tmp_path, real)
    text = (tmp_path / "page.html").read_text()
    assert "data:image" not in text and "iVBORw0KGgo" not in text  # how every PNG begins in base64
    assert plain.data["samples"] == {}
    assert plain.data["groups"][0]["memories"] is None

    page = report_on(tmp_path, real, with_samples=True)
    assert "Private data" in page.one("main")["text"]
    (group,) = page.data["groups"]
    place = [run["label"] for run in group["runs"]].index("fedmes")
    assert group["memories"][1 - place] == [[None] * 3] * 2  # fedavg keeps nothing
    from PIL import Image

    for s, seed in enumerate((0, 4)):
        for k in range(3):
            sheet = page.data["samples"][group["memories"][place][s][k]]
            with np.load(real / f"fedmes/seed{seed}/client{k}/memory.npz") as memory:
                x, y, task = memory["x"], memory["y"], memory["task"]
            order = np.lexsort((y, task))
            assert (sheet["y"], sheet["task"]) == (y[order].tolist(), task[order].tolist())
            image = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["png"].partition(",")[2]))))
            assert image.shape == (8 * sheet["rows"], 8 * sheet["columns"])
            for i, row in enumerate(order):
                top, left = 8 * (i // sheet["columns"]), 8 * (i % sheet["columns"])
                np.testing.assert_array_equal(image[top : top + 8, left : left + 8], x[row, ..., 0])


def test_colour_float_and_large_images_become_thumbnails(tmp_path):
    album = clients.Album()
    for name, x in (
        ("colour", np.random.RandomState(0).randint(0, 256, (5, 84, 84, 3)).astype(np.uint8)),
        ("floats", np.random.RandomState(1).randn(4, 6, 6, 2).astype(np.float32)),
    ):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "memory.npz", x=x, y=np.arange(len(x)), task=np.zeros(len(x), int))
        sheet = album.sheets[album.add(tmp_path / name)]
        assert max(sheet["width"], sheet["height"]) <= 48
    (tmp_path / "vectors").mkdir()
    np.savez(tmp_path / "vectors/memory.npz", x=np.ones((3, 7)), y=np.arange(3), task=np.zeros(3, int))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/memory.npz").write_bytes(b"PK\x03\x04 and no more")
    assert [album.add(tmp_path / name) for name in ("vectors", "broken", "missing")] == [None] * 3


# Figures for paper


@pytest.fixture(scope="module")
def drawn():
    """Runs for figures: three methods, two seeds, three clients, four tasks."""
    return [
        Run.of(
            made.result(
                made.random_accuracy(i, 2, 3, 4), made.random_accuracy(i + 9, 2, 3, 4), method=method,
                nolip=made.random_accuracy(i + 20, 2, 3, 4) if method == "fedmes" else None,
            )
        )
        for i, method in enumerate(("fedavg", "fedmes", "local"))
    ]  # fmt: skip


def lines_of(ax):
    return {line.get_label(): line.get_ydata() for line in ax.lines if not line.get_label().startswith("_")}


def test_lines_of_the_task_figure_are_the_metrics(drawn):
    from fedmes.report import figures

    axes = figures.per_task(drawn).axes
    for column, score in enumerate(("oblivious", "masked")):
        for run in drawn:
            numbers = run.metrics[score]
            np.testing.assert_allclose(lines_of(axes[column])[run.label], numbers["acc_task"])
            np.testing.assert_allclose(lines_of(axes[2 + column])[run.label], numbers["fr_task"][1:])
    band = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    curve = series.accuracy_by_task(drawn[0].result, "oblivious")
    assert band.max() == pytest.approx((curve.mean + curve.std).max())
    assert band.min() == pytest.approx((curve.mean - curve.std).min())


def test_client_figures_have_the_clients_numbers(drawn):
    from fedmes.report import figures

    panels = {ax.get_title(loc="left"): ax for ax in figures.per_client(drawn, "masked").axes}
    for run in drawn:
        np.testing.assert_allclose(panels[run.label].lines[0].get_ydata(), run.metrics["masked"]["acc_client"])
        after = metrics.accuracy_after(run.result.accuracy["acc_masked"]).mean(axis=0)
        for k, segment in enumerate(panels[run.label].collections[0].get_segments()):
            np.testing.assert_allclose(segment[:, 1], [after[k].min(), after[k].max()])
    small = figures.small_multiples(drawn, names=["x", "y", "z"]).axes
    assert [ax.get_title(loc="left") for ax in small] == ["client x", "client y", "client z"]
    for run in drawn:
        after = metrics.accuracy_after(run.result.accuracy["acc"]).mean(axis=0)
        for k, ax in enumerate(small):
            np.testing.assert_allclose(lines_of(ax)[run.label], after[k])


def test_matrix_vote_rounds_and_clock_figures(drawn):
    from fedmes.report import figures

    image = figures.accuracy_matrix(drawn[1], client=2, seed=1).axes[0].images[0].get_array()
    np.testing.assert_allclose(np.ma.filled(image, np.nan), drawn[1].result.accuracy["acc"][1, 2])
    vote = lines_of(figures.vote_gain(drawn).axes[1])["fedmes"]
    np.testing.assert_allclose(vote, series.vote_by_task(drawn[1].result, "masked").mean)
    assert figures.vote_gain([drawn[0]]) is None
    rule2, pull, distance = figures.over_rounds(drawn).axes
    assert set(lines_of(rule2)) == set(lines_of(pull)) == {"fedmes"}
    assert len(lines_of(distance)["fedmes"]) == 4 * 2
    np.testing.assert_allclose(lines_of(rule2)["fedmes"], [0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    bars, points = figures.wall_clock(drawn).axes
    assert {bar.get_width() for bar in bars.patches} == {4.0, 4 * 2 * 2.25}
    assert lines_of(points)["fedmes"] == pytest.approx([drawn[1].metrics["oblivious"]["acc_all"]["mean"]])


def test_memory_and_box_figures():
    from fedmes.report import figures

    runs = [
        Run.of(made.result(made.random_accuracy(size, 2, 2, 4), method="fedmes", **{"memory.size": size}), f"m{size}")
        for size in (10, 30)
    ]
    ax = figures.memory_sweep(runs).axes[0]
    (line,) = [line for line in ax.lines if line.get_label() == "fedmes"]
    assert list(line.get_xdata()) == [10, 30]
    np.testing.assert_allclose(line.get_ydata(), [run.metrics["oblivious"]["acc_all"]["mean"] for run in runs])
    boxes = figures.task_boxes(runs).axes[0]
    best_first = sorted(runs, key=lambda run: -run.metrics["oblivious"]["acc_all"]["mean"])
    assert [text.get_text() for text in boxes.get_yticklabels()] == [run.label for run in best_first]
    for run, box in zip(best_first, boxes.patches, strict=True):
        low, high = np.quantile(run.metrics["oblivious"]["acc_task"], [0.25, 0.75])
        assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((low, high))


@pytest.mark.filterwarnings("error")
def test_little_or_nothing_measured_can_be_drawn_too(tmp_path):
    """One seed, one client, one task; and a run that measured nothing."""
    from fedmes.report import figures

    made.write(tmp_path / "a", made.triangle([0.5], clients=1, tasks=1), rounds=False)
    made.write(tmp_path / "b", made.triangle([float("nan")], clients=1, tasks=1), method="fedmes", rounds=False)
    (group,) = gather.gather([tmp_path])[0]
    drawn = figures.figures_of(group)
    assert "matrix" in drawn and "over-rounds" not in drawn
    for name, figure in drawn.items():
        figures.save(figure, tmp_path / "figures", name)
    page = report_on(tmp_path, tmp_path)
    assert page.one("h1")["text"] == "fedavg reaches 0.500"
    assert "No accuracy was measured for fedmes." in page.one("main")["text"]


def test_figures_are_files_and_the_same_each_time(real, tmp_path):
    from fedmes.report import figures

    report.write([real / "fedmes"], tmp_path / "page.html", figures=tmp_path / "one")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    stems = {"per-task", "over-rounds", "vote", "matrix", "boxes"}
    stems |= {f"{n}-{s}" for n in ("per-client", "small-multiples", "wall-clock") for s in ("oblivious", "masked")}
    assert files == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg"))
    (group,) = gather.gather([real / "fedmes"])[0]
    figures.save(figures.per_task(group.runs), tmp_path / "two", "per-task")
    for file in ("per-task.png", "per-task.svg"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


# Size


def test_twenty_large_directories_make_a_page_below_eight_megabytes(tmp_path):
    """20 clients, 40 tasks, several seeds, with the vote's numbers; how long it takes: benchmarks/report.py."""
    for i in range(20):
        made.write(
            tmp_path / f"runs/r{i}", made.random_accuracy(i, 3, 20, 40), nolip=made.random_accuracy(i + 50, 3, 20, 40),
            method="fedmes", stream=made.plain_stream(20, 40) if i == 0 else None,
            **{"memory.size": 10 + i},
        )  # fmt: skip
    page = report_on(tmp_path, tmp_path / "runs")
    assert (tmp_path / "page.html").stat().st_size < 8e6
    (group,) = page.data["groups"]
    assert len(group["entries"]) == 40
    assert all(len(entry["mean"]["masked"]) == 20 for entry in group["entries"])
    assert all(entry["seeds"] == [] for entry in group["entries"])  # these had to go
    numbers = re.findall(r"-?\d+\.\d{4,}", (tmp_path / "page.html").read_text().partition('id="data">')[2])
    assert not numbers  # nothing is more precise than it is printed
