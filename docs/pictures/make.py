"""The pictures of docs/concepts.md, choose.md, pretrained.md and architecture.md: `python
docs/pictures/make.py` trains twice, for half a minute, for one of them."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

import fedmes
from fedmes.report import mpl, palette
from fedmes.results import metrics

HERE = Path(__file__).parent
BLUE, ORANGE, GREEN, MAGENTA, GREY, SKY, GOLD, BROWN = palette.LIGHT
TASKS = {"A": BLUE, "B": ORANGE, "C": GREEN, "D": MAGENTA, "E": GOLD}


def blank(width, height):
    figure = Figure(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    return figure, ax


def box(ax, x, y, width, height, text, colour="#eef2f6", ink=mpl.INK, size=9):
    ax.add_patch(
        FancyBboxPatch(
            (x, y), width, height, boxstyle="round,pad=0.02", facecolor=colour, edgecolor="#99a"
        )
    )
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=ink)


def arrow(ax, start, end, text="", colour="#555555", shift=(0.0, 0.0), curve=0.0):
    look = {
        "arrowstyle": "-|>",
        "color": colour,
        "linewidth": 1.3,
        "connectionstyle": f"arc3,rad={curve}",
    }
    ax.annotate("", end, start, arrowprops=look)
    if text:
        x, y = (start[0] + end[0]) / 2 + shift[0], (start[1] + end[1]) / 2 + shift[1]
        ax.text(x, y, text, ha="center", va="center", fontsize=8.5, color=colour)


def streams():
    """Every client meets the tasks in an order of its own, and its own classes of each."""
    figure, ax = blank(7.2, 2.9)
    orders = ("CAEBD", "BDACE", "EBCDA", "ACBED")
    drawn = {"A": ("a1 a2", "a2 a5", "a1 a3", "a2 a4"), "B": ("b1 b4", "b2 b3", "b3 b4", "b1 b5"),
             "C": ("c2 c3", "c1 c4", "c2 c5", "c3 c4"), "D": ("d1 d2", "d3 d4", "d2 d5", "d1 d4"),
             "E": ("e1 e5", "e2 e3", "e1 e4", "e3 e5")}  # fmt: skip
    for k, order in enumerate(orders):
        y = 2.05 - 0.5 * k
        ax.text(0.1, y + 0.18, f"client {k}", fontsize=9, va="center")
        for t, task in enumerate(order):
            x = 1.0 + 1.2 * t
            ax.add_patch(Rectangle((x, y), 1.1, 0.38, facecolor=TASKS[task]))
            ax.text(
                x + 0.55,
                y + 0.19,
                f"{task}: {drawn[task][k]}",
                ha="center",
                va="center",
                fontsize=8.5,
                color="white",
            )
    arrow(ax, (1.0, 0.3), (7.0, 0.3))
    ax.text(
        4.0,
        0.13,
        "time: several rounds a task, then its data is gone but for a few samples",
        fontsize=8.5,
        ha="center",
    )
    ax.text(
        1.0,
        2.65,
        "five tasks, another order for each client, and of each task only some classes",
        fontsize=9,
    )
    return figure


def one_round():
    """What moves in a round, and what never does."""
    figure, ax = blank(7.2, 3.1)
    box(ax, 2.7, 2.4, 1.8, 0.5, "server: average W", "#dde7f3")
    for k, x in enumerate((0.15, 2.55, 4.95)):
        ax.add_patch(
            FancyBboxPatch(
                (x, 0.1),
                2.05,
                1.45,
                boxstyle="round,pad=0.03",
                facecolor="#fafafa",
                edgecolor="#99a",
            )
        )
        ax.text(x + 0.1, 1.42, f"client {k}", fontsize=9, va="center")
        box(ax, x + 0.1, 0.8, 1.85, 0.42, f"own model w{k}", "#dde7f3")
        box(ax, x + 0.1, 0.18, 0.9, 0.42, "task's data", "#f3e3d3", size=8)
        box(ax, x + 1.1, 0.18, 0.85, 0.42, "memory", "#e0efe6", size=8)
        arrow(ax, (3.45 + 0.5 * (k - 1), 2.38), (x + 0.8, 1.62), colour=GREY)
        arrow(ax, (x + 1.2, 1.62), (3.75 + 0.5 * (k - 1), 2.38), colour=BLUE)
    ax.text(0.3, 2.3, "grey: W goes down", fontsize=8.5, color=GREY)
    ax.text(0.3, 2.08, "blue: models go up", fontsize=8.5, color=BLUE)
    ax.text(5.55, 2.75, "data and memory", fontsize=8.5, color=BROWN)
    ax.text(5.55, 2.53, "never leave a client", fontsize=8.5, color=BROWN)
    return figure


def memory_twice():
    """Left: in training the memory's gradient corrects a step. Right: in prediction its nearest
    samples vote."""
    figure, ax = blank(7.2, 2.9)
    ax.text(0.15, 2.7, "in training: no step against the memory", fontsize=9)
    o = np.array([1.6, 0.9])
    g, gm = np.array([-0.75, 1.2]), np.array([1.2, 0.28])
    d = g - (g @ gm) / (gm @ gm) * gm
    normal = np.array([-gm[1], gm[0]]) / np.linalg.norm(gm)
    ax.plot(
        *np.array([o - 0.55 * normal, o + 1.7 * normal]).T,
        color="#bbbbbb",
        linestyle="dashed",
        linewidth=1,
    )
    arrows = ((g, "g: this batch", ORANGE, (-0.3, 0.12)), (gm, "gm: the memory", GREEN, (0.0, 0.14)),
              (d, "the step taken", BLUE, (0.55, 0.1)))  # fmt: skip
    for vector, name, colour, at in arrows:
        arrow(ax, o, o + vector, colour=colour)
        ax.text(*(o + vector + at), name, fontsize=8.5, color=colour, ha="center")
    ax.plot(*np.array([o + g, o + d]).T, color=ORANGE, linestyle="dotted", linewidth=1)
    rule = "g points against gm: its part along gm is left out.\nElse: g, and a pull towards the received model."
    ax.text(0.15, 0.12, rule, fontsize=8.5)
    ax.text(3.85, 2.7, "in prediction: the nearest samples vote", fontsize=9)
    rng = np.random.RandomState(3)
    centres = {"o": ((4.5, 1.9), BLUE), "s": ((5.9, 2.1), ORANGE), "^": ((5.3, 1.0), GREEN)}
    spots = []
    for marker, (centre, colour) in centres.items():
        for x, y in np.array(centre) + 0.2 * rng.randn(5, 2):
            ax.plot(x, y, marker=marker, color=colour, markersize=6)
            spots.append((x, y))
    query = np.array([4.95, 1.6])
    for x, y in sorted(spots, key=lambda spot: np.hypot(*(query - spot)))[:4]:
        ax.plot([query[0], x], [query[1], y], color="#888888", linewidth=0.8, zorder=0)
    ax.plot(*query, marker="*", color=mpl.INK, markersize=13)
    ax.text(4.3, 0.95, "a new sample and\nits four nearest", fontsize=8.5, ha="center")
    ax.text(
        3.85,
        0.12,
        "half the votes, half the network's opinion;\nnobody has to say which task it is.",
        fontsize=8.5,
    )
    return figure


def forgetting():
    """Real: what becomes of a client's first task as it learns four more. Split Digits, seeds 0 to
    2, no task id."""
    options = {"benchmark": "split-digits", "seeds": [0, 1, 2], "output": {"models": "none"}}
    with mpl.sheet(1, 2, 2.7, sharey=True) as (figure, axes):
        for method, colour, marker in (("fedavg", GREY, "X"), ("fedmes", BLUE, "o")):
            result = fedmes.run(method=method, **options)
            first = np.nanmean(result.acc[..., 0], axis=(0, 1))
            so_far = np.nanmean(metrics.accuracy_after(result.acc), axis=(0, 1))
            for ax, values in zip(axes.flat, (first, so_far), strict=True):
                ax.plot(range(1, 6), values, color=colour, marker=marker, label=method)
        for ax, title in zip(
            axes.flat,
            ("accuracy on a client's first task", "accuracy on all its tasks so far"),
            strict=True,
        ):
            ax.set(title=title, xlabel="tasks learned", ylim=(0, 1.03), xticks=range(1, 6))
        axes[0, 0].legend(loc="lower left")
    return figure


def rooms():
    """The folders of the package, in the order in which data flows: each imports only those before
    it."""
    figure, ax = blank(8.2, 4.3)
    rows = (
        ("what is asked", "#eef2f6", ("common", "config", "data", "scenario")),
        ("the mathematics", "#dde7f3", ("models", "methods")),
        ("what is kept", "#f3e3d3", ("results",)),
        ("where clients run", "#dde7f3", ("engines", "engines/stacked", "engines/flower")),
        ("from a configuration to a result", "#e0efe6", ("experiment",)),
        ("who uses it", "#eef2f6", ("prediction", "report", "studies", "deployment", "api", "cli")),
    )
    for i, (meaning, colour, folders) in enumerate(rows):
        y = 3.72 - 0.7 * i
        ax.text(0.1, y + 0.21, meaning, fontsize=8.5, va="center", color="#555555")
        for k, folder in enumerate(folders):
            box(ax, 2.15 + 1.0 * k, y, 0.92, 0.42, folder.replace("/", "/\n"), colour, size=8)
        if i:
            arrow(ax, (2.61, y + 0.7), (2.61, y + 0.46), colour=GREY)
    return figure


def choose():
    """Which method, and what it reached on Split CIFAR-100 without a task id."""
    figure, ax = blank(8.6, 3.6)
    box(ax, 2.9, 3.0, 2.8, 0.45, "Is there a pretrained network\nfor such data?", size=9)
    box(ax, 1.75, 1.85, 2.6, 0.5, "What of it is trained?", size=9)
    box(ax, 6.45, 1.85, 2.05, 0.5, "train from scratch", "#f3e3d3", size=9)
    leaves = (
        ("fedstats\nsums of features, one round\n.865, .809 at last", "#e0efe6"),
        ("fedstats\nadapters learn, then sums\n.880, .828 at last", "#e0efe6"),
        ("fedmes-plus\nlast layers or all of them\n.649 to .770 (128 px)", "#dde7f3"),
        ("fedmes-plus\nreplay, teacher, averages\n.481, .377 at last", "#dde7f3"),
    )
    for i, (text, colour) in enumerate(leaves):
        box(ax, 0.05 + 2.14 * i, 0.35, 2.03, 0.85, text, colour, size=8)
    arrow(ax, (3.8, 2.98), (3.2, 2.4), "yes", shift=(-0.25, 0.05))
    arrow(ax, (5.2, 2.98), (7.2, 2.4), "no", shift=(0.2, 0.08))
    arrow(ax, (2.2, 1.82), (1.1, 1.26), "the head", shift=(-0.42, 0.04))
    arrow(ax, (3.05, 1.82), (3.15, 1.26), "adapters", shift=(0.36, 0.0))
    arrow(ax, (3.9, 1.82), (5.2, 1.26), "more", shift=(0.25, 0.06))
    arrow(ax, (7.45, 1.82), (7.5, 1.26))
    return figure


def federation_pays():
    """Accuracy by images per class, as in the table of docs/pretrained.md."""
    figure = Figure(figsize=(6.4, 3.0), layout="constrained")
    ax = figure.subplots()
    images = (1, 5, 10, 50)
    measured = {
        "FedStats": (BLUE, (0.539, 0.771, 0.817, 0.865)),
        "a client alone": (GREY, (0.352, 0.704, 0.774, 0.853)),
        "FedMeS+": (ORANGE, (0.536, 0.664, 0.707, 0.817)),
    }
    for name, (colour, accuracy) in measured.items():
        ax.plot(images, accuracy, "o-", color=colour, label=name)
    ax.set_xscale("log")
    ax.set_xticks(images, list(map(str, images)))
    ax.minorticks_off()
    ax.set_xlabel("images per class and client")
    ax.set_ylabel("accuracy without task id")
    ax.legend(frameon=False)
    return figure


if __name__ == "__main__":
    for make in (streams, one_round, memory_twice, rooms, choose, federation_pays, forgetting):
        with matplotlib.rc_context(mpl.SETTINGS | {"svg.fonttype": "none"}):
            name = make.__name__.replace("_", "-")
            make().savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": None})
