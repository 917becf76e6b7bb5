"""Tables of CSV or Parquet: a row per sample, a column per feature, or one column of texts."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmes.common import limits
from fedmes.common.text import listed, natural
from fedmes.data import words
from fedmes.data.dataset import Normalisation
from fedmes.errors import UserError

Cells = Sequence[Any] | NDArray[Any]
Columns = Mapping[str, Cells]  # the cells of each column; those of a CSV file are strings

SUFFIXES = (".csv", ".parquet")
ABOUT = ("y", "client", "task", "split")  # columns that are no features
LABEL = "label"  # another name for y
TEXT = "text"
MOST_VALUES = 100  # of a column without numbers
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
CELL_BYTES = 80  # of memory, while a table is read


@dataclass(frozen=True)
class Form:
    """How a row becomes a sample.

    `columns`: what each entry is: NAME of a column of numbers, or NAME=VALUE, which is 1 where the
    column has the value and else 0. A single column `text` has texts. `length`: of a sample.
    """

    columns: tuple[str, ...]
    length: int

    @property
    def of_texts(self) -> bool:
        return self.columns == (TEXT,)

    def values(self) -> dict[str, list[str]]:
        """The known values of each column; none of a column of numbers."""
        found: dict[str, list[str]] = {}
        for column in self.columns:
            name, one_of, value = column.partition("=")
            known = found.setdefault(name, [])
            if one_of:
                known.append(value)
        return found


# --- files ----------------------------------------------------------------------------------------


def is_table(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def of_sites(folder: Path) -> list[Path]:
    """The tables in a folder, if nothing but tables of sites is there."""
    shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if any(path.is_dir() for path in shown):
        return []
    return sorted(filter(is_table, shown), key=lambda path: natural(path.name))


def read(path: Path) -> dict[str, list[Any]]:
    """The columns of a file; a label is named `y`."""
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    return with_y(readers[path.suffix.lower()](path), path)


def with_y(columns: Mapping[str, Any], path: Path | str) -> dict[str, Any]:
    """The columns under their own names, but for a label."""
    if LABEL in columns and "y" in columns:
        raise UserError(f"{path}: columns y and {LABEL} are both there; keep the label only")
    return {{LABEL: "y"}.get(name, name): values for name, values in columns.items()}


def _read_csv(path: Path) -> dict[str, list[Any]]:
    limits.check_memory(10.0 * path.stat().st_size, path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header = file.readline()
            file.seek(0)
            rows = list(csv.reader(file, delimiter=max(",;\t", key=header.count)))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as a CSV file in UTF-8 ({error})") from None
    if not rows:
        raise UserError(f"{path}: is empty")
    names = [name.strip() for name in rows[0]]
    _check_names(names, path)
    cells = [row for row in rows[1:] if row]  # without empty lines
    for number, row in enumerate(cells, 1):
        if len(row) != len(names):
            raise UserError(
                f"{path}: row {number} has {len(row)} cells, the header has {len(names)}"
            )
    if not cells:
        raise UserError(f"{path}: has no rows")
    return dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))


def _read_parquet(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise UserError(
            f"{path}: Parquet needs the extra `tables`: pip install 'fedmes[tables]'"
        ) from None
    try:
        about = parquet.read_metadata(path)
        limits.check_memory(float(CELL_BYTES * about.num_rows * about.num_columns), path)
        found = parquet.ParquetFile(path).read()
    except UserError:
        raise
    except Exception as error:  # a damaged file can fail with any of pyarrow's errors
        text = str(error).partition("\n")[0]
        raise UserError(f"{path}: cannot be read as a Parquet file ({text})") from None
    _check_names(found.column_names, path)
    return {name: found[name].to_pylist() for name in found.column_names}


def _check_names(names: Sequence[str], path: Path) -> None:
    for number, name in enumerate(names, 1):
        if not name:
            raise UserError(f"{path}: column {number} has no name (pandas: index=False)")
    if len(set(names)) < len(names):
        raise UserError(f"{path}: two columns have the same name")


def read_sites(paths: Iterable[Path]) -> dict[str, list[Any]]:
    """Several files as one table: each is a client's, named as the file."""
    whole: dict[str, list[Any]] = {}
    for path in paths:
        columns = of_client(read(path), path)
        if whole and columns.keys() != whole.keys():
            odd = sorted(columns.keys() ^ whole.keys())[0]
            raise UserError(f"{path}: column {odd} is not in all tables of {path.parent}")
        for name, cells in columns.items():
            whole.setdefault(name, []).extend(cells)
    return whole


