"""Small files with a table, texts and time series: two clients, two tasks of two classes each."""

import csv

import numpy as np

LABELS = {"jan": ("ok", "worn"), "feb": ("cold", "hot")}
SAID = {"ok": "all is fine", "worn": "a scratch again", "cold": "ice, ice", "hot": "smoke!"}
PER_CLASS = 10


def rows():
    """(client, task, label, number) of every sample."""
    found = []
    for client in ("north", "south"):
        for task, labels in LABELS.items():
            for label in labels:
                found += [(client, task, label, n) for n in range(PER_CLASS)]
    return found


def written(path, names, cells):
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(names)
        table.writerows(cells)
    return path


def machines(folder):
    """Columns of very different scales, and one of names."""
    draw = np.random.RandomState(0)
    order = list(SAID)
    cells = []
    for client, task, label, n in rows():
        place = order.index(label)
        force = 5000 + 1000 * (place + 0.2 * draw.standard_normal())
        wear = 1e-3 * (place % 2 + 0.2 * draw.standard_normal())
        cells.append((client, task, label, repr(force), repr(wear), ("steel", "brass")[n % 2]))
    return written(
        folder / "machines.csv", ("client", "task", "y", "force", "wear", "metal"), cells
    )


def notes(folder):
    cells = []
    for client, task, label, n in rows():
        cells.append((client, task, label, f"{SAID[label]} on day {n}"))
    return written(folder / "notes.csv", ("client", "task", "label", "text"), cells)


def vibrations(folder):
    """Two channels; classes differ in frequency."""
    draw = np.random.RandomState(1)
    steps = np.arange(16)
    order = list(SAID)
    series = []
    for _, _, label, _ in rows():
        wave = np.sin(0.5 * (order.index(label) + 1) * steps + draw.uniform(0, 6))
        series.append(np.stack([wave, 300 + 9 * draw.standard_normal(16)], axis=1))
    client, task, label, _ = zip(*rows(), strict=True)
    np.savez(folder / "vibrations.npz", series=series, y=label, client=client, task=task)
    return folder / "vibrations.npz"


FILES = {"mlp": machines, "text": notes, "cnn1d": vibrations}  # by the network that suits them
