"""What an engine's snapshot would be if some of its clients had never been there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor
from torch.func import vmap

from fedmes.methods.base import Method
from fedmes.tensors import Tensors, map_entries, pick, put

Lost = Collection[tuple[int, int]]  # seeds and clients


def without(method: Method, snapshot: Tensors, gone: Collection[int], lost: Lost) -> Tensors:
    """The others are numbered anew. The snapshot is of the loop or the stacked engine, whichever
    the method's configuration names. `lost`: whose last update was left out."""
    seeds, clients = snapshot["learned"].shape
    kept = [k for k in range(clients) if k not in gone]
    found = {"learned": snapshot["learned"][:, kept]}
    if method.config.engine.name == "stacked":
        return found | _of_all(method, snapshot, gone, kept, lost)
    for s in range(seeds):
        found |= _of_seed(method, snapshot, s, gone, kept, lost)
    return found


def _less(method: Method, server: Tensors, state: Tensors, lost: Tensor) -> Tensors:
    """The server's state without what a client has sent."""
    told = method.upload_lost(state)
    state = state | {name: torch.where(lost, t, state[name]) for name, t in told.items()}
    return method.without(server, state)


def _of_all(
    method: Method, snapshot: Tensors, gone: Collection[int], kept: Sequence[int], lost: Lost
) -> Tensors:
    """Entries of all seeds and clients in one, [seed, client, ...]."""
    server = pick(snapshot, "server")
    if "kept_clients" in snapshot:
        return _of_kept(method, server, snapshot, gone, kept, lost)
    states = pick(snapshot, "client")
    less = vmap(partial(_less, method))
    for k in gone:
        of_client = map_entries(itemgetter((slice(None), k)), states)
        its_lost = torch.tensor([(s, k) in lost for s in range(len(snapshot["learned"]))])
        server = less(server, of_client, its_lost)
    return put("server", server) | put("client", map_entries(lambda t: t[:, kept], states))


def _of_kept(
    method: Method,
    server: Tensors,
    snapshot: Tensors,
    gone: Collection[int],
    kept: Sequence[int],
    lost: Lost,
) -> Tensors:
    """Entries of the clients that have trained, [n, ...], with their seeds and numbers [n, 2]."""
    states = pick(snapshot, "kept")
    who = snapshot["kept_clients"].tolist()
    server = map_entries(torch.clone, server)
    for i, (s, k) in enumerate(who):
        if k in gone:
            of_seed = map_entries(itemgetter(s), server)
            state = map_entries(itemgetter(i), states)
            less = _less(method, of_seed, state, torch.tensor((s, k) in lost))
            for name, t in less.items():
                server[name][s] = t
    stay = [i for i, (_, k) in enumerate(who) if k not in gone]
    numbers = [[s, kept.index(k)] for s, k in who if k not in gone]
    found = put("server", server) | put("kept", map_entries(lambda t: t[stay], states))
    return found | {"kept_clients": torch.tensor(numbers, dtype=torch.int64).reshape(-1, 2)}


def _of_seed(
    method: Method,
    snapshot: Tensors,
    s: int,
    gone: Collection[int],
    kept: Sequence[int],
    lost: Lost,
) -> Tensors:
    """Entries of each client under its number."""
    server = pick(snapshot, f"server.{s}")
    for k in gone:
        if state := pick(snapshot, f"client.{s}.{k}"):  # of very many, those that have trained
            server = _less(method, server, state, torch.tensor((s, k) in lost))
    found = put(f"server.{s}", server)
    for number, k in enumerate(kept):
        found |= put(f"client.{s}.{number}", pick(snapshot, f"client.{s}.{k}"))
    return found
