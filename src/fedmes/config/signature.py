"""The options as typed keyword arguments of `fedmes.run` and its kin.

`parameters` are what a signature shows and a notebook completes. Type checkers read
`config/keywords.py` instead, which `python -m fedmes.config.signature` prints: a test holds that it
is up to date.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from fedmes.config.options import SECTIONS, Config
from fedmes.config.section import Section

INTRODUCTION = '''\
"""The options of a run as type checkers and editors see them.

Generated from the fields in this folder; do not edit:
python -m fedmes.config.signature > src/fedmes/config/keywords.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict
'''
# What Python takes beside what a file can say: a class, and samples in memory.
FROM_PYTHON = {"method": "Callable[..., Any]", "model": "Callable[..., Any]", "data": "Any"}
WIDEST = 100  # columns of a line
OPTIONS = [name for name in Config.model_fields if name != "custom"]

F = TypeVar("F", bound=Callable[..., Any])


def with_options(function: F) -> F:
    """The function with every option as a keyword in its signature, in the place of `**options`."""
    own = inspect.signature(function)
    listed = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
    kind = inspect.Parameter.KEYWORD_ONLY
    listed += [
        inspect.Parameter(name, kind, default=None, annotation=_argument(name))
        for name in OPTIONS
        if name not in own.parameters
    ]
    function.__signature__ = own.replace(parameters=listed)  # type: ignore[attr-defined]
    return function


def keywords() -> str:
    """The module `config/keywords.py`."""
    parts = [INTRODUCTION]
    for name, section in SECTIONS.items():
        keys = {}
        for part, field in section.model_fields.items():
            keys[field.alias or part] = _type(field.annotation)
        parts.append(_typed_dict(f"{name.capitalize()}Keys", keys, section.__doc__ or ""))
    arguments = {name: f"{_argument(name)} | None" for name in OPTIONS}
    parts.append(_typed_dict("Options", arguments, "All options of a run."))
    return "\n\n".join(parts)


def _typed_dict(title: str, keys: Mapping[str, str], words: str) -> str:
    if any(map(iskeyword, keys)):  # such as fedmes.lambda
        lines = [f'    "{key}": {kind},' for key, kind in keys.items()]
        head = [f"{title} = TypedDict(", f'    "{title}",', "    {"]
        inner = [f"    {line}" for line in lines]
        return "\n".join([*head, *inner, "    },", "    total=False,", ")", ""])
    lines = [_annotated(key, kind) for key, kind in keys.items()]
    head = [f"class {title}(TypedDict, total=False):", f'    """{words}"""', ""]
    return "\n".join([*head, *lines, ""])


def _annotated(key: str, kind: str) -> str:
    """As the formatter writes it."""
    line = f"    {key}: {kind}"
    if len(line) <= WIDEST:
        return line
    return f"    {key}: (\n        {kind}\n    )"


def _argument(name: str) -> str:
    """The type of a keyword argument: an option's, or a section's and that of its main option."""
    annotation = Config.model_fields[name].annotation
    kinds = []
    if name in SECTIONS:
        section: type[Section] = SECTIONS[name]
        kinds.append(f"{name.capitalize()}Keys")
        annotation = None
        if section.plain is not None:
            annotation = section.model_fields[section.plain].annotation
    if annotation is not None:
        kinds.append(_type(annotation).removesuffix(" | None"))
    kinds.append(FROM_PYTHON.get(name, ""))
    return " | ".join(filter(None, kinds))


def _type(annotation: Any) -> str:
    """An annotation as source text, without the limits that pydantic checks."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(_type, arguments)))
    if origin is Literal:
        return f"Literal[{', '.join(map(_quoted, arguments))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type, arguments))}]"
    if annotation is type(None):
        return "None"
    return annotation.__name__


def _quoted(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


if __name__ == "__main__":
    print(keywords(), end="")
