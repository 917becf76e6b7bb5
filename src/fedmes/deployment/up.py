"""`fedmes federation up`: an experiment on a federation on this machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmes.common.files import replace_text, sha256_of
from fedmes.config.options import Config
from fedmes.data import tables
from fedmes.deployment import site
from fedmes.deployment.local import Federation
from fedmes.deployment.policy import Policy
from fedmes.deployment.server import continued
from fedmes.deployment.supervisor import end_leftovers, noticed_signals
from fedmes.errors import FederationError, Stopped, UserError
from fedmes.experiment.made_from import refuse, stale
from fedmes.experiment.prepare import Blueprint, Prepared, agreement, prepare, sites_blueprint
from fedmes.experiment.recorder import Standing
from fedmes.experiment.train import alone_in
from fedmes.results import checkpoint, run_dir
from fedmes.results.run_dir import Result

ANOTHER = "begin another one, with another --out"
LEARNED = "data.sha256"  # of the data that the sites had at the last run to its end

Watcher = Callable[[Standing], None]
Sites = dict[str, dict[str, Any]]  # what each has in its site.toml, by name


def up(
    config: Config, out: Path | None, on_progress: Watcher | None = None, nodes: int | None = None
) -> Result:
    """Start a site per client, run the experiment on them, and always end every process. `nodes`:
    how many sites share the clients out instead.

    Called again with the same directory, it resumes the run. If the data of sites has grown by
    then, they learn what is new: tasks, classes, and sites that join or leave.
    """
    config = config.with_({"engine.name": "flower"})
    data = "" if config.data.path is None else sha256_of(Path(config.data.path))
    known, sites, directory = _asked(config, out)
    config = known.config
    held = sites if nodes is None else _shared_out(sites, nodes)
    _refuse_other_nodes(directory, held)
    changes = stale(directory, known.made_from, config)
    folder = directory / "federation"
    learned = folder / LEARNED
    grown = learned.is_file() and learned.read_text() != data
    if run_dir.finished(directory, config) and not grown:
        refuse(directory, changes, ANOTHER)
        return run_dir.load(directory)
    if folder.is_dir():  # an earlier start, which may have been killed
        with checkpoint.locked(folder):
            end_leftovers(folder)
    # the server, which takes the directory over, finds it as it will be
    with alone_in(directory, config):
        refuse(directory, changes, ANOTHER)
        run_dir.claim(directory, config)
    folder.mkdir(mode=0o700, exist_ok=True)
    with checkpoint.locked(folder):
        _run(config, directory, held, on_progress)
    if data:
        replace_text(learned, data)
    return run_dir.load(directory)


def _run(config: Config, directory: Path, held: Sites, on_progress: Watcher | None) -> None:
    """The experiment to its end, or until a signal comes, on a federation of its own."""
    progress = _Tail(directory / "progress.jsonl", on_progress)
    with noticed_signals() as signals:

        def meanwhile() -> None:
            if signals:
                raise Stopped(f"stopped; the same command with --out {directory} resumes the run")
            progress.read()

        places, key_of = _places(directory / "sites", held, config)
        if config.federation.sites:
            keys = [key_of.get(name, "") for name in config.federation.sites]
            run_dir.claim(directory, config.with_({"federation.keys": keys}))
        with Federation(directory / "federation", places, meanwhile=meanwhile) as federation:
            federation.submit(config=str(directory / "config.toml"), out=str(directory))
            status = federation.wait()
            if status != "completed":
                words = progress.error or federation.last_words()
                raise FederationError(
                    f"the run ended as {status}: {words}\nall logs are in {federation.log}"
                )


def _asked(config: Config, out: Path | None) -> tuple[Prepared | Blueprint, Sites, Path]:
    """What is to be run, on which sites, and in which directory."""
    if config.data.path is None:
        prepared = prepare(config)
        sites: Sites = {f"site{k}": {"client": k} for k in range(prepared.config.clients)}
        return prepared, sites, (out or run_dir.default_directory(prepared.config)).resolve()
    agreed, sites = sites_of_custom_data(config, Path(config.data.path))
    directory = (out or run_dir.default_directory(sites_blueprint(agreed).config)).resolve()
    return continued(agreed.with_({"checkpoint.every": "round"}), directory), sites, directory


def sites_of_custom_data(config: Config, data: Path) -> tuple[Config, Sites]:
    """What the sites agree on, and each client's folder or table as a site's data."""
    if not data.is_dir():
        raise UserError(
            "federation up: --data must be a folder, laid out as CLIENT/TASK/train|test/CLASS/* "
            "or CLIENT.csv"
        )
    agreed = agreement(config)
    if "clients" in config.model_fields_set and config.clients != agreed.clients:
        raise UserError(
            f"sites: {config.clients} asked for, but {data} has {agreed.clients}; "
            "leave the option out"
        )
    tables_of = {path.stem: path for path in tables.of_sites(data)}
    sites = {}
    for name in agreed.federation.sites:
        sites[name] = {"data": str(tables_of.get(name, data / name))}
    return agreed, sites


def _shared_out(sites: Sites, nodes: int) -> Sites:
    """The contents of sites as those of fewer nodes."""
    if nodes > len(sites):
        raise UserError(f"nodes: {nodes} for {len(sites)} clients; each holds at least one")
    contents = list(sites.values())
    found = {}
    for n in range(nodes):
        mine = contents[n * len(contents) // nodes : (n + 1) * len(contents) // nodes]
        (kind,) = mine[0]  # data, or the client of a benchmark
        found[f"node{n}"] = {kind: [content[kind] for content in mine]}
    return found


def _refuse_other_nodes(directory: Path, held: Mapping[str, Mapping[str, Any]]) -> None:
    """What an earlier start has learned is in its sites' folders, also that of many clients."""
    there = {}
    for path in (directory / "sites").glob("*/site.toml"):
        there[path.parent.name] = site.read(path.parent)
    if there and _of_many(there) != _of_many(held):
        raise UserError(
            f"{directory}: it was begun with the clients on other nodes; "
            "repeat the command with the same --sites and --nodes"
        )


