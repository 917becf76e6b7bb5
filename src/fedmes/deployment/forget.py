"""A real site is taken out of what the server of its federation has added up.

The server does not keep what single sites have sent, and with secure sums it has never seen it. The
site knows: it hands over the sum of all it has sent, and the server subtracts that, exactly; of the
last update, the server alone knows whether it has taken it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedmes import config as configuration
from fedmes.common.files import locked, replace_private
from fedmes.config.options import Config
from fedmes.deployment.policy import CLIENTS
from fedmes.deployment.site import read
from fedmes.engines.base import RoundRow
from fedmes.errors import UserError, unknown
from fedmes.experiment.prepare import sites_blueprint
from fedmes.methods.base import Method
from fedmes.results import checkpoint, run_dir
from fedmes.tensors import Tensors, grown, map_entries, pick, put

# in a file's metadata: whose sums they are, and of which update the last of them is
KEPT_BY = "site"
LAST = "last"


def write_sums(folder: Path, federation: str, into: Path) -> list[Path]:
    """A file for each client of a site, with the sum of all it has sent to a federation."""
    places = {str(read(folder)["name"]): folder / federation}
    if (several := folder / federation / CLIENTS).is_dir():
        places = {place.name: place for place in sorted(several.iterdir())}
    found: dict[Path, bytes] = {}
    for name, place in places.items():
        state, about = checkpoint.latest(place) or ({}, {})
        if not (own := pick(state, "client.own")):
            raise UserError(
                f"{place}: no sums that were sent; methods other than fedstats do not keep any"
            )
        called = place.name if several.is_dir() else folder.resolve().name
        last = f"{about['begun']},{about.get('index', -1)}"
        new = map_entries(torch.Tensor.double, pick(state, "client.new"))
        content = save(own | put("new", new), metadata={KEPT_BY: name, LAST: last})
        found[into / f"{called}.safetensors"] = content
    try:
        into.mkdir(parents=True, exist_ok=True)
        for path, content in found.items():
            replace_private(path, content)
    except OSError as error:
        raise UserError(f"out: {into} cannot be written ({error.strerror})") from None
    return list(found)


def take_out(directory: Path, files: Sequence[Path], out: Path) -> list[str]:
    """A copy of a federation's run without what these sites have sent; their names."""
    stored = run_dir.stored_config(directory)
    config = None if stored is None else configuration.stored(stored, directory)
    if config is None or not config.federation.sites:
        raise UserError(f"forget: {directory} holds no run of real sites")
    if out.exists():
        raise UserError(f"out: {out} is there already; choose another directory")
    with locked(directory):  # no server works in it
        return _taken_out(directory, config, list(map(_read, files)), out)


class Handed(NamedTuple):
    """What a site hands over."""

    name: str
    last: tuple[int, ...]  # the task of its last update, and the round there; -1: unknown
    sums: Tensors  # of all it has sent, and of its last update, `new.*`


def _taken_out(directory: Path, config: Config, handed: Sequence[Handed], out: Path) -> list[str]:
    found = checkpoint.latest(directory)
    about = checkpoint.about(directory)
    if found is None or about is None:
        raise UserError(f"forget: {directory} has no checkpoint, so nothing was sent yet")
    tensors, content = found
    last = {row["client"]: RoundRow(**row) for row in content["rows"]}
    server = pick(tensors, "server.0")
    method = sites_blueprint(config).method
    sites = config.federation.sites
    for site in handed:
        if site.name not in sites:
            raise unknown("site", site.name, sites)
        row = last.get(sites.index(site.name))
        lost = row is None or row.left_out or (row.position, row.index) < site.last
        server = _less(method, server, site, lost)
    names = [site.name for site in handed]
    former = [*config.federation.former, *names]
    left = config.with_({"federation.former": sorted(set(former), key=former.index)})
    about |= {"config": run_dir.comparable(left)}
    with _copied(directory, out) as copy:
        checkpoint.save(copy, int(about["rounds_done"]), tensors | put("server.0", server), about)
        checkpoint.keep(copy, 1)  # the one before has the sums of all
        run_dir.claim(copy, left)
    return names


@contextmanager
def _copied(directory: Path, out: Path) -> Iterator[Path]:
    """A copy that may be changed, and appears only then."""
    part = out.with_name(f"{out.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(directory, part, ignore=shutil.ignore_patterns(".lock"))
        yield part
        part.rename(out)
    except (OSError, shutil.Error) as error:
        raise UserError(f"out: {out} cannot be written ({error})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _less(method: Method, server: Tensors, site: Handed, lost: bool) -> Tensors:
    """The server's state without a site's sums, of which it must have all but those of a lost last
    update."""
    try:
        own = {entry: grown(site.sums[entry], t) for entry, t in server.items()}
        nothing = map_entries(torch.zeros_like, server)
        new = pick(site.sums, "new") or nothing  # files of earlier versions do not have it apart
        new = {entry: grown(new[entry], t) for entry, t in nothing.items()}
    except (KeyError, ValueError):
        raise UserError(f"forget: the sums of {site.name} are not of this federation") from None
    state = put("own", own) | put("new", new) | {"owed": torch.tensor(lost)}
    left = method.without(server, state)
    # Sums are exact: of classes that nobody has samples of, nothing at all is left.
    none = left["n"] == 0
    if bool((left["n"] < 0).any()) or bool(left["s"][none].any()):
        raise UserError(
            f"forget: the server does not have all that {site.name} says to have sent, "
            "so nothing can be taken out exactly; or it was taken out before"
        )
    return left


def _read(path: Path) -> Handed:
    try:
        with safe_open(path, "pt") as file:
            found = {entry: file.get_tensor(entry) for entry in file.keys()}  # noqa: SIM118
            about = file.metadata() or {}
            name = about[KEPT_BY]
            last = tuple(map(int, about.get(LAST, "-1,-1").split(",")))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: no sums of a site (fedmes site sums): {error}") from None
    if not all(t.dtype == torch.float64 and bool(t.isfinite().all()) for t in found.values()):
        raise UserError(f"{path}: no sums of a site: not all of them are numbers")
    return Handed(name, last, found)
