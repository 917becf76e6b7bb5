"""The page docs/options.md, from the options (python -m fedmes.config.docs > docs/options.md)."""

from __future__ import annotations

from typing import get_args

from fedmes.config.benchmarks import BENCHMARKS, OWN_DATA
from fedmes.config.catalog import Option, options
from fedmes.config.options import dotted
from fedmes.config.section import Role

INTRODUCTION = """\
# Options

Some options have a flag (`fedmes run --help`); all can be set with `--set key=value` or in a TOML
file. The command line overrides the file, and the file overrides the defaults of the benchmark; of
a flag and a `--set` of the same option, `--set` counts. In a TOML file a plain value stands for the
main option of a section: `model = "mlp"` means `model.name = "mlp"`, and likewise for `memory` (its
size), `engine`, `optim` and `data` (a path).

```toml
method = "fedmes"
rounds = 5
memory = 30

[optim]
lr = 0.002
```

`--config best` (from Python `fedmes.run("best", ...)`) takes the options that were selected for the
method on the benchmark ([how](reproduce.md#the-protocol)) in place of a file.

This page is generated from the fields in `src/fedmes/config`:
`python -m fedmes.config.docs > docs/options.md`. The options are grouped by what they change.
A custom method can have options too: [own-method.md](own-method.md#options).
"""
TITLES: dict[Role, str] = {
    "data": "Data: samples, clients and tasks",
    "federation": "Federation: who takes part, and what is sent",
    "training": "Training: all methods",
    "method": "Training: single methods",
    "evaluation": "Evaluation",
    "engine": "Engine: where and how it is computed",
    "output": "Output",
}
SIZES = ("clients", "tasks", "rounds", "epochs", "batch", "memory.size", "model.name")


def page() -> str:
    """The whole page as Markdown."""
    parts = [INTRODUCTION]
    for role in get_args(Role):
        lines = [_row(option) for option in options().values() if option.role == role]
        head = ["| key | flag | default | meaning |", "|---|---|---|---|"]
        parts.append("\n".join([f"## {TITLES[role]}\n", *head, *lines, ""]))
    parts.append(_benchmarks())
    return "\n".join(parts)


def _row(option: Option) -> str:
    flag = option.flag and f"`{option.flag}`"
    meaning = option.description.replace("|", "\\|")
    return f"| `{option.key}` | {flag} | {option.default} | {meaning} |"


def _benchmarks() -> str:
    """What each benchmark sets."""
    names = [*SIZES, "other options"]
    lines = [f"| benchmark | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    brought = {f"`{name}`": benchmark.defaults for name, benchmark in BENCHMARKS.items()}
    for name, defaults in (brought | {"custom data": OWN_DATA}).items():
        values = dotted(defaults)
        cells = [str(values.pop(key, "from the data")) for key in SIZES]
        others = ", ".join(f"`{key}={value}`" for key, value in values.items())
        lines.append(f"| {name} | {' | '.join(cells)} | {others} |")
    return "\n".join(["## Defaults by benchmark\n", *lines, ""])


if __name__ == "__main__":
    print(page(), end="")
