"""The HTML page: one file with everything in it, and all text from results escaped."""

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
from fedmes.report.page_data import group_content
from fedmes.report.result_table import rows_of
from fedmes.report.verdict import compare_runs
from fedmes.results.labels import SCORE_TAGS, SCORES
from fedmes.version import __version__

SCRIPTS = ("charts.js", "figures.js", "controls.js", "copy.js")  # of every page; then its own


def page(groups: Sequence[Group], left_out: Sequence[LeftOut], with_samples: bool) -> str:
    """The page on these groups. The answer comes first, warnings right after it."""
    album = None
    if with_samples:
        album = Album()
    rows = list(map(rows_of, groups))
    contents = []
    shown = []
    for group, own, packed in zip(
        groups, rows, matrices(rows, [g.shown for g in groups]), strict=True
    ):
        contents.append(group_content(group, own, packed, album))
        verdicts = {score: compare_runs(group.runs, score) for score in SCORES}
        shown.append(sections.group_section(group, own, contents[-1], verdicts))
    title = shown[0]["headline"]
    if len(shown) > 1:
        title = f"{len(shown)} comparisons"
    samples = getattr(album, "sheets", {})
    return render(
        "page",
        title=f"{title} - fedmes report",
        data={"groups": contents, "samples": samples, "scores": SCORE_TAGS},
        navigation=_navigation(groups),
        groups=shown,
        left_out=left_out,
        samples=album,
    )


def render(name: str, *, title: str, data: Any, sources: str = "", **content: Any) -> str:
    """The page of a template and the script of the same name. `sources`: what it may load, as in a
    content security policy; as a rule nothing."""
    scripts = list(map(_asset, (*SCRIPTS, f"{name}.js")))
    # Nothing is loaded from anywhere, and no script runs but these.
    allowed = " ".join(map(_source, scripts))
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'{sources}"
    return (
        templates()
        .get_template(f"{name}.html")
        .render(
            policy=f"{policy}; script-src {allowed}",
            title=title,
            style=_palette() + _asset("page.css"),
            tags=SCORE_TAGS,
            version=__version__,
            data=embedded(data),
            scripts=scripts,
            **content,
        )
    )


def templates() -> Environment:
    """Everything that a template prints is escaped, unless it says `safe`."""
    found = PackageLoader("fedmes.report", "templates")
    made = Environment(loader=found, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made.filters["said"] = said
    return made


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
        shown = enumerate(groups[:6])
        return [(f"g{i}", f"{i + 1}. {group.config.benchmark}") for i, group in shown]
    return [
        ("g0-table", "Results"),
        ("g0-figures", "Figures"),
        ("g0-clients", "Clients"),
        ("g0-config", "Setup"),
    ]


def _palette() -> str:
    """The colours of palette.py as --c0, --c1, ..."""
    colours = ""
    for i, (day, night) in enumerate(zip(palette.LIGHT, palette.DARK, strict=True)):
        colours += f"--c{i}: light-dark({day}, {night}); "
    return f":root {{ {colours}}}\n"


def _asset(name: str) -> str:
    return resources.files("fedmes.report").joinpath("assets", name).read_text(encoding="utf-8")


def _source(script: str) -> str:
    """A script, as a content security policy names it."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
