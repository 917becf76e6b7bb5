"""What was selected for each method on each benchmark, for `--config best`: `python -m
fedmes.studies.selected > src/fedmes/config/best.toml`, in the repository."""

from __future__ import annotations

from pathlib import Path

from fedmes.config.toml_text import toml_text
from fedmes.studies.runs import LEARNING_RATES, PROTOCOL, agreed, read_toml

HEAD = """\
# `--config best`: selected options by benchmark and method. Made of results/protocol.toml and
# results/learning-rates.toml: python -m fedmes.studies.selected > src/fedmes/config/best.toml
"""


def page(root: Path) -> str:
    """The file, from those in the folder of all studies."""
    protocol = read_toml(root / PROTOCOL)
    rates = read_toml(root / LEARNING_RATES)
    text = HEAD
    for benchmark in sorted(protocol.keys() | rates.keys()):
        methods = rates.get(benchmark, {}) | protocol.get(benchmark, {}).get("methods", {})
        for method in methods:
            chosen = agreed(protocol, rates, benchmark, method)
            text += f"\n[{benchmark}.{method}]\n"
            if chosen:  # else its defaults were
                text += toml_text(chosen)
    return text


if __name__ == "__main__":
    print(page(Path("results")), end="")