def of_client(columns: dict[str, list[Any]], path: Path) -> dict[str, list[Any]]:
    """A table of one client, which is named as the file if the table does not say."""
    rows = len(next(iter(columns.values())))
    return {"client": [path.stem] * rows} | columns


# --- from columns to samples ----------------------------------------------------------------------


def form_of(columns: Columns, path: Path | str) -> Form:
    """How rows of such a table become samples."""
    names = [name for name in columns if name not in ABOUT]
    if not names:
        raise UserError(f"{path}: has no column of features or of texts")
    if not len(columns[names[0]]):
        raise UserError(f"{path}: has no rows")
    if TEXT in names:
        if others := [name for name in names if name != TEXT]:
            raise UserError(f"{path}: beside texts, column {listed(others)} is not used; remove it")
        return Form((TEXT,), words.length(_texts(columns[TEXT], path)))
    found: list[str] = []
    for name in names:
        if "=" in name:
            raise UserError(f"{path}: column {name}: a name with = cannot be used; rename it")
        if _is_of_values(columns[name]):
            _refuse_decimal_commas(columns[name], name, path)
            found += [f"{name}={value}" for value in _distinct(columns[name], name, path)]
        else:
            found.append(name)
    return Form(tuple(found), len(found))


def samples(columns: Columns, form: Form, path: Path | str) -> NDArray[Any]:
    """Rows as samples of a form, by the names of columns."""
    known = form.values()
    here = [name for name in columns if name not in ABOUT]
    if missing := [name for name in known if name not in here]:
        raise UserError(f"{path}: has no column {listed(missing)}")
    if strange := [name for name in here if name not in known]:
        raise UserError(f"{path}: column {listed(strange)} was not there before")
    if form.of_texts:
        return words.ids(_texts(columns[TEXT], path), form.length)
    parts = []
    for name, values in known.items():
        if values:
            parts += _one_hot(columns[name], values, name, path)
        else:
            parts.append(_numbers(columns[name], name, path))
    return np.stack(parts, axis=1).astype(np.float32)


def plain_values(found: Normalisation, columns: Sequence[str]) -> Normalisation:
    """Entries NAME=VALUE stay 0 and 1: a rare value would become a very large number."""
    mean = list(found.mean[0])
    std = list(found.std[0])
    for i, column in enumerate(columns):
        if "=" in column:
            mean[i] = 0.0
            std[i] = 1.0
    return replace(found, mean=(tuple(mean), *found.mean[1:]), std=(tuple(std), *found.std[1:]))


def common_columns(tables: Mapping[Path, Sequence[str]]) -> list[str]:
    """The columns of several sites' tables, with the values of all of them."""
    found: dict[str, list[str]] = {}
    first = next(iter(tables))
    for path, columns in tables.items():
        values = Form(tuple(columns), 0).values()
        found = found or values
        for name in found.keys() | values.keys():
            if name not in found or name not in values:
                raise UserError(f"{path}: column {name} is not both here and in {first}")
            if bool(found[name]) != bool(values[name]):
                raise UserError(f"{path}: column {name} has numbers here or in {first}, not both")
            found[name] = sorted({*found[name], *values[name]}, key=natural)
    whole = []
    for name, known in found.items():
        whole += [f"{name}={value}" for value in known] or [name]
    return whole


# --- cells ----------------------------------------------------------------------------------------


