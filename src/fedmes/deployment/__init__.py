"""Flower as processes: keys, site folders, a supervisor, a whole federation on loopback."""

from __future__ import annotations

from importlib.util import find_spec

from fedmes.errors import UserError


def require_flower() -> None:
    if find_spec("flwr") is None:
        raise UserError("Flower is not installed; pip install 'fedmes[flower]'")
