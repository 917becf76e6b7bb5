"""What a site tells the operator about its data, and the configuration made of several sites'.

A site's facts are a small file of names, counts and sums. The classes of a federation are those of
its sites in the order in which they first appear; mean and standard deviation are made of the
sites' sums, which are whole numbers, so they are exactly those of all training images together.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from fedmes import config as configuration
from fedmes.common.files import replace_text
from fedmes.common.text import listed
from fedmes.config.options import Config
from fedmes.config.toml_text import toml_text
from fedmes.data import tables
from fedmes.data.custom import SeveralSizes
from fedmes.data.dataset import FLOAT_PLACES, ChannelSums
from fedmes.deployment.site import fingerprint
from fedmes.errors import UserError
from fedmes.experiment.resolve import makers
from fedmes.scenario.custom import partition, read_site

FILE = "site-facts.toml"
FOLDER = "site-facts"  # with a file for each client, where a site holds several
FORMAT = "fedmes-site-facts-1"
NO_FACTS = "not the facts of a site, as fedmes site init writes them"
METHOD = "fedmes"  # unless another one is asked for
ROOM = 10  # tasks that a federation has room for at first, at least


def _line(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a line of text is needed")
    return text


Count = Annotated[int, Field(ge=0)]
Line = Annotated[str, AfterValidator(_line)]


class Form(BaseModel):
    """Nothing but the fields, in exactly their types."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class TaskFacts(Form):
    """A task of a site."""

    name: Line
    classes: Annotated[list[Line], Field(min_length=1)]
    train: Annotated[int, Field(gt=0)]  # samples to learn from
    test: Count


class Pixels(Form):
    """Sums over the training samples, per channel or column, in whole steps (`ChannelSums`)."""

    count: Annotated[int, Field(gt=0)]
    total: list[int]
    squares: list[Count]
    places: Literal[0, 172] = 0

    def sums(self, channels: int) -> ChannelSums:
        """Of as many channels; grey beside colours is the same in all of them."""
        times = channels // len(self.total)
        squares = tuple(self.squares) * times
        return ChannelSums(self.count, tuple(self.total) * times, squares, self.places)


class SiteFacts(Form):
    """What an operator must know about the data of a site."""

    format: Literal["fedmes-site-facts-1"]
    name: Line
    key: Line | None = None  # the fingerprint of its key; facts of earlier versions have none
    samples: Literal["uint8", "float32", "int64"]
    # channels, height, width, where 0 stands for several sizes; or one length
    shape: Annotated[list[Count], Field(min_length=1, max_length=3)]
    image_size: Annotated[int, Field(gt=0)] | None = None  # that images were resized to
    tasks: Annotated[list[TaskFacts], Field(min_length=1)]  # in the order in which they are learned
    columns: list[Line] = []  # of a table: what each entry of a sample is
    pixels: Pixels | None = None

    @property
    def classes(self) -> list[str]:
        """In the order of first appearance."""
        found: dict[str, None] = {}
        for task in self.tasks:
            found |= dict.fromkeys(task.classes)
        return list(found)

    @model_validator(mode="after")
    def _fits(self) -> SiteFacts:
        if len(self.shape) == 2:
            raise ValueError("shape: channels, height, width; or one length")
        sums = self.pixels
        if sums is not None and not len(sums.total) == len(sums.squares) == self.shape[0]:
            raise ValueError("pixels: one sum for each channel is needed")
        places = {"uint8": 0, "float32": FLOAT_PLACES}.get(self.samples)
        fits = self.samples != "uint8" or 0 in self.shape
        if sums is not None:
            fits = sums.places == places and 0 not in self.shape
        if not fits:
            raise ValueError("pixels: sums are of images of one size, tables or time series")
        if self.columns not in ([], ["text"]) and [len(self.columns)] != self.shape:
            raise ValueError("columns: one for each entry of a sample is needed")
        return self

    def size(self) -> str:
        if 0 in self.shape:
            return "several sizes"
        return "x".join(map(str, self.shape))

    def describe(self) -> str:
        """For people: tasks, classes, numbers of samples, sizes, statistics."""
        train = sum(task.train for task in self.tasks)
        test = sum(task.test for task in self.tasks)
        about = f"{train} samples to learn from and {test} to test with, of {self.size()}"
        if self.columns:
            about += f" ({listed(self.columns)})"
        elif self.pixels is not None and len(self.shape) == 3:
            found = self.pixels.sums(self.shape[0]).normalisation()
            mean = ", ".join(f"{value:.3f}" for value in found.mean[0])
            std = ", ".join(f"{value:.3f}" for value in found.std[0])
            about += f", mean {mean}, std {std}"
        lines = [f"{len(self.tasks)} tasks in this order, {len(self.classes)} classes; {about}"]
        width = max(len(task.name) for task in self.tasks)
        for task in self.tasks:
            counts = f"{task.train:6} + {task.test}"
            lines.append(f"  {task.name:{width}} {counts}  {', '.join(task.classes)}")
        return "\n".join(lines)

    def with_key(self, fingerprint: str) -> SiteFacts:
        return self.model_copy(update={"key": fingerprint})

    def write(self, path: Path) -> None:
        replace_text(path, toml_text(self.model_dump()))


