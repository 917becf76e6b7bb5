"""Clients of a run by their names, which folders do not have."""

from __future__ import annotations

import json
from pathlib import Path

from fedmes.common.text import listed, natural
from fedmes.errors import UserError
from fedmes.results.client_dir import TEXT_LIMIT


def client_directory(directory: Path, name: str | None) -> Path:
    """The directory of the client with this name, in a run's folder or in that of one seed; of
    several seeds, in the first. Without a name, `directory` itself."""
    if (directory / "client.json").exists():
        if name is not None:
            raise UserError(f"--client: {directory} is a client directory itself")
        return directory
    names = _names(directory)
    if not names:
        return directory  # whoever reads it says what is missing there
    known = listed([f"{place.relative_to(directory)} {each}" for place, each in names.items()])
    if name is None:
        raise UserError(f"{directory}: say which client with --client NAME; there are {known}")
    for place, each in names.items():
        if each == name:
            return place
    raise UserError(f"--client: {directory} has no client {name}; there are {known}")


def _names(directory: Path) -> dict[Path, str]:
    """The name of each client, by its directory."""
    found = {}
    places = [*directory.glob("client*/client.json"), *directory.glob("seed*/client*/client.json")]
    for path in sorted(places, key=lambda path: natural(str(path))):
        try:
            if path.stat().st_size <= TEXT_LIMIT:
                content = json.loads(path.read_text(encoding="utf-8"))
                found[path.parent] = str(content["client"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # no client that could be opened
    return found
