"""`fedmes report` and `fedmes reproduce`: finished runs side by side, and the paper's studies."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmes.cli import options
from fedmes.cli.run import train
from fedmes.common.text import printable
from fedmes.studies.definitions import STUDIES

if TYPE_CHECKING:
    from fedmes.config.options import Config

app = typer.Typer()

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="print the page's name only")]


def _naming(
    name: options.Names = None,
    order: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="these methods first, in this order")
    ] = None,
) -> Any:
    from fedmes.report.naming import Naming

    wanted: tuple[str, ...] = ()
    if order is not None:
        wanted = options.names(order)
    return Naming(options.display_names(name), wanted)


@app.command(epilog="Example: fedmes report runs/split-digits-compare-0a1b2c3d --out report.html")
@options.taking(_naming)
def report(
    naming: Any,
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="result directories, or folders of them")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE.html", help="the page")] = Path("report.html"),
    with_samples: Annotated[
        bool,
        typer.Option("--with-samples", help="show the samples in clients' memories: private data"),
    ] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="also the table as CSV")] = None,
    latex: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also the table as LaTeX")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="DIR", help="also the figures as PNG, SVG and PDF")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Compare finished runs in one HTML page: the best method, tables, figures, every client."""
    from fedmes.report.write import write_report

    done = write_report(directories, out, with_samples, csv, latex, figures, naming)
    for each in done.left_out:
        print(printable(f"left out: {each.directory}: {each.reason}"), file=sys.stderr)
    if not quiet:
        for answer in done.answers:
            print(printable(answer))
    print(done.page)


EXAMPLE = "fedmes reproduce table1 --benchmarks split-cifar100 --clients 10 --set device=cuda"


def _scopes(
    names: Annotated[list[str], typer.Argument(metavar="STUDY...", help=", ".join(STUDIES))],
    quick: Annotated[
        bool, typer.Option("--quick", help="a much smaller version, minutes on two CPU cores")
    ] = False,
    clients: Annotated[str | None, typer.Option(metavar="10,20", help="numbers of clients")] = None,
    benchmarks: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="benchmarks instead of the study's")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="methods, or single lines by name")
    ] = None,
    seeds: Annotated[
        str | None, options.flag("seeds", help="one training per seed; default: by study")
    ] = None,
    settings: options.Settings = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="folder with runs/ and a folder per study")
    ] = Path("reproduce"),
) -> list[Any]:
    """The scope of each study."""
    from fedmes.studies.runs import Scope

    asked: dict[str, Any] = {"options": options.assignments(settings)}
    if clients:
        asked["clients"] = tuple(options.numbers("--clients", clients))
    if benchmarks is not None:
        asked["benchmarks"] = options.names(benchmarks)
    if methods is not None:
        asked["methods"] = options.names(methods)
    if seeds:
        asked["seeds"] = tuple(options.numbers("--seeds", seeds))
    return [Scope(name, out, quick, **asked) for name in names]


@app.command(epilog=f"Example: {EXAMPLE}")
@options.taking(_scopes)
def reproduce(
    scopes: Any,
    again: options.AgainIfChanged = False,
    no_run: Annotated[
        bool, typer.Option("--no-run", help="tables and figures of existing runs only")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce studies of the paper: runs, tables and figures beside the paper's numbers.

    Finished runs are reused.
    """
    from fedmes.studies import reproduce as studies

    def execute(config: Config, place: Path, evaluations: Mapping[str, Mapping[str, Any]]) -> None:
        from fedmes.experiment.prepare import prepare

        prepared = prepare(config, protocols=evaluations)
        if not quiet:
            for name in (place.name, *prepared.protocols):
                print(f"running {place.with_name(name)}", file=sys.stderr)
        train(prepared, place, quiet, resume=True, again=again)

    runs_missing: studies.Execute | None = execute
    if no_run:
        runs_missing = None
    elif not quiet:
        for notice in studies.notices(scopes):
            print(notice, file=sys.stderr)
    for written in studies.reproduce(scopes, runs_missing, again):
        if not quiet and not no_run:
            for place in written.reused:
                print(f"reused {place}", file=sys.stderr)
        waiting: dict[tuple[Path, str], list[str]] = {}
        for outcome in written.open:
            place = outcome.trial.directory
            waiting.setdefault((place.parent, outcome.reason), []).append(place.name)
        for (folder, reason), runs in waiting.items():
            print(f"open: {folder}: {', '.join(runs)}: {reason}", file=sys.stderr)
        if not quiet:
            print(written.text)
        print(written.page)