def facts_of(name: str, data: Path, image_size: int | None = None) -> SiteFacts:
    """Read a site's data, which checks it."""
    if image_size is not None and data.is_file():
        raise UserError(f"image size: arrays in a file, {data}, have one size; leave it out")
    sizes_differ = False
    try:
        table = read_site(data, image_size)
    except SeveralSizes:
        sizes_differ = True
        table = read_site(data, 1)  # small, since only names and numbers matter
    dataset = table.dataset
    (client,) = partition(table, 0, data)
    tasks = []
    for task in client.tasks:
        classes = [dataset.class_names[c] for c in task.classes]
        tasks.append(
            TaskFacts(name=task.name, classes=classes, train=len(task.train), test=len(task.test))
        )
    shape = list(dataset.shape)
    pixels = None
    if sizes_differ:
        shape[1:] = [0, 0]
    elif dataset.normalised:
        rows = np.concatenate([task.train for task in client.tasks])
        pixels = Pixels.model_validate(_listed(ChannelSums.of(dataset.x, rows)))
    return SiteFacts.model_validate(
        {
            "format": FORMAT,
            "name": name,
            "samples": str(dataset.x.dtype),
            "shape": shape,
            "image_size": image_size,
            "tasks": tasks,
            "columns": list(dataset.columns),
            "pixels": pixels,
        }
    )


def write(folder: Path, found: Sequence[SiteFacts], several: bool) -> Path:
    """The file for the operator, with the key of the site; of several clients, a folder of them."""
    place = folder / FOLDER if several else folder
    place.mkdir(exist_ok=True)
    for facts in found:
        name = f"{facts.name}.toml" if several else FILE
        facts.with_key(fingerprint(folder)).write(place / name)
    return place if several else place / FILE


def described(found: Sequence[SiteFacts]) -> str:
    """For people; of several clients, under their names."""
    if len(found) == 1:
        return found[0].describe()
    return "\n".join(f"{facts.name}: {facts.describe()}" for facts in found)


def _listed(sums: ChannelSums) -> dict[str, Any]:
    return asdict(sums) | {"total": list(sums.total), "squares": list(sums.squares)}


def read(path: Path) -> SiteFacts:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return SiteFacts.model_validate(content)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {NO_FACTS} ({place}: {first['msg']})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: {NO_FACTS} ({error})") from None


def federation_config(paths: Sequence[Path], options: Mapping[str, Any]) -> Config:
    """The configuration of a federation of the sites with these files of facts. `options`: by
    dotted key, in place of defaults."""
    sites: dict[str, Path] = {}
    found: list[SiteFacts] = []
    for path in paths:
        facts = read(path)
        if facts.name in sites:
            raise UserError(
                f"{path}: a site named {facts.name}, as in {sites[facts.name]}; "
                "every site needs its own name"
            )
        sites[facts.name] = path
        found.append(facts)
    known: dict[str, Any] = {"federation.sites": list(sites), "federation.classes": _classes(found)}
    if any(facts.key for facts in found):
        known["federation.keys"] = [facts.key or "" for facts in found]
    most = max(len(facts.tasks) for facts in found)
    known |= {"method": METHOD, "tasks": max(ROOM, 2 * most)}
    any_shape = {"federation.shape": [1]}
    open_config = configuration.load(None, known | any_shape | dict(options))
    images = _images(found, sites, open_config)
    return configuration.load(None, known | images | dict(options))


