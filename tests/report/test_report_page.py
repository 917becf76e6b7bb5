"""The page, the table and the files beside it: the same numbers as in the result directories, and
nothing loaded."""

import base64
import csv
import io
import json
import re

import numpy as np
import pytest

import fedmes
from fedmes.report import clients, collect, curves, rerun, result_table
from fedmes.report.collect import Run
from fedmes.report.write import write_report
from fedmes.results import metrics
from fedmes.results.labels import NUMBERS
from helpers import made
from helpers.reported import report_on


def printed(value):
    """Three digits and a true minus sign; no minus zero."""
    return "-" if value is None else f"{round(value, 3) + 0.0:.3f}".replace("-", "\u2212")


def rounded(values):
    return [None if value is None else round(value, 3) + 0.0 for value in values]


# The same numbers as in result.json


@pytest.fixture(scope="module")
def trained_page(trained_runs, tmp_path_factory):
    return report_on(tmp_path_factory.mktemp("page"), trained_runs)


@pytest.mark.slow
def test_every_number_of_the_table_is_that_of_result_json(trained_runs, trained_page):
    body = [
        row for row in trained_page.all("tr") if any(up["tag"] == "tbody" for up in row["inside"])
    ]
    seen = {}
    for row in body:
        cells = [each for each in trained_page.found if row in each["inside"]]
        heads = [
            each["attributes"]["data-name"] for each in cells if each["attributes"].get("data-name")
        ]
        numbers = [
            each for each in cells if each["tag"] == "span" and each["attributes"].get("class")
        ]
        for head in heads:
            seen[head] = [
                (each["attributes"]["class"].split()[0], each["text"]) for each in numbers
            ]
    assert set(seen) == {"fedavg", "fedmes", "fedmes, network alone"}
    for name, family in (
        ("fedavg", "metrics"),
        ("fedmes", "metrics"),
        ("fedmes, network alone", "metrics_nolip"),
    ):
        content = json.loads((trained_runs / name.split(",")[0] / "result.json").read_text())[
            family
        ]
        expected = []
        for key in NUMBERS:
            for score in ("oblivious", "masked"):
                number = content[score][key]
                expected.append((score, f"{printed(number['mean'])}±{printed(number['std'])[1:]}"))
        assert seen[name] == expected


def test_curves_in_the_page_are_those_of_result_json(trained_runs, trained_page):
    (group,) = trained_page.data["groups"]
    assert [run["label"] for run in group["runs"]] == ["fedavg", "fedmes"]
    figures = {figure["id"]: figure for figure in group["figures"]}
    for place, run in enumerate(group["runs"]):
        content = json.loads((trained_runs / run["label"] / "result.json").read_text())["metrics"]
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
    codes = [
        digits.index(a) * 64 + digits.index(b) for a, b in zip(text[::2], text[1::2], strict=True)
    ]
    matrix = np.full((tasks, tasks), np.nan)
    matrix[np.tril_indices(tasks)] = [np.nan if code == 4095 else code / 1000 for code in codes]
    return matrix


def test_matrices_in_the_page_are_those_of_accuracy_npz(trained_runs, trained_page):
    (group,) = trained_page.data["groups"]
    for entry in group["entries"]:
        method, _, alone = entry["label"].partition(", ")
        with np.load(trained_runs / method / "accuracy.npz") as arrays:
            for score, name in (("oblivious", "acc"), ("masked", "acc_masked")):
                acc = arrays[f"{name}_nolip" if alone else name]
                for k in range(3):
                    texts = {None: entry["mean"][score][k]} | {
                        s: entry["seeds"][s][score][k] for s in range(2)
                    }
                    for s, text in texts.items():
                        true = acc[:, k].mean(axis=0) if s is None else acc[s, k]
                        shown = unpack(text, 3)
                        assert np.array_equal(np.isnan(shown), np.isnan(true))
                        assert [f"{v:.3f}" for v in shown.flat] == [f"{v:.3f}" for v in true.flat]


def test_packing_rounds_halves_as_printing_does():
    values = np.array(
        [
            [k / 80 for k in range(81)],
            [k / 2000 for k in range(81)],
            [k / 16 for k in range(17)] * 4 + [0] * 13,
        ]
    )
    for row in values:
        square = np.full((81, 81), np.nan)
        square[80] = row
        assert [f"{v:.3f}" for v in unpack(clients.pack(square), 81)[80]] == [
            f"{v:.3f}" for v in row
        ]


