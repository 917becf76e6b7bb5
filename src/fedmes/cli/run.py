"""`fedmes run`, `resume`, `extend` and `compare`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmes.cli import options, terminal
from fedmes.errors import UserError

if TYPE_CHECKING:
    from fedmes.config.options import Config
    from fedmes.experiment.prepare import Prepared
    from fedmes.experiment.recorder import Listener, Progress
    from fedmes.experiment.train import State
    from fedmes.results.run_dir import Result

app = typer.Typer()


@app.command(epilog="Example: fedmes run --benchmark split-digits --method fedmes --memory 20 --seeds 0,1,2")
def run(
    config_file: options.ConfigFile = None,
    benchmark: options.Benchmark = None,
    method: options.Method = None,
    model: options.Model = None,
    clients: options.Clients = None,
    tasks: options.Tasks = None,
    rounds: options.Rounds = None,
    epochs: options.Epochs = None,
    batch: options.Batch = None,
    memory: options.Memory = None,
    seeds: options.Seeds = None,
    engine: options.Engine = None,
    device: options.Device = None,
    data: options.Data = None,
    settings: options.Settings = None,
    out: options.Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run in this directory was stopped")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also event files in DIR/tensorboard")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Train one method on one benchmark and score it. Without options: FedMeS on Split Digits."""
    config = options.configuration(locals())
    from fedmes.experiment import runner

    if resume:
        config = runner.as_stored(config, out)
    terminal.show(_run(config, out, quiet, resume, tensorboard), quiet)


@app.command("resume", epilog="Example: fedmes resume runs/split-digits-fedmes-1a2b3c4d")
def resume_run(directory: Annotated[Path, typer.Argument(metavar="DIR")], quiet: options.Quiet = False) -> None:
    """Go on with a run that was stopped or killed, with its own configuration: the result is the same."""
    from fedmes import config
    from fedmes.results import run_dir

    stored = run_dir.stored_config(directory)
    if stored is None:
        raise UserError(f"resume: {directory} holds no run")
    terminal.show(_run(config.stored(stored, directory), directory, quiet, resume=True), quiet)


@app.command(epilog="Example: fedmes extend runs/mine --data march.npz --out runs/mine-march")
def extend(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    data: Annotated[Path, typer.Option(metavar="FILE.npz|DIR", help="own data with further tasks of the same clients")],
    out: options.Out = None,
    quiet: options.Quiet = False,
) -> None:
    """Go on from a finished run with further tasks. DIR stays as it is; the result covers old tasks and new ones."""
    from fedmes.experiment import runner

    config, state = runner.extended(directory, data)
    terminal.show(_run(config, out, quiet, resume=True, state=state), quiet)


@app.command(epilog="Example: fedmes compare --methods fedavg,fedmes --seeds 0,1,2")
def compare(
    config_file: options.ConfigFile = None,
    methods: Annotated[str, typer.Option(metavar="all|A,B,...", help="the methods to compare")] = "all",
    benchmark: options.Benchmark = None,
    model: options.Model = None,
    clients: options.Clients = None,
    tasks: options.Tasks = None,
    rounds: options.Rounds = None,
    epochs: options.Epochs = None,
    batch: options.Batch = None,
    memory: options.Memory = None,
    seeds: options.Seeds = None,
    engine: options.Engine = None,
    device: options.Device = None,
    data: options.Data = None,
    settings: options.Settings = None,
    out: options.Out = None,
    quiet: options.Quiet = False,
) -> None:
    """Run several methods on the same splits and initial weights: one table; finished ones are reused."""
    config = options.configuration(locals())
    from fedmes.cli import render
    from fedmes.experiment.prepare import prepare
    from fedmes.methods import METHODS
    from fedmes.results import run_dir

    prepared, unfit = [], []
    for name in METHODS if methods == "all" else options.names(methods):
        try:
            prepared.append(prepare(config.with_({"method": name})))
        except UserError as error:  # of all methods, those that this model or data suits
            if methods != "all" or not str(error).startswith(f"method {name}:"):
                raise
            unfit.append(str(error))
    directory = out or run_dir.default_directory(config.with_({"method": "compare"}))
    found = []
    for one in prepared:
        place = directory / one.config.method_name
        finished = run_dir.finished(place, one.config)
        found.append(run_dir.load(place) if finished else train(one, place, quiet, resume=True))
    if quiet:
        print(directory)
    else:
        console = terminal.wide_console()
        console.print(render.comparison(found, console.width))
        for reason in unfit:
            console.print(f"left out: {reason}", highlight=False)
        console.print(f"\nresults: {directory}", highlight=False)


def _run(
    config: Config,
    out: Path | None,
    quiet: bool,
    resume: bool,
    tensorboard: bool = False,
    state: State | None = None,
) -> Result:
    from fedmes.experiment.prepare import prepare
    from fedmes.experiment.tensorboard import event_files
    from fedmes.results import run_dir

    prepared = prepare(config)
    directory = out or run_dir.default_directory(prepared.config)
    if resume and run_dir.finished(directory, prepared.config):
        print(f"{directory}: this run is finished", file=sys.stderr)
        return run_dir.load(directory)
    events = event_files(directory / "tensorboard", config.seeds) if tensorboard else nullcontext()
    with events as listener:
        return train(prepared, directory, quiet, resume, listener, state)


def train(
    prepared: Prepared,
    directory: Path,
    quiet: bool,
    resume: bool,
    besides: Listener | None = None,
    state: State | None = None,
) -> Result:
    """With a bar on the terminal; the first Ctrl-C ends it after a round."""
    from fedmes.experiment import runner

    with terminal.progress(quiet, prepared.config.method) as bar, terminal.stop_on_interrupt() as stop:

        def tell(now: Progress) -> None:
            for listener in (besides, bar):
                if listener is not None:
                    listener(now)

        return runner.execute(prepared, directory, tell, resume, stop, state)
