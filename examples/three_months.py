"""Five sites over three months, as real processes on this machine.

    python examples/three_months.py OUT

Handwritten digits, two classes per site and month. In the second month two sites meet digits that
nobody listed, and the SuperNode of a third one is killed in the middle of a round. In the third
month a sixth site joins, and one has left. Every site has its own folder, key and process; the
commands are those of docs/deployment.md.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from fedmes.data.digits import load
from fedmes.deployment.local import Federation

MONTHS: tuple[Mapping[str, tuple[int, int]], ...] = (
    {"berlin": (0, 1), "lyon": (1, 2), "oslo": (2, 0), "porto": (0, 2), "turin": (1, 0)},
    {"berlin": (2, 3), "lyon": (0, 4), "oslo": (1, 2), "porto": (1, 0), "turin": (2, 1)},
    {"berlin": (4, 1), "lyon": (3, 0), "oslo": (3, 4), "turin": (4, 2), "wien": (3, 1)},
)
IMAGES = 30  # per class
KILLED = "oslo"
OPTIONS = ("method=fedmes-plus", "model=cnn2", "rounds=2", "epochs=5", "memory=60", "tasks=12")


def main(out: Path) -> None:
    out.mkdir(parents=True)
    facts: dict[str, Path] = {}
    for month, members in enumerate(MONTHS, start=1):
        for name, labels in members.items():
            add_images(out / "images" / name / f"2025-{month:02}", labels, name, month)
            facts[name] = introduced(out / "sites" / name, out / "images" / name)
        here = [facts[name] for name in members]
        # classes in the order of the first month, mean and std of that month: the server keeps them
        agreed = fedmes("federation", "config", *map(str, here), *settings())
        (out / "config.toml").write_text(agreed)
        run(out, list(members), kill=KILLED if month == 2 else None)
        print(f"month {month}:", fedmes("status", str(out / "result")))


def add_images(folder: Path, labels: tuple[int, int], site: str, month: int) -> None:
    """A site's images of a month: nobody else has the same ones."""
    digits = load()
    rng = np.random.default_rng([month, *site.encode()])
    for label in labels:
        place = folder / f"digit-{label}"
        place.mkdir(parents=True)
        rows = rng.permutation(np.flatnonzero(digits.y == label))[:IMAGES]
        for row in rows.tolist():
            Image.fromarray(digits.x[row, ..., 0]).save(place / f"{row}.png")


def introduced(folder: Path, images: Path) -> Path:
    """What the operator is told of a site, as a file."""
    if folder.exists():
        fedmes("site", "facts", str(folder))
    else:
        fedmes("site", "init", str(folder), "--data", str(images), "--name", folder.name)
    return folder / "site-facts.toml"


def run(out: Path, members: list[str], kill: str | None) -> None:
    """Until no site has anything left to learn."""
    folders = [out / "sites" / name for name in members]
    progress = out / "result" / "progress.jsonl"
    with Federation(out / "federation", folders) as federation:
        federation.submit(config=str(out / "config.toml"), out=str(out / "result"))
        before = lines(progress)

        def meanwhile() -> None:
            nonlocal kill
            if kill is not None and lines(progress) > before:
                federation.supervisor.kill(f"site{members.index(kill)}")
                kill = None

        status = federation.wait(meanwhile=meanwhile)
    if status != "completed":
        raise SystemExit(f"the run ended as {status}: {federation.last_words()}")


def lines(path: Path) -> int:
    if not path.is_file():
        return 0
    return len(path.read_text().splitlines())


def settings() -> list[str]:
    found = []
    for option in OPTIONS:
        found += ["--set", option]
    return found


def fedmes(*arguments: str) -> str:
    command = [sys.executable, "-m", "fedmes", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
