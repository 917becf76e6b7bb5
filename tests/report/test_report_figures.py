"""How runs look, and the figures on paper: their lines are the metrics."""

import itertools

import numpy as np
import pytest

from fedmes.report import collect, curves
from fedmes.report.collect import Run
from fedmes.report.write import write_report
from fedmes.results import metrics
from helpers import made
from helpers.reported import report_on, runs_of


def test_methods_keep_their_looks_and_no_two_look_alike():
    from fedmes.methods import METHODS
    from fedmes.report import palette

    assert set(palette.KNOWN) == set(METHODS)
    assert len({(look.colour, look.dash) for look in palette.KNOWN.values()}) == len(METHODS)
    own = runs_of(*((f"own.py:Own{i}", [0.5]) for i in range(8)), ("fedmes", [0.5]))
    looks = palette.looks(own)
    assert looks[-1] == palette.KNOWN["fedmes"]
    assert len({(look.colour, look.dash) for look in looks}) == 9


# How protanopes, deuteranopes and tritanopes see linear RGB (Machado, Oliveira and Fernandes, 2009,
# severity 1).
SIGHT = {
    "full": np.eye(3),
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colours):
    values = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    """CIELAB of linear RGB, whose distances are roughly those that one sees."""
    to_xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )
    x, y, z = (np.clip(rgb, 0, 1) @ to_xyz.T / [0.9505, 1, 1.089]).T
    x, y, z = (np.where(v > 0.008856, np.cbrt(v), 7.787 * v + 16 / 116) for v in (x, y, z))
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_stay_apart_for_everybody(sight):
    from fedmes.report import palette

    for colours in (palette.LIGHT, palette.DARK):
        seen = lab(linear(colours) @ np.asarray(SIGHT[sight]).T)
        apart = [np.linalg.norm(one - two) for one, two in itertools.combinations(seen, 2)]
        assert min(apart) > 20


def test_colours_stand_out_from_the_background():
    from fedmes.report import palette

    for colours, background in ((palette.LIGHT, "#faf9f7"), (palette.DARK, "#1e2023")):
        *own, back = linear([*colours, background]) @ [0.2126, 0.7152, 0.0722]
        for luminance in own:
            assert (max(luminance, back) + 0.05) / (min(luminance, back) + 0.05) >= 3


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
    return {
        line.get_label(): line.get_ydata()
        for line in ax.lines
        if not line.get_label().startswith("_")
    }


@pytest.mark.slow
def test_lines_of_the_task_figure_are_the_metrics(drawn):
    from fedmes.report import figures

    axes = figures.per_task(drawn).axes
    for column, score in enumerate(("oblivious", "masked")):
        for run in drawn:
            numbers = run.metrics[score]
            np.testing.assert_allclose(lines_of(axes[column])[run.label], numbers["acc_task"])
            np.testing.assert_allclose(
                lines_of(axes[2 + column])[run.label], numbers["fr_task"][1:]
            )
    band = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    curve = curves.accuracy_by_task(drawn[0].result, "oblivious")
    assert band.max() == pytest.approx((curve.mean + curve.std).max())
    assert band.min() == pytest.approx((curve.mean - curve.std).min())


def test_client_figures_have_the_clients_numbers(drawn):
    from fedmes.report import figures

    panels = {ax.get_title(loc="left"): ax for ax in figures.per_client(drawn, "masked").axes}
    for run in drawn:
        np.testing.assert_allclose(
            panels[run.label].lines[0].get_ydata(), run.metrics["masked"]["acc_client"]
        )
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
    np.testing.assert_allclose(vote, curves.vote_by_task(drawn[1].result, "masked").mean)
    assert figures.vote_gain([drawn[0]]) is None
    rule2, pull, distance = figures.over_rounds(drawn).axes
    assert set(lines_of(rule2)) == set(lines_of(pull)) == {"fedmes"}
    assert len(lines_of(distance)["fedmes"]) == 4 * 2
    np.testing.assert_allclose(lines_of(rule2)["fedmes"], [0, 0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
    bars, points = figures.wall_clock(drawn).axes
    assert {bar.get_width() for bar in bars.patches} == {4.0, 4 * 2 * 2.25}
    assert lines_of(points)["fedmes"] == pytest.approx(
        [drawn[1].metrics["oblivious"]["acc_all"]["mean"]]
    )


def test_memory_and_box_figures():
    from fedmes.report import figures

    runs = [
        Run.of(
            made.result(
                made.random_accuracy(size, 2, 2, 4), method="fedmes", **{"memory.size": size}
            ),
            f"m{size}",
        )
        for size in (10, 30)
    ]
    ax = figures.memory_sweep(runs).axes[0]
    (line,) = [line for line in ax.lines if line.get_label() == "fedmes"]
    assert list(line.get_xdata()) == [10, 30]
    np.testing.assert_allclose(
        line.get_ydata(), [run.metrics["oblivious"]["acc_all"]["mean"] for run in runs]
    )
    boxes = figures.task_boxes(runs).axes[0]
    best_first = sorted(runs, key=lambda run: -run.metrics["oblivious"]["acc_all"]["mean"])
    assert [text.get_text() for text in boxes.get_yticklabels()] == [
        run.label for run in best_first
    ]
    for run, box in zip(best_first, boxes.patches, strict=True):
        low, high = np.quantile(run.metrics["oblivious"]["acc_task"], [0.25, 0.75])
        assert (box.get_x(), box.get_x() + box.get_width()) == pytest.approx((low, high))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_little_or_nothing_measured_can_be_drawn_too(tmp_path):
    """One seed, one client, one task; and a run that measured nothing."""
    from fedmes.report import figures

    made.write(tmp_path / "a", made.triangle([0.5], clients=1, tasks=1), rounds=False)
    made.write(
        tmp_path / "b",
        made.triangle([float("nan")], clients=1, tasks=1),
        method="fedmes",
        rounds=False,
    )
    (group,) = collect.collect([tmp_path])[0]
    drawn = figures.figures_of(group)
    assert "matrix" in drawn and "over-rounds" not in drawn
    for name, figure in drawn.items():
        engine = figure.get_layout_engine()
        figures.save(figure, tmp_path / "figures", name)
        assert figure.get_layout_engine() is engine is not None
    page = report_on(tmp_path, tmp_path)
    assert page.one("h1")["text"] == "fedavg reaches 0.500"
    assert "No accuracy was measured for fedmes." in page.one("main")["text"]


@pytest.mark.slow
def test_figures_are_files_and_the_same_each_time(trained_runs, tmp_path):
    from fedmes.report import figures

    write_report([trained_runs / "fedmes"], tmp_path / "page.html", figures=tmp_path / "one")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    stems = {"per-task", "over-rounds", "vote", "matrix", "boxes"}
    stems |= {
        f"{n}-{s}"
        for n in ("per-client", "small-multiples", "wall-clock")
        for s in ("oblivious", "masked")
    }
    assert files == sorted(f"{stem}.{kind}" for stem in stems for kind in ("png", "svg", "pdf"))
    (group,) = collect.collect([trained_runs / "fedmes"])[0]
    figures.save(figures.per_task(group.runs), tmp_path / "two", "per-task")
    for file in ("per-task.png", "per-task.svg", "per-task.pdf"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
