"""The command line. torch is imported only by commands that need it, so that `--help` answers at once."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedmes import __version__
from fedmes.data import commands as data_commands
from fedmes.deployment import commands as site_commands
from fedmes.deployment import require_flower
from fedmes.errors import FederationError, Stopped, UserError, unknown

if TYPE_CHECKING:
    from fedmes.book import Listener, Progress
    from fedmes.config import Config
    from fedmes.predict import Item, Prediction
    from fedmes.preparing import Prepared
    from fedmes.results import Result
    from fedmes.training import State

app = typer.Typer(
    help="Personalised federated continual learning: FedMeS and its neighbours.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data_commands.app, name="data")
app.add_typer(site_commands.app, name="site")
federation = typer.Typer(help="Several sites that learn together, on Flower.", no_args_is_help=True)
app.add_typer(federation, name="federation")

STUDY_NAMES = (
    "table1", "curves", "clients", "fusion40", "memory", "heteromemory", "wallclock", "questions", "lr",
)  # fmt: skip

ConfigFile = Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="options in a file")]
Benchmark = Annotated[str | None, typer.Option(help="see `fedmes list benchmarks`")]
Method = Annotated[str | None, typer.Option(help="see `fedmes list methods`; or path/to/file.py:Name")]
Model = Annotated[str | None, typer.Option(help="see `fedmes list models`; or auto, or path/to/file.py:Name")]
Clients = Annotated[int | None, typer.Option(help="number of clients")]
Tasks = Annotated[int | None, typer.Option(help="take the first T tasks of each client's order")]
Rounds = Annotated[int | None, typer.Option(help="communication rounds a task")]
Epochs = Annotated[int | None, typer.Option(help="local epochs a round")]
Batch = Annotated[int | None, typer.Option(help="mini-batch size")]
Memory = Annotated[str | None, typer.Option(metavar="M|M1,M2,...", help="samples each client may keep")]
Seeds = Annotated[str | None, typer.Option(metavar="S1,S2,...", help="one training for each seed")]
Engine = Annotated[str | None, typer.Option(help="auto, loop or stacked")]
Device = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]
Data = Annotated[str | None, typer.Option(metavar="FILE.npz|DIR", help="own data instead of a benchmark")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any other option, see the README")
]
Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="where the result goes; left out: a new folder under runs/")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print the result directory only")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="print the version")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command(epilog="Example: fedmes run --benchmark split-digits --method fedmes --memory 20 --seeds 0,1,2")
def run(
    config_file: ConfigFile = None,
    benchmark: Benchmark = None,
    method: Method = None,
    model: Model = None,
    clients: Clients = None,
    tasks: Tasks = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch: Batch = None,
    memory: Memory = None,
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    data: Data = None,
    settings: Settings = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where a run in this directory was stopped")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="also event files in DIR/tensorboard")] = False,
    quiet: Quiet = False,
) -> None:
    """Train one method on one benchmark and score it. Without options: FedMeS on Split Digits."""
    config = _config(locals())
    from fedmes import experiment

    if resume:
        config = experiment.as_stored(config, out)
    _show(_run(config, out, quiet, resume, tensorboard), quiet)


@app.command("resume", epilog="Example: fedmes resume runs/split-digits-fedmes-1a2b3c4d")
def resume_run(directory: Annotated[Path, typer.Argument(metavar="DIR")], quiet: Quiet = False) -> None:
    """Go on with a run that was stopped or killed, with its own configuration: the result is the same."""
    from fedmes import config, results

    stored = results.stored_config(directory)
    if stored is None:
        raise UserError(f"resume: {directory} holds no run")
    _show(_run(config.stored(stored, directory), directory, quiet, resume=True), quiet)


@app.command(epilog="Example: fedmes extend runs/mine --data march.npz --out runs/mine-march")
def extend(
    directory: Annotated[Path, typer.Argument(metavar="DIR")],
    data: Annotated[Path, typer.Option(metavar="FILE.npz|DIR", help="own data with further tasks of the same clients")],
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Go on from a finished run with further tasks. DIR stays as it is; the result covers old tasks and new ones."""
    from fedmes import experiment

    config, state = experiment.extended(directory, data)
    _show(_run(config, out, quiet, resume=True, state=state), quiet)


