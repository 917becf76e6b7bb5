"""`fedmes run`, `resume`, `extend`, `forget` and `compare`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli import options, terminal
from fedmes.config.options import Config

if TYPE_CHECKING:
    from fedmes.experiment.prepare import Prepared
    from fedmes.experiment.train import State
    from fedmes.results.run_dir import Result

app = typer.Typer()


@app.command(
    epilog="Example: fedmes run --benchmark split-digits --method fedmes --memory 20 --seeds 0,1,2"
)
@options.configured()
def run(
    config: Config,
    out: options.Out = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="resume an interrupted run in this directory")
    ] = False,
    again: options.Again = False,
    trust: bool = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="the same as --set output.tracker=tensorboard")
    ] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one method on one benchmark and evaluate it. Default: FedMeS on Split Digits."""
    from fedmes.experiment import runner, unused_options
    from fedmes.experiment.prepare import prepare

    if resume:
        config = runner.as_stored(config, out, trust)
    if tensorboard:
        config = config.with_({"output.tracker": "tensorboard"})
    prepared = prepare(config)
    unused_options.warn_of_other_methods(prepared.config, prepared.method)
    _run(prepared, out, quiet, resume, again)


@app.command("resume", epilog="Example: fedmes resume runs/split-digits-fedmes-1a2b3c4d")
def resume_run(
    directory: options.Directory,
    method: options.CustomMethod = None,
    model: options.CustomModel = None,
    again: options.Again = False,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Resume the interrupted run in DIR; the result is identical to an uninterrupted one."""
    from fedmes.experiment import runner
    from fedmes.experiment.prepare import prepare

    given = runner.named_here(method=method, model=model)
    config = runner.of_directory(directory, given, trust, "resume")
    _run(prepare(config, given), directory, quiet, not again, again)


@app.command(epilog="Example: fedmes extend runs/mine --data march.npz --out runs/mine-march")
def extend(
    directory: options.Directory,
    data: Annotated[
        Path,
        typer.Option(metavar="FILE|DIR", help="custom data with new tasks of the same clients"),
    ],
    out: options.Out = None,
    method: options.CustomMethod = None,
    model: options.CustomModel = None,
    again: options.Again = False,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Continue the finished run in DIR with new tasks.

    DIR is not changed; the result covers old and new tasks.
    """
    from fedmes.experiment import runner

    given = runner.named_here(method=method, model=model)
    prepared, state = runner.extended(directory, data, given, trust)
    _run(prepared, out, quiet, True, again, state=state)


@app.command(epilog="Example: fedmes forget runs/mine --client north --out runs/mine-without-north")
def forget(
    directory: options.Directory,
    clients: Annotated[
        list[str],
        typer.Option(
            "--client", metavar="NAME|N", help="client by name or number; may be repeated"
        ),
    ],
    out: options.Out = None,
    method: options.CustomMethod = None,
    model: options.CustomModel = None,
    again: options.Again = False,
    trust: options.Trust = False,
    quiet: options.Quiet = False,
) -> None:
    """Take clients out of the finished run in DIR, as if they had never been there.

    DIR is not changed; the result is a run of the others.
    """
    from fedmes.experiment import runner
    from fedmes.experiment.forget import forgotten

    given = runner.named_here(method=method, model=model)
    prepared, state = forgotten(directory, clients, given, trust)
    _run(prepared, out, quiet, True, again, state=state)


@app.command(epilog="Example: fedmes compare --methods fedavg,fedmes --seeds 0,1,2")
@options.configured_for_methods()
def compare(
    load: Callable[[Iterable[str], str], Config],
    methods: Annotated[str, typer.Option(metavar="all|A,B,...", help="methods to compare")] = "all",
    out: options.Out = None,
    name: options.Names = None,
    again: options.AgainIfChanged = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare several methods on the same splits and initial weights; finished runs are reused."""
    from fedmes.cli import render
    from fedmes.common import plugins
    from fedmes.errors import unknown
    from fedmes.experiment import comparison
    from fedmes.methods import METHODS

    shown_as = options.display_names(name)
    every = methods == "all"
    chosen = tuple(METHODS) if every else options.names(methods)
    named = {name: plugins.resolve("method", name, METHODS) for name in chosen}
    for key in shown_as:
        if key not in named:
            raise unknown("method", key, named)
    planned = comparison.plan(named, load, out, again, only_fitting=every)
    found = []
    if planned.runs:
        _say_data(planned.runs[0].prepared, quiet)
    for one in planned.runs:
        found.append(train(one.prepared, one.directory, quiet, resume=True, again=one.again))
    if quiet:
        print(planned.directory)
    else:
        console = terminal.wide_console()
        console.print(render.comparison(found, console.width, shown_as))
        for reason in planned.unfit:
            console.print(f"left out: {reason}", highlight=False)
        console.print(f"\nresults: {planned.directory}", highlight=False)


def _run(
    prepared: Prepared,
    out: Path | None,
    quiet: bool,
    resume: bool,
    again: bool,
    state: State | None = None,
) -> None:
    from fedmes.results import run_dir

    directory = out or run_dir.default_directory(prepared.config)
    _say_data(prepared, quiet)
    result = train(prepared, directory, quiet, resume, state, again)
    if result.reused:
        print(
            f"{directory}: this run is finished; its result is reused (--again runs it again)",
            file=sys.stderr,
        )
    terminal.show(result, quiet)


def _say_data(prepared: Prepared, quiet: bool) -> None:
    """Own data in a few lines, while there is still time to stop: on stderr, since it is not the
    result."""
    from fedmes.common.text import printable
    from fedmes.scenario.summary import brief

    path = prepared.config.data.path
    if quiet or path is None:
        return
    clients = prepared.federations[0].stream.clients
    for line in brief(path, prepared.source.dataset, clients):
        print(printable(line), file=sys.stderr)


def train(
    prepared: Prepared,
    directory: Path,
    quiet: bool,
    resume: bool,
    state: State | None = None,
    again: bool = False,
) -> Result:
    """With a bar on the terminal; the first Ctrl-C or SIGTERM ends it after a round."""
    from fedmes.experiment import runner

    with (
        terminal.progress(quiet, prepared.config.method) as bar,
        terminal.stop_on_signals() as stop,
    ):
        return runner.execute(prepared, directory, bar, resume, stop, state, again=again)
