"""`fedmes federation up`: an experiment on a federation of this machine's own."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmes import checkpoint, experiment, results
from fedmes.book import Listener, Progress
from fedmes.config import Config
from fedmes.deployment import site
from fedmes.deployment.local import Federation
from fedmes.errors import FederationError, Stopped, UserError
from fedmes.experiment import Prepared
from fedmes.results import Result


def up(config: Config, out: Path | None, on_progress: Listener | None = None) -> Result:
    """Start a site for each client, run the experiment on them, and end every process whatever happens. Called again
    with the same directory it goes on where it was stopped."""
    if config.data.path is not None and not Path(config.data.path).is_dir():
        raise UserError("federation up: --data must be a folder, laid out as CLIENT/TASK/train|test/CLASS/*")
    prepared = experiment.prepare(config)
    config = prepared.config
    directory = (out or experiment.default_directory(config)).resolve()
    if results.finished(directory, config):
        return results.load(directory)
    results.claim(directory, config, experiment.versions())
    folder = directory / "federation"
    folder.mkdir(mode=0o700, exist_ok=True)
    with checkpoint.locked(folder), ended_by_signals(directory):
        sites = _sites(prepared, directory / "sites")
        progress = _Tail(directory / "progress.jsonl", config, on_progress)
        with Federation(folder, sites) as federation:
            federation.submit(config=str(directory / "config.toml"), out=str(directory))
            status = federation.wait(meanwhile=progress.read)
            if status != "completed":
                raise FederationError(
                    f"the run ended as {status}; all logs are in {federation.log}\n{federation.last_words()}"
                )
    return results.load(directory)


def _sites(prepared: Prepared, folder: Path) -> list[Path]:
    """A site's folder for each client; one that is there from an earlier start has what its client has learned."""
    config = prepared.config
    found = []
    for k, client in enumerate(prepared.federations[0].stream.clients):
        content: dict[str, Any] = {"benchmark": True, "client": k}
        if config.data.path is not None:
            content = {"data": str(Path(config.data.path) / client.name)}
        found.append(folder / f"site{k}")
        if not (found[-1] / "site.toml").is_file():
            shutil.rmtree(found[-1], ignore_errors=True)  # a start that was cut short
            site.create(found[-1], f"site{k}" if config.data.path is None else client.name, content)
    return found


class _Tail:
    """What the server appends to its file of progress, passed on to a listener."""

    def __init__(self, path: Path, config: Config, listener: Listener | None) -> None:
        self.path, self.config, self.listener = path, config, listener
        self.offset = path.stat().st_size if path.is_file() else 0

    def read(self) -> None:
        if self.listener is None or not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self.offset)
            news = file.read()
        news = news[: news.rfind(b"\n") + 1]  # a line may still be in writing
        self.offset += len(news)
        for line in news.splitlines():
            now, rounds = json.loads(line), self.config.rounds
            done, task = now["round"], now["task"]
            self.listener(
                Progress(done, now["rounds"], task, self.config.tasks, (done - 1) % rounds + 1, rounds, now["accuracy"])
            )


@contextmanager
def ended_by_signals(directory: Path) -> Iterator[None]:
    """Ctrl-C, SIGTERM and a closed terminal end a run in order. While it is being taken down they change nothing."""
    stopping = False

    def stop(*_: object) -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            raise Stopped(f"stopped; the same command with --out {directory} goes on")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heeded = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    before = {number: signal.signal(number, stop) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