def _run(
    config: Config,
    out: Path | None,
    quiet: bool,
    resume: bool,
    tensorboard: bool = False,
    state: State | None = None,
) -> Result:
    from fedmes import results
    from fedmes.events import event_files
    from fedmes.preparing import prepare

    prepared = prepare(config)
    directory = out or results.default_directory(prepared.config)
    if resume and results.finished(directory, prepared.config):
        print(f"{directory}: this run is finished", file=sys.stderr)
        return results.load(directory)
    events = event_files(directory / "tensorboard", config.seeds) if tensorboard else nullcontext()
    with events as listener:
        return _train(prepared, directory, quiet, resume, listener, state)


def _train(
    prepared: Prepared,
    directory: Path,
    quiet: bool,
    resume: bool,
    besides: Listener | None = None,
    state: State | None = None,
) -> Result:
    from fedmes import experiment

    with _progress(quiet, prepared.config.method) as bar, _stop_on_interrupt() as stop:

        def tell(now: Progress) -> None:
            for listener in (besides, bar):
                if listener is not None:
                    listener(now)

        return experiment.execute(prepared, directory, tell, resume, stop, state)


def _show(result: Result, quiet: bool) -> None:
    from fedmes import tables

    if quiet:
        print(result.directory)
    else:
        Console().print(tables.run_report(result))


@federation.callback()
def _federation() -> None:
    """Keeps `up` a command of its own beside those to come."""