def test_the_page_loads_nothing_and_allows_no_other_script(trained_page):
    assert not trained_page.all("img") and not trained_page.all("iframe")
    assert [each["attributes"]["href"] for each in trained_page.all("link")] == ["data:,"]
    assert all("src" not in each["attributes"] for each in trained_page.all("script"))
    policy = next(
        each["attributes"]["content"]
        for each in trained_page.all("meta")
        if "content" in each["attributes"]
    )
    assert policy.startswith("default-src 'none'")
    assert "script-src 'sha256-" in policy


def test_csv_holds_every_number_as_result_json_has_it(trained_runs, tmp_path):
    write_report([trained_runs], tmp_path / "page.html", csv=tmp_path / "table.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert {(line["run"], line["predicts"]) for line in lines} == {
        ("fedavg", "network"), ("fedmes", "network + memory"), ("fedmes", "network alone"),
    }  # fmt: skip
    for line in lines:
        content = json.loads((trained_runs / line["method"] / "result.json").read_text())
        family = content["metrics_nolip" if line["predicts"] == "network alone" else "metrics"]
        for score in ("oblivious", "masked"):
            for key in NUMBERS:
                assert float(line[f"{score}_{key}_mean"]) == family[score][key]["mean"]
                assert float(line[f"{score}_{key}_std"]) == family[score][key]["std"]
        assert line["split_sha256"] == content["split_sha256"]
        assert line["seeds"] == "0 4"
        assert int(line["up_bytes"]) == content["communication"]["up_bytes"]
        for name in ("train", "total", "communication_modelled"):
            assert float(line[f"seconds_{name}"]) == content["seconds"][name]


def test_protocols_of_one_training_are_rows_that_differ_and_cost_its_seconds(tmp_path):
    for rule in ("own", "all"):
        made.write(tmp_path / rule, made.triangle([0.5]), **{"eval.task_classes": rule})
    page = report_on(tmp_path, tmp_path, csv=tmp_path / "t.csv")
    lines = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text())))
    assert sorted((line["run"], line["told"]) for line in lines) == [
        ("fedavg", "all"),
        ("fedavg", "own"),
    ]
    cells = [
        cell["attributes"]["data-value"]
        for cell in page.all("td")
        if "data-value" in cell["attributes"]
    ]
    # of training; 2.0 are those of the whole run
    assert {float(cell) for cell in cells[2::3]} == {1.0}


def test_latex_table(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5, 0.6], 2), method="own_methods.py:A_b")
    made.write(
        tmp_path / "b",
        made.triangle([0.7, 0.8], 2),
        method="fedmes",
        nolip=made.triangle([0.1, 0.1], 2),
    )
    made.write(tmp_path / "c", made.triangle([0.9, 0.9], 2), method="joint")
    write_report([tmp_path], tmp_path / "page.html", latex=tmp_path / "table.tex")
    text = (tmp_path / "table.tex").read_text()
    lines = [line for line in text.splitlines() if line.endswith(r"\\")][2:]
    assert lines[0].startswith(r"joint & $0.900 \pm 0.000$")
    assert lines[1].startswith(r"fedmes & $\mathbf{0.750} \pm 0.050$")
    assert lines[2].startswith(r"A\_b (own) & $0.550 \pm 0.050$")
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
    (group,) = collect.collect([tmp_path])[0]
    assert result_table.best(result_table.rows_of(group))["oblivious", "acc_all"] == "0.500"


# What happened in rounds.csv


def test_seconds_are_those_of_the_slowest_client_and_rounds_are_averaged():
    run = Run.of(made.result(made.triangle([0.5, 0.5], 2, clients=3), method="fedmes"))
    compute, talk = curves.wall_clock(run.result, run.rounds)
    # two tasks of two rounds; the last client takes 2.25 s
    assert (compute, talk) == (2 * 2 * 2.25, 4.0)
    rule2 = curves.by_round(run.config, run.rounds, "rule2")
    np.testing.assert_allclose(rule2.mean, [0, 0, 0.1, 0.1])
    np.testing.assert_allclose(rule2.std, 0, atol=1e-12)
    np.testing.assert_allclose(
        curves.by_round(run.config, run.rounds, "distance").mean, [0.51, 0.51, 1.51, 1.51]
    )
    plain = Run.of(made.result(made.triangle([0.5])))
    assert curves.by_round(plain.config, plain.rounds, "lambda") is None