def _of_many(sites: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What sites hold that hold several clients."""
    found = {}
    for name, content in sites.items():
        clients = content.get("data", content.get("client"))
        if isinstance(clients, list):
            found[name] = clients
    return found


def _places(sites: Path, held: Sites, config: Config) -> tuple[list[Path], dict[str, str]]:
    """The folders of all sites, and the key of each real client, by name."""
    policy = Policy.of_trial(config)
    weights = {}
    if config.model.weights not in site.NO_FILE:
        weights = {"weights": str(Path(str(config.model.weights)).resolve())}
    places = []
    keys: dict[str, str] = {}
    for name, content in held.items():
        place = _place(sites / name, content | weights, policy)
        places.append(place)
        clients = site.data_of({"name": name, **content})
        keys |= dict.fromkeys(clients, site.fingerprint(place))
    return places, keys


def _place(folder: Path, content: dict[str, Any], policy: Policy) -> Path:
    """A site's folder; one of an earlier start contains what its client has learned."""
    if (folder / "site.toml").is_file():
        site.describe(folder, folder.name, content, policy)
    else:
        shutil.rmtree(folder, ignore_errors=True)  # a start that was cut short
        site.create(folder, folder.name, content, policy)
    return folder


class _Tail:
    """What the server appends to its file of progress, passed on to a listener."""

    def __init__(self, path: Path, listener: Watcher | None) -> None:
        self.path = path
        self.listener = listener
        self.offset = path.stat().st_size if path.is_file() else 0
        self.error = ""  # of the server, if it failed

    def read(self) -> None:
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            news = file.read()
        news = news[: news.rfind(b"\n") + 1]  # a line may still be in writing
        self.offset += len(news)
        for line in news.splitlines():
            content = json.loads(line)
            if "error" in content:
                self.error = content["error"]
            elif self.listener is not None:
                content.pop("time")
                self.listener(Standing(**content))