@federation.command(epilog="Example: fedmes federation up --sites 3 --out trial --method fedmes")
def up(
    config_file: ConfigFile = None,
    sites: Annotated[int | None, typer.Option(help="number of sites; left out: as many clients as there are")] = None,
    benchmark: Benchmark = None,
    method: Method = None,
    model: Model = None,
    tasks: Tasks = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch: Batch = None,
    memory: Memory = None,
    seeds: Seeds = None,
    device: Device = None,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="own images, CLIENT/TASK/train|test/CLASS/*: a site a client")
    ] = None,
    settings: Settings = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run a whole Flower federation on this machine, over TLS and with node keys, and take it down again."""
    require_flower()
    config = _config(locals() | {"clients": sites})
    from fedmes.deployment.up import up as run_federation

    with _progress(quiet, config.method) as listener:
        result = run_federation(config, out, listener)
    _show(result, quiet)


@contextmanager
def _stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C lets the round end, the second one does not wait."""
    pressed = False

    def press(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        print("\nstopping after this round (once more: at once)", file=sys.stderr)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


@app.command(epilog="Example: fedmes compare --methods fedavg,fedmes --seeds 0,1,2")
def compare(
    config_file: ConfigFile = None,
    methods: Annotated[str, typer.Option(metavar="all|A,B,...", help="the methods to compare")] = "all",
    benchmark: Benchmark = None,
    model: Model = None,
    clients: Clients = None,
    tasks: Tasks = None,
    rounds: Rounds = None,
    epochs: Epochs = None,
    batch: Batch = None,
    memory: Memory = None,
    seeds: Seeds = None,
    engine: Engine = None,
    device: Device = None,
    data: Data = None,
    settings: Settings = None,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same splits and initial weights: one table; finished ones are reused."""
    config = _config(locals())
    from fedmes import results, tables
    from fedmes.methods import METHODS
    from fedmes.preparing import prepare

    names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",")]
    prepared, unfit = [], []
    for name in names:
        try:
            prepared.append(prepare(config.with_({"method": name})))
        except UserError as error:  # of all methods, those that this model or data suits
            if methods != "all" or not str(error).startswith(f"method {name}:"):
                raise
            unfit.append(str(error))
    directory = out or results.default_directory(config.with_({"method": "compare"}))
    found = []
    for one in prepared:
        place = directory / results.file_name(one.config.method)
        if results.finished(place, one.config):
            found.append(results.load(place))
            continue
        found.append(_train(one, place, quiet, resume=True))
    if quiet:
        print(directory)
    else:
        console = _wide_console()
        console.print(tables.comparison(found, console.width))
        for reason in unfit:
            console.print(f"left out: {reason}", highlight=False)
        console.print(f"\nresults: {directory}", highlight=False)


@app.command(epilog="Example: fedmes report runs/split-digits-compare-0a1b2c3d --out report.html")
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="result directories, or folders of them")],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="the page")] = Path("report.html"),
    with_samples: Annotated[
        bool, typer.Option("--with-samples", help="show the samples in clients' memories: private data")
    ] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="also the table as CSV")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="also the table as LaTeX")] = None,
    figures: Annotated[Path | None, typer.Option(metavar="DIR", help="also the figures as PNG and SVG")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="print the page's name only")] = False,
) -> None:
    """Compare finished runs in one HTML page: who wins, tables, figures, every client."""
    from fedmes import report as reporting

    done = reporting.write(directories, out, with_samples, csv, latex, figures)
    for each in done.left_out:
        print(f"left out: {each.directory}: {each.reason}", file=sys.stderr)
    if not quiet:
        for answer in done.answers:
            print(answer)
    print(done.page)


@app.command(epilog="Example: fedmes reproduce table1 --benchmarks split-cifar100 --clients 10 --set device=cuda")
def reproduce(
    study: Annotated[str, typer.Argument(metavar="STUDY", help=", ".join(STUDY_NAMES))],
    quick: Annotated[bool, typer.Option("--quick", help="a much smaller version, minutes on two CPU cores")] = False,
    clients: Annotated[str | None, typer.Option(metavar="10,20", help="numbers of clients")] = None,
    benchmarks: Annotated[str | None, typer.Option(metavar="A,B,...", help="benchmarks instead of the study's")] = None,
    methods: Annotated[str | None, typer.Option(metavar="A,B,...", help="methods, or single lines by name")] = None,
    seeds: Seeds = None,
    settings: Settings = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="the folder of all studies: runs/, and one for each study")
    ] = Path("reproduce"),
    no_run: Annotated[bool, typer.Option("--no-run", help="tables and figures of the runs that are there")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="print the page's name only")] = False,
) -> None:
    """A study of the paper: its runs (finished ones are reused), its table and figures beside the paper's numbers."""
    from fedmes import studies

    scope = studies.Scope(
        study,
        out,
        quick,
        clients=tuple(_numbers("clients", clients)) if clients else None,
        benchmarks=_names(benchmarks),
        methods=_names(methods),
        seeds=tuple(_numbers("seeds", seeds)) if seeds else None,
        options=_assignments(settings),
    )

    def execute(config: Config, place: Path) -> Result:
        from fedmes.preparing import prepare

        prepared = prepare(config)
        if not quiet:
            print(f"running {place}", file=sys.stderr)
        return _train(prepared, place, quiet, resume=True)

    written = studies.reproduce(scope, None if no_run else execute)
    for outcome in written.open:
        print(f"open: {outcome.trial.directory}: {outcome.reason}", file=sys.stderr)
    print(written.page if quiet else f"{written.text}\n{written.page}")


@app.command(epilog="Example: fedmes predict runs/split-digits-fedmes-1a2b3c4d/seed0/client0 scans/ --show why.png")
def predict(
    directory: Annotated[Path, typer.Argument(metavar="CLIENT_DIR", help="a client directory")],
    paths: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|DIR...", help="pictures, folders of them, or .npy and .npz arrays")
    ],
    task: Annotated[int | None, typer.Option(help="the task that all samples belong to, from 0, if known")] = None,
    source: Annotated[int | None, typer.Option(help="the data set they are from, where a client has several")] = None,
    model: Annotated[str | None, typer.Option(metavar="FILE.py:Name", help="a model of your own: where it is")] = None,
    method: Annotated[str | None, typer.Option(metavar="FILE.py:Name", help="likewise a method")] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON: everything about every image")] = False,
    show: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="save a picture of the images and their neighbours")
    ] = None,
) -> None:
    """Say what a client takes images for, with its network and its memory, and which stored samples are nearest."""
    from json import dumps

    from fedmes import picture, tables
    from fedmes.predict import load_client, predict_files

    if show is not None:
        picture.check(show)
    client = load_client(directory, model=model, method=method)
    found: list[tuple[str, Prediction]] = []
    shown: list[tuple[Item, Prediction]] = []
    skipped: list[tuple[str, str]] = []
    for item, prediction in predict_files(client, paths, task=task, source=source):
        if prediction is None:
            skipped.append((item.name, item.reason))
            print(f"skipped: {item.name}: {item.reason}", file=sys.stderr)
            continue
        found.append((item.name, prediction))
        if show is not None and len(shown) < picture.ROWS:
            shown.append((item, prediction))
    if not found:
        raise UserError("no image could be read" if skipped else f"{', '.join(map(str, paths))}: no images there")
    if show is not None:
        picture.save(show, client, shown)
    if json:
        images = [{"image": name} | prediction.as_dict() for name, prediction in found]
        omitted = [{"image": name, "reason": reason} for name, reason in skipped]
        print(dumps({"client": client.as_dict(), "task": task, "images": images, "skipped": omitted}, indent=2))
    else:
        _wide_console(1000).print(tables.predictions(found))