def test_seeds_in_any_order_keep_their_rows():
    result = made.result(made.triangle([0.5, 0.5], 2), seeds=[5, 2])
    for row in result.rounds:
        row["distance"] = row["seed"]
    run = Run.of(result)
    curve = curves.by_round(run.config, run.rounds, "distance")
    assert curve.mean.tolist() == [3.5] * 4
    assert curve.std.tolist() == [1.5] * 4


def test_a_run_without_rows_still_has_a_page(tmp_path):
    made.write(tmp_path / "a", made.triangle([0.5]), rounds=False)
    page = report_on(tmp_path, tmp_path)
    assert "rounds" not in {figure["id"] for figure in page.data["groups"][0]["figures"]}


def test_what_the_vote_adds():
    acc, alone = made.random_accuracy(0, 2, 3, 3), made.random_accuracy(1, 2, 3, 3)
    curve = curves.vote_by_task(made.result(acc, nolip=alone, method="fedmes"), "oblivious")
    expected = np.array(metrics.summary(acc)["acc_task"]) - metrics.summary(alone)["acc_task"]
    np.testing.assert_allclose(curve.mean, expected)


# Private data


@pytest.mark.slow
def test_samples_are_there_only_when_asked_for(trained_runs, tmp_path, trained_page):
    plain = report_on(tmp_path, trained_runs)
    text = (tmp_path / "page.html").read_text()
    assert "data:image" not in text and "iVBORw0KGgo" not in text  # how every PNG begins in base64
    assert plain.data["samples"] == {}
    assert plain.data["groups"][0]["memories"] is None

    page = report_on(tmp_path, trained_runs, with_samples=True)
    assert "Private data" in page.one("main")["text"]
    (group,) = page.data["groups"]
    place = [run["label"] for run in group["runs"]].index("fedmes")
    assert group["memories"][1 - place] == [[None] * 3] * 2  # fedavg keeps nothing
    from PIL import Image

    for s, seed in enumerate((0, 4)):
        for k in range(3):
            sheet = page.data["samples"][group["memories"][place][s][k]]
            with np.load(trained_runs / f"fedmes/seed{seed}/client{k}/memory.npz") as memory:
                x, y, task = memory["x"], memory["y"], memory["task"]
            order = np.lexsort((y, task))
            assert (sheet["y"], sheet["task"]) == (y[order].tolist(), task[order].tolist())
            image = np.asarray(
                Image.open(io.BytesIO(base64.b64decode(sheet["png"].partition(",")[2])))
            )
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
        np.savez(
            tmp_path / name / "memory.npz", x=x, y=np.arange(len(x)), task=np.zeros(len(x), int)
        )
        sheet = album.sheets[album.add(tmp_path / name)]
        assert max(sheet["width"], sheet["height"]) <= 48
    (tmp_path / "vectors").mkdir()
    np.savez(
        tmp_path / "vectors/memory.npz", x=np.ones((3, 7)), y=np.arange(3), task=np.zeros(3, int)
    )
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/memory.npz").write_bytes(b"PK\x03\x04 and no more")
    assert [album.add(tmp_path / name) for name in ("vectors", "broken", "missing")] == [None] * 3


# Size


@pytest.mark.slow
def test_twenty_large_directories_make_a_page_below_eight_megabytes(tmp_path):
    """20 clients, 40 tasks, several seeds, with the vote's numbers; how long it takes:
    benchmarks/report.py."""
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
    data = (tmp_path / "page.html").read_text().partition('id="data">')[2].partition("</script>")[0]
    numbers = re.findall(r"-?\d+\.\d{4,}", data)
    assert not numbers  # nothing is more precise than it is printed


@pytest.mark.slow
def test_own_data_are_named_in_the_command(own_npz, tmp_path):
    fedmes.run(
        data={"path": str(own_npz)},
        tasks=3,
        rounds=2,
        epochs=1,
        memory=12,
        model="mlp",
        out=tmp_path / "run",
    )
    (group,) = collect.collect([tmp_path / "run"])[0]
    assert f"--data {own_npz}" in rerun.command(group.runs[0])
    assert "own data own.npz" in group.title
    page = report_on(tmp_path, tmp_path / "run")
    assert page.data["groups"][0]["clients"] == ["a", "b"]
    matrix = unpack(page.data["groups"][0]["entries"][0]["mean"]["oblivious"][1], 3)
    assert np.isnan(matrix[2]).all() and not np.isnan(matrix[1, :2]).any()  # b has two tasks
