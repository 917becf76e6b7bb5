"""The HTML page: one file with everything in it. All that comes from result directories is escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from fedmes.report import sections, style
from fedmes.report.clients import Album, matrices
from fedmes.report.content import group_content
from fedmes.report.gather import Group, LeftOut
from fedmes.report.markup import Html, el, join, said
from fedmes.report.rows import rows_of
from fedmes.report.series import SCORES
from fedmes.report.verdict import Verdict, judge
from fedmes.version import __version__

SCRIPTS = ("charts.js", "figures.js", "page.js")

FRAME = """<!doctype html>
<html lang="en" data-score="oblivious">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the answer</a>
<header class="bar"><div><span class="brand">fedmes<span class="wide"> report</span></span>{navigation}
<div class="switch" role="group" aria-label="Score">
<button type="button" value="oblivious" aria-pressed="true">No task id</button>
<button type="button" value="masked" aria-pressed="false">Task id given</button>
</div>
<button type="button" id="theme" title="Light or dark"><span class="hidden-text">Theme:</span> &#9680;
<span class="wide">auto</span></button>
</div></header>
<main id="main">
<noscript><p class="notice">The answer, the table and the setup are complete; the figures and the view of a single
client need JavaScript.</p></noscript>
{main}
<footer class="fine">Made by fedmes {version} from result directories alone. Nothing in this page is loaded from
anywhere else.</footer>
</main>
<div id="live" class="hidden-text" aria-live="polite"></div>
<script type="application/json" id="data">{data}</script>
{scripts}
</body>
</html>
"""


def page(groups: Sequence[Group], left_out: Sequence[LeftOut], with_samples: bool) -> str:
    """The page on these groups. The answer comes first, warnings right after it."""
    album = Album() if with_samples else None
    rows = [rows_of(group) for group in groups]
    contents = [
        group_content(group, own, packed, album)
        for group, own, packed in zip(groups, rows, matrices(rows), strict=True)
    ]
    verdicts = [{score: judge(group.runs, score) for score in SCORES} for group in groups]
    notices = join(sections.left_out_notice(left_out), _samples_notice(album))
    alone = len(groups) == 1
    title = verdicts[0]["oblivious"].headline if alone else f"{len(groups)} comparisons"
    main = [] if alone else [_overview(groups, [verdict["oblivious"] for verdict in verdicts], notices)]
    for number, group in enumerate(groups):
        own_notices, level = (notices, 1) if alone else (Html(), 2)
        main.append(
            sections.group_section(
                number, group, rows[number], contents[number], verdicts[number], own_notices, level
            )
        )  # fmt: skip
    scripts = [_asset(name) for name in SCRIPTS]
    # Nothing is loaded from anywhere, and no script runs but these.
    allowed = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return FRAME.format(
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}",
        title=join(f"{title} - fedmes report"),
        style=_palette() + _asset("page.css"),
        navigation=_navigation(groups),
        main=join(*main),
        version=join(__version__),
        data=embedded({"groups": contents, "samples": {} if album is None else album.sheets}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )


def embedded(data: Any) -> str:
    """JSON that can stand inside a script element, whatever text it holds."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _overview(groups: Sequence[Group], verdicts: Sequence[Verdict], notices: Html) -> Html:
    told = (
        "Runs are compared only where benchmark, splits and seeds are the same, and what clients choose among when "
        "they are told the task. These results fall into "
        f"{len(groups)} groups, which say nothing about each other."
    )
    items = [
        el("li", el("a", said(verdict.headline), href=f"#g{i}"), Html("<br>"), el("span", group.title, class_="fine"))
        for i, (group, verdict) in enumerate(zip(groups, verdicts, strict=True))
    ]
    headline = el("h1", f"{len(groups)} comparisons", class_="headline")
    body = (headline, el("p", told, class_="block lead"), el("ul", *items, class_="overview"), notices)
    return el("div", *body, class_="group")


def _navigation(groups: Sequence[Group]) -> Html:
    if len(groups) == 1:
        links = [("g0-table", "Results"), ("g0-figures", "Figures"), ("g0-clients", "Clients"), ("g0-config", "Setup")]
    else:
        links = [(f"g{i}", f"{i + 1}. {group.config.benchmark}") for i, group in enumerate(groups[:6])]
    return el("nav", *(el("a", name, href=f"#{place}") for place, name in links), aria_label="Sections")


def _samples_notice(album: Album | None) -> Html:
    if album is None:
        return Html()
    kept = "one memory" if len(album.sheets) == 1 else f"{len(album.sheets)} memories"
    told = f" this page holds the raw samples of {kept} (--with-samples). Do not pass it on where the data may not go."
    if album.full:
        told += " Not all found room: report fewer directories to see the rest."
    return el("div", el("strong", "Private data:"), told, class_="notice")


def _palette() -> str:
    """The colours of style.py as --c0, --c1, ..."""
    pairs = zip(style.LIGHT, style.DARK, strict=True)
    return f":root {{ {' '.join(f'--c{i}: light-dark({day}, {night});' for i, (day, night) in enumerate(pairs))} }}\n"


def _asset(name: str) -> str:
    return resources.files("fedmes.report").joinpath("assets", name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