@app.command(epilog="Example: fedmes bench --models mlp --json")
def bench(
    models: Annotated[str, typer.Option(metavar="A,B,...", help="networks to time")] = "mlp,cnn2,cnn6",
    device: Device = None,
    precision: Annotated[str, typer.Option(help="float32, tf32 or bf16")] = "float32",
    compile: Annotated[str, typer.Option(help="auto, true or false: compile the stacked step")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Time a plain PyTorch loop, the loop engine and the stacked engine side by side on this machine."""
    from dataclasses import asdict
    from json import dumps

    from fedmes import bench as benchmark
    from fedmes import tables
    from fedmes.config import parse_value
    from fedmes.devices import device_name, pick_device

    names = [name.strip() for name in models.split(",")]
    for name in names:
        if name not in benchmark.SHAPES:
            raise unknown("model", name, benchmark.SHAPES)
    where = pick_device(device or "auto")
    rows = []
    with Console(stderr=True).status("") as status:
        for name in names:
            for seeds in (1, 5):
                status.update(f"timing {name}, {seeds * benchmark.CLIENTS} clients")
                rows.append(benchmark.measure(name, seeds, where.type, precision, parse_value(compile)))
    title = device_name(where)
    if json:
        print(dumps({"device": title, "rows": [asdict(row) for row in rows]}, indent=2))
    else:
        Console().print(tables.bench(f"{title}, {precision}", rows))


@app.command("list", epilog="Example: fedmes list methods")
def list_names(kind: Annotated[str | None, typer.Argument(metavar="[methods|benchmarks|models]")] = None) -> None:
    """Show the methods, benchmarks and models there are."""
    kinds: dict[str, Callable[[], dict[str, str]]] = {
        "methods": _method_summaries,
        "benchmarks": _benchmark_summaries,
        "models": _model_summaries,
    }
    if kind is not None and kind not in kinds:
        raise unknown("kind", kind, kinds)
    console = Console()
    for name in [kind] if kind else list(kinds):
        if kind is None:
            console.print(f"[bold]{name}[/bold]")
        for item, summary in kinds[name]().items():
            console.print(f"{item:<14} {summary}", highlight=False, soft_wrap=True)


def _method_summaries() -> dict[str, str]:
    from fedmes import plugins
    from fedmes.methods import SUMMARY

    return SUMMARY | {name: f"from {entry.value}" for name, entry in plugins.installed("method").items()}


def _benchmark_summaries() -> dict[str, str]:
    from fedmes.benchmarks import BENCHMARKS

    return {name: benchmark.summary for name, benchmark in BENCHMARKS.items()}


def _model_summaries() -> dict[str, str]:
    from fedmes import plugins
    from fedmes.models import MODELS

    summaries = {name: (model.__doc__ or "").splitlines()[0] for name, model in MODELS.items()}
    return summaries | {name: f"from {entry.value}" for name, entry in plugins.installed("model").items()}


def _config(given: dict[str, Any]) -> Config:
    """The configuration from a command's options."""
    from fedmes import config

    plain = ("benchmark", "method", "model", "clients", "tasks", "rounds", "epochs", "batch", "engine", "device")
    options = {name: given[name] for name in plain if given.get(name) is not None}
    if given["data"] is not None:
        options["data.path"] = given["data"]
    if given["memory"] is not None:
        sizes = _numbers("memory", given["memory"])
        options["memory.size"] = sizes[0] if len(sizes) == 1 else sizes
    if given["seeds"] is not None:
        options["seeds"] = _numbers("seeds", given["seeds"])
    return config.load(given["config_file"], options | _assignments(given["settings"]))


def _assignments(settings: list[str] | None) -> dict[str, Any]:
    """What --set says."""
    from fedmes.config import parse_value

    options = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UserError(f"--set {setting}: write it as key=value")
        options[key.strip()] = parse_value(value.strip())
    return options


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(name.strip() for name in text.split(","))


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"--{name}: whole numbers separated by commas are needed, not '{text}'") from None


def _wide_console(width: int = 120) -> Console:
    """A file or a pipe has no width to keep to."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


@contextmanager
def _progress(quiet: bool, title: str) -> Iterator[Callable[[Progress], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        line = bar.add_task(title, total=None, status="preparing")

        def listener(now: Progress) -> None:
            accuracy = "" if now.accuracy is None else f", accuracy so far {now.accuracy:.3f}"
            status = f"task {now.task}/{now.tasks}, round {now.round}/{now.rounds}{accuracy}"
            bar.update(line, total=now.rounds_total, completed=now.rounds_done, status=status)

        yield listener


def main() -> None:
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except FederationError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except Stopped as message:
        print(message, file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