def present(cells: Cells, name: str, path: Path | str) -> Cells:
    """The cells, if none is empty."""
    for row, cell in enumerate(cells, 1):
        if _is_empty(cell):
            raise UserError(f"{path}: row {row}, column {name}: is empty")
    return cells


def _is_empty(cell: Any) -> bool:
    if isinstance(cell, str):
        return not cell.strip()
    return cell is None or cell != cell  # what is not equal to itself is NaN


def _number(cell: Any) -> float | None:
    """None: it is no number. True is 1, false is 0."""
    if isinstance(cell, str):
        cell = {"true": 1.0, "false": 0.0}.get(cell.strip().lower(), cell)
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _is_of_values(cells: Cells) -> bool:
    """Has the column no number at all?"""
    return all(_is_empty(cell) or _number(cell) is None for cell in cells)


def _refuse_decimal_commas(cells: Cells, name: str, path: Path | str) -> None:
    """As values, such numbers would become hundreds of columns."""
    filled = [str(cell).strip() for cell in cells if not _is_empty(cell)]
    if filled and all(map(DECIMAL_COMMA.fullmatch, filled)):
        raise UserError(
            f"{path}: column {name}: '{filled[0]}' has a comma; write decimals with a point, and "
            "nothing between thousands (pandas reads such files with decimal=',' or thousands=',')"
        )


def _numbers(cells: Cells, name: str, path: Path | str) -> NDArray[np.float64]:
    try:
        found = np.fromiter(map(float, cells), np.float64, len(cells))
    except (TypeError, ValueError):
        found = np.array([_checked(cell, row, name, path) for row, cell in enumerate(cells, 1)])
    with np.errstate(over="ignore"):
        wrong = np.flatnonzero(~np.isfinite(found.astype(np.float32)))
    if len(wrong):
        present(cells, name, path)
        raise UserError(
            f"{path}: row {wrong[0] + 1}, column {name}: NaN, infinite or beyond float32"
        )
    return found


def _checked(cell: Any, row: int, name: str, path: Path | str) -> float:
    number = _number(cell)
    if number is None:
        problem = "is empty" if _is_empty(cell) else f"'{cell}' is not a number"
        raise UserError(f"{path}: row {row}, column {name}: {problem}")
    return number


def _distinct(cells: Cells, name: str, path: Path | str) -> list[str]:
    """A column's values, each of which becomes an entry of the samples."""
    found = sorted({str(cell).strip() for cell in present(cells, name, path)}, key=natural)
    if len(found) > MOST_VALUES:
        raise UserError(
            f"{path}: column {name} has {len(found):,} different values and no numbers; "
            f"at most {MOST_VALUES} can be told apart. Leave it out, or name it text"
        )
    return found


def _one_hot(
    cells: Cells, values: Sequence[str], name: str, path: Path | str
) -> list[NDArray[np.float64]]:
    """An array per value; values that nobody knows are none of them."""
    found = np.array([str(cell).strip() for cell in present(cells, name, path)])
    if unknown := sorted(set(found.tolist()) - set(values), key=natural):
        warnings.warn(
            f"{path}: column {name} has values that are new and taken for none of the known: "
            f"{listed(unknown, 5)}",
            RuntimeWarning,
            stacklevel=2,
        )
    return [(found == value).astype(np.float64) for value in values]


def _texts(cells: Cells, path: Path | str) -> list[str]:
    return [str(cell) for cell in present(cells, TEXT, path)]


def splits(cells: Cells, path: Path | str) -> NDArray[np.int64]:
    """0 or `train` for training, 1 or `test` for testing."""
    known = {"train": 0, "test": 1, "0": 0, "1": 1}
    found = []
    for row, cell in enumerate(cells, 1):
        name = str(cell).strip().lower()
        if name not in known:
            raise UserError(
                f"{path}: row {row}, column split: '{cell}' is neither train (0) nor test (1)"
            )
        found.append(known[name])
    return np.array(found, np.int64)