def _classes(found: Sequence[SiteFacts]) -> list[str]:
    classes: dict[str, None] = {}
    for facts in found:
        classes |= dict.fromkeys(facts.classes)
    return list(classes)


def _images(
    found: Sequence[SiteFacts], sites: Mapping[str, Path], config: Config
) -> dict[str, Any]:
    """Options that say what all samples are like."""
    first = found[0]
    where = sites[first.name]
    for facts in found[1:]:
        if facts.samples != first.samples:
            raise UserError(
                f"{sites[facts.name]}: samples are {facts.samples}, in {where} {first.samples}"
            )
    if any(facts.columns for facts in found):
        return _of_tables({sites[facts.name]: facts for facts in found})
    channels = max(facts.shape[0] for facts in found)
    size, plain = _network_takes(config)
    if size is not None and len(first.shape) == 3:
        return {"federation.shape": [channels, size, size]}
    shape = list(first.shape)
    for facts in found:
        _check_size(facts, first, sites)
    if len(shape) == 3:
        shape[0] = channels
    agreed: dict[str, Any] = {"federation.shape": shape}
    if first.samples == "int64" and config.model.name == "auto":
        agreed["model.name"] = "text"
    if resized := {facts.image_size for facts in found} - {None}:
        agreed["data.image_size"] = resized.pop()
    if first.pixels is not None and not plain:
        sums = [facts.pixels.sums(shape[0]) for facts in found if facts.pixels is not None]
        all_sites = reduce(ChannelSums.__add__, sums).normalisation()
        agreed["federation.mean"] = list(all_sites.mean[0])
        agreed["federation.std"] = list(all_sites.std[0])
    return agreed


def _of_tables(found: Mapping[Path, SiteFacts]) -> dict[str, Any]:
    """The same of sites with tables: columns by name, and all values that some site has."""
    columns = tables.common_columns({path: facts.columns for path, facts in found.items()})
    if columns == [tables.TEXT]:
        longest = max(facts.shape[0] for facts in found.values())
        return {
            "federation.columns": columns,
            "federation.shape": [longest],
            "model.name": "text",
        }
    sums = []
    for facts in found.values():
        assert facts.pixels is not None
        sums.append(_in_order(facts.pixels, facts.columns, columns))
    normalisation = tables.plain_values(reduce(ChannelSums.__add__, sums).normalisation(), columns)
    return {
        "federation.columns": columns,
        "federation.shape": [len(columns)],
        "federation.mean": list(normalisation.mean[0]),
        "federation.std": list(normalisation.std[0]),
    }


def _in_order(sums: Pixels, own: Sequence[str], columns: Sequence[str]) -> ChannelSums:
    """A site's sums in the order of the federation's columns; a value that it has not is never
    there."""
    total = dict(zip(own, sums.total, strict=True))
    squares = dict(zip(own, sums.squares, strict=True))
    return ChannelSums(
        sums.count,
        tuple(total.get(column, 0) for column in columns),
        tuple(squares.get(column, 0) for column in columns),
        sums.places,
    )


def _network_takes(config: Config) -> tuple[int | None, bool]:
    """The size of images that a pretrained network takes, and whether it normalises them itself."""
    if config.model.name == "auto":
        return None, False
    make = makers(config)["model"]
    size = getattr(make, "input_size", None)
    if size is not None:
        size = config.data.image_size or config.model.size or size
    return size, getattr(make, "plain_pixels", False)


def _check_size(facts: SiteFacts, first: SiteFacts, sites: Mapping[str, Path]) -> None:
    path = sites[facts.name]
    remedy = "agree on a size; at each site: fedmes site facts DIR --image-size N"
    if 0 in facts.shape:
        raise UserError(f"{path}: images of several sizes; {remedy}")
    sizes = (facts.shape[1:], first.shape[1:])
    colours = {facts.shape[0], first.shape[0]}
    grey_beside_colour = len(facts.shape) == 3 and colours <= {1, 3}
    if sizes[0] != sizes[1] or not (grey_beside_colour or len(colours) == 1):
        raise UserError(
            f"{path}: samples are {facts.size()}, in {sites[first.name]} {first.size()}; {remedy}"
        )
