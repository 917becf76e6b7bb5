"""The HTML page: one file with everything in it. All that comes from result directories is
escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup, escape

from fedmes.report import palette, sections
from fedmes.report.clients import Album, matrices
from fedmes.report.collect import Group, LeftOut
from fedmes.report.curves import SCORES
from fedmes.report.page_data import group_content
from fedmes.report.result_table import rows_of
from fedmes.report.verdict import compare_runs
from fedmes.version import __version__

SCRIPTS = ("charts.js", "figures.js", "page.js")


def page(groups: Sequence[Group], left_out: Sequence[LeftOut], with_samples: bool) -> str:
    """The page on these groups. The answer comes first, warnings right after it."""
    album = Album() if with_samples else None
    rows = [rows_of(group) for group in groups]
    contents = [
        group_content(group, own, packed, album)
        for group, own, packed in zip(groups, rows, matrices(rows), strict=True)
    ]
    shown = []
    for group, own, content in zip(groups, rows, contents, strict=True):
        verdicts = {score: compare_runs(group.runs, score) for score in SCORES}
        shown.append(sections.group_section(group, own, content, verdicts))
    scripts = [_asset(name) for name in SCRIPTS]
    # Nothing is loaded from anywhere, and no script runs but these.
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        _templates()
        .get_template("page.html")
        .render(
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}",
            title=shown[0]["headline"] if len(shown) == 1 else f"{len(shown)} comparisons",
            style=_palette() + _asset("page.css"),
            navigation=_navigation(groups),
            groups=shown,
            left_out=left_out,
            samples=album,
            version=__version__,
            data=embedded({"groups": contents, "samples": {} if album is None else album.sheets}),
            scripts=scripts,
        )
    )


def _templates() -> Environment:
    """Everything that a template prints is escaped, unless it says `safe`."""
    found = PackageLoader("fedmes.report", "templates")
    templates = Environment(loader=found, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    templates.filters["said"] = said
    return templates


def said(plain: str) -> Markup:
    """Words for a reader: escaped, with a true minus sign before numbers."""
    return Markup(re.sub(r"(?<![\w.-])-(?=\d)", "\u2212", escape(plain)))


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element, whatever text it holds."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _navigation(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Places of the page, and what the links to them are called."""
    if len(groups) > 1:
        return [
            (f"g{i}", f"{i + 1}. {group.config.benchmark}") for i, group in enumerate(groups[:6])
        ]
    return [
        ("g0-table", "Results"),
        ("g0-figures", "Figures"),
        ("g0-clients", "Clients"),
        ("g0-config", "Setup"),
    ]


def _palette() -> str:
    """The colours of palette.py as --c0, --c1, ..."""
    pairs = zip(palette.LIGHT, palette.DARK, strict=True)
    return f":root {{ {' '.join(f'--c{i}: light-dark({day}, {night});' for i, (day, night) in enumerate(pairs))} }}\n"


def _asset(name: str) -> str:
    return resources.files("fedmes.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
