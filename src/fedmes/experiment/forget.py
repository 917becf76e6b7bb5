"""A client is taken out of a finished run: what remains is a run in which it never was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedmes.config.options import Config
from fedmes.engines import removal
from fedmes.engines.base import Engine, Score
from fedmes.engines.client_data import Federation
from fedmes.engines.devices import numerics
from fedmes.errors import UserError
from fedmes.experiment.made_from import changed, frozen_hash, made_from, refuse
from fedmes.experiment.prepare import Prepared, makers, open_source, prepare
from fedmes.experiment.recorder import Recorder
from fedmes.experiment.runner import finished_run, local_engine
from fedmes.experiment.train import State, restored
from fedmes.results.run_dir import Result
from fedmes.tensors import pick

AS_IT_WAS = "to take a client out, it is needed as it was; delete data after that"


def forgotten(
    directory: Path,
    clients: Sequence[str],
    given: Mapping[str, Callable[..., Any]] | None = None,
    trust: bool = False,
) -> tuple[Prepared, State]:
    """The run of the other clients, and its last state."""
    config, result, state = finished_run(directory, given or {}, trust, "forget")
    if config.engine.name == "flower":
        raise UserError(
            f"forget: the clients of {directory} keep their sums on their sites; "
            "of real sites, see fedmes federation forget"
        )
    _refuse_changes(directory, config, result, given)
    before = prepare(config, given)
    refuse(directory, changed(result.made_from, frozen_hash(before.method), config), AS_IT_WAS)
    gone = _numbers(clients, before)
    after = prepare(_without(config, before, gone), given)
    _refuse_shared_statistics(before, after)
    with numerics(config):
        others = _taken_out(directory, before, after, gone, state)
    names = ", ".join(_names(before)[k] for k in gone)
    run = directory.resolve().name
    now = datetime.now(UTC)
    note = (
        f"taken out of {run} on {now:%Y-%m-%d at %H:%M} UTC (fedmes forget): {names}; "
        "accuracies are those of the end, without"
    )
    return _with_note(after, note), others


def _refuse_changes(
    directory: Path, config: Config, result: Result, given: Mapping[str, Any] | None
) -> None:
    hashes = made_from(config, makers(config, given), open_source(config).dataset)
    refuse(directory, changed(result.made_from, hashes, config), AS_IT_WAS)


def _taken_out(
    directory: Path, before: Prepared, after: Prepared, gone: Sequence[int], state: State
) -> State:
    """The state of the clients who stay, and their scores with what the server then has."""
    engine = local_engine(after)
    whole = local_engine(before)
    clients = range(before.config.clients)
    recorder = Recorder(before.config)
    total = max(len(f.stream.position) for f in before.federations)
    done = restored(whole, recorder, state, total, directory)
    # Without anybody, the server is as it was at first, or it has not taken all that was sent.
    at_first = pick(engine.snapshot(), "server")
    lost = {who for who, row in recorder.last.items() if row.left_out}
    of_nobody = pick(removal.without(before.method, whole.snapshot(), clients, lost), "server")
    if not all(torch.equal(of_nobody[name], t) for name, t in at_first.items()):
        raise UserError(
            f"forget: the server of {directory} does not have all that its clients sent, "
            "so nothing can be taken out exactly; rounds.csv says which updates it left out"
        )
    tensors = removal.without(before.method, whole.snapshot(), gone, lost)
    engine.restore(tensors)
    remaining = recorder.of_clients(after.config, [k for k in clients if k not in gone])
    remaining.record([], _scores_at_the_end(engine, after.federations))
    tables, about = remaining.save()
    return tensors | tables, about | {"rounds_done": done, "rows": remaining.stored_rows(0)}


def _names(prepared: Prepared) -> list[str]:
    return list(prepared.federations[0].stream.names)


def _numbers(clients: Sequence[str], prepared: Prepared) -> list[int]:
    """Of clients in the run, each said by its name or else by its number."""
    names = _names(prepared)
    numbers = {str(k): k for k in range(len(names))}
    numbers |= {name: k for k, name in enumerate(names)}
    for client in clients:
        if client not in numbers:
            known = ", ".join(names)[:200]
            raise UserError(f"forget: there is no client {client}; there are {known}")
    return sorted({numbers[client] for client in clients})


def _without(config: Config, before: Prepared, gone: Sequence[int]) -> Config:
    """The configuration of the run of the others."""
    names = [_names(before)[k] for k in gone]
    others = before.federations[0].stream.without(names)
    changes: dict[str, Any] = {
        "clients": len(others.clients),
        "tasks": others.tasks,
        "data.without": [*config.data.without, *names],
    }
    if isinstance(sizes := config.memory.size, list):
        changes["memory.size"] = [size for k, size in enumerate(sizes) if k not in gone]
    return config.with_(changes)


def _refuse_shared_statistics(before: Prepared, after: Prepared) -> None:
    for whole, others in zip(before.federations, after.federations, strict=True):
        if whole.normalisation != others.normalisation:
            raise UserError(
                "forget: pixels were normalised by the mean and standard deviation of all clients, "
                "which cannot be undone; a pretrained network has its own (docs/pretrained.md)"
            )


def _scores_at_the_end(engine: Engine, federations: Sequence[Federation]) -> list[Score]:
    """Of each client after its last task, with the server's state as it is now."""
    last: dict[tuple[int, int], int] = {}
    for s, federation in enumerate(federations):
        for k, plan in enumerate(federation.plans):
            for g in range(len(plan.position)):
                if plan.ends(g) is not None:
                    last[s, k] = g
    scores = []
    for g in sorted(set(last.values())):
        for score in engine.evaluate(g):
            if last[score.seed, score.client] == g:
                scores.append(score)
    return scores


def _with_note(prepared: Prepared, note: str) -> Prepared:
    dataset = prepared.source.dataset
    dataset = replace(dataset, notes=(*dataset.notes, note))
    return replace(prepared, source=replace(prepared.source, dataset=dataset))
