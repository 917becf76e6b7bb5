"""CORe50 from `core50_128x128/s1..s11/o1..o50/*.png`: eleven sessions with fifty objects each."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedmes.common import keyed_random
from fedmes.data.cache import Raw, fewer
from fedmes.errors import UserError

SESSIONS = 11
OBJECTS = 50


def find(root: Path) -> list[Path]:
    for folder in (root / "core50_128x128", root / "core50", root):
        sessions = [folder / f"s{s + 1}" for s in range(SESSIONS)]
        if found := list(filter(Path.is_dir, sessions)):
            return found
    return []


def read(folders: list[Path], labels: str = "sessions") -> Raw:
    """A fifth of each object's frames in a session, the same in every run, is for testing.

    Frames next to each other look alike and fall on both sides, so accuracies flatter.
    """
    cells: dict[tuple[int, int], list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("o*/*.png")):
            if (number := path.parent.name[1:]).isdigit() and 1 <= int(number) <= OBJECTS:
                cells.setdefault((int(folder.name[1:]) - 1, int(number) - 1), []).append(path)
    there = {session for session, _ in cells}
    if missing := [f"s{s + 1}" for s in range(SESSIONS) if s not in there]:
        raise UserError(
            f"{folders[0].parent}: {', '.join(missing)} of 11 session folders "
            "are missing or empty; unpack it again"
        )
    train = []
    test = []
    for (session, thing), frames in sorted(cells.items()):
        order = keyed_random.permutation(len(frames), "core50", session, thing)
        held = 0
        if len(frames) > 1:
            held = max(1, len(frames) // 5)
        train += [(frames[i], session, thing) for i in np.sort(order[held:])]
        test += [(frames[i], session, thing) for i in np.sort(order[:held])]
    pictures, sessions, objects = zip(*train, *test, strict=True)
    of_session = np.array(sessions)
    of_object = np.array(objects)
    notes = fewer("core50", len(pictures), 164_866)
    names = [f"o{o + 1}" for o in range(OBJECTS)]
    if labels == "sessions":
        names = [f"s{s + 1}/{name}" for s in range(SESSIONS) for name in names]
        y = OBJECTS * of_session + of_object
        return Raw(pictures, y, tuple(names), len(train), 3, notes=notes)
    return Raw(pictures, of_object, tuple(names), len(train), 3, session=of_session, notes=notes)
