"""How the configuration of a federation of real sites grows while it lives.

Numbers of classes, sites and tasks are places in tensors, so nothing is ever renumbered: what is
new is added at the end, and what leaves keeps its place. `federation.earlier` remembers how many
classes there were each time that some were added. From that, server and sites make the same
initial weights of the new ones, as `fedmes extend` does for a simulation. Mean and standard
deviation stay those of the start, on which everything learned so far depends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedmes.config.options import Config

COUNTS = ("clients", "tasks")
LISTS = ("memory.size", "federation.sites", "federation.classes", "federation.earlier")
# sites leave and come back, and get new keys; how to average is the server's to decide
FREE = ("federation.former", "federation.keys", "server.robust", "server.dishonest")
# of the images at the start; those of a later month have others, which are not taken over
STATISTICS = ("federation.mean", "federation.std")


def follows(key: str, stored: Any, new: Any) -> bool:
    """Is an option what it was, or what a federation that has grown makes of it?"""
    if key in FREE:
        return True
    if key in COUNTS:
        return bool(new >= stored)
    if key not in LISTS:
        return False
    if isinstance(new, list) and isinstance(stored, list | None):
        before = stored or []
        return new[: len(before)] == before
    return bool(new == stored)


def without_growth(asked: Config, stored: Config) -> Config:
    """What is asked for, where only what may not change can differ from what is stored."""
    options = stored.options()
    changes = {key: options[key] for key in (*COUNTS, *FREE)}
    if len(asked.federation.mean) == len(stored.federation.mean):
        changes |= {key: options[key] for key in STATISTICS}
    for key in LISTS:
        if isinstance(options[key], list):
            changes[key] = options[key]
    return asked.with_(changes)


def grown(stored: Config, asked: Config) -> Config:
    """The stored configuration with the sites, classes and tasks that are asked for now; sites that
    are no longer asked for have left."""
    before = stored.federation
    now = asked.federation
    sites = list(dict.fromkeys([*before.sites, *now.members]))
    keys = [now.key_of.get(name, "") for name in sites]
    changes: dict[str, Any] = {
        "federation.sites": sites,
        "federation.keys": keys if now.keys else [],
        "federation.former": [name for name in sites if name not in now.members],
        "clients": len(sites),
        "tasks": max(stored.tasks, asked.tasks),
        "server.robust": asked.server.robust,
        "server.dishonest": asked.server.dishonest,
    }
    if isinstance(asked.memory.size, list):
        changes["memory.size"] = asked.memory.size
    new = [label for label in now.classes if label not in before.classes]
    return with_classes(stored.with_(changes), new)


def with_classes(config: Config, new: Sequence[str], from_the_start: bool = False) -> Config:
    """With further classes after the known ones. `from_the_start`: nothing has been learned yet, so
    nothing has to grow."""
    if not new:
        return config
    agreed = config.federation
    changes: dict[str, Any] = {"federation.classes": [*agreed.classes, *new]}
    if not from_the_start:
        changes["federation.earlier"] = list(agreed.class_counts)
    return config.with_(changes)
