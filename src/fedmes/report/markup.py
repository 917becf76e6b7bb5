"""HTML as text. `Html` is markup; any other text is escaped on its way into an element."""

from __future__ import annotations

import re
from html import escape


class Html(str):
    """Text that is markup already."""


def el(tag: str, *children: str, **attributes: str | int) -> Html:
    """An element. `class_` is the attribute class, `aria_label` is aria-label."""
    names = (name.rstrip("_").replace("_", "-") for name in attributes)
    given = "".join(f' {name}="{escape(str(value))}"' for name, value in zip(names, attributes.values(), strict=True))
    return Html(f"<{tag}{given}>{join(*children)}</{tag}>")


def join(*children: str) -> Html:
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def said(plain: str) -> Html:
    """Words for a reader: escaped, with a true minus sign before numbers."""
    return Html(re.sub(r"(?<![\w.-])-(?=\d)", "\u2212", escape(plain)))


def scroll(label: str, *children: str) -> Html:
    """What may be wider than the page; the keyboard reaches it."""
    return el("div", *children, class_="scroll", role="region", aria_label=label, tabindex=0)


def folded(summary: str, *children: str) -> Html:
    return el("details", el("summary", summary), *children)
