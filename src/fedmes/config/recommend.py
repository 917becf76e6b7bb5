"""The method that `--method auto` stands for, by what was measured (docs/choose.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fedmes.config.options import merge


class Recommendation(NamedTuple):
    """A method with the options it works best with, and why it was taken, for one line."""

    options: dict[str, Any]  # as in a TOML file; what was asked for goes before
    reason: str


def recommended(given: Mapping[str, Any]) -> Recommendation:
    """For a configuration as asked for: sections as in a TOML file."""
    asked: dict[str, Any] = {}
    merge(asked, given)
    model = asked.get("model", {})
    name = str(model.get("name", ""))
    if name != "lite0" and not name.startswith("timm:"):
        return _trained("a network that is trained: replay, a teacher and averaged models")
    train = model.get("train", "head")
    if train not in ("head", "adapters"):
        return _trained("more than the head of a pretrained network is trained")
    if hindrance := _no_sums(asked):
        return _trained(f"sums of features do not go with {hindrance}")
    options: dict[str, Any] = {"method": "fedstats", "rounds": 1, "epochs": 1}
    reason = "a frozen pretrained network: sums of its features, sent once"
    if train == "adapters":
        options |= {"rounds": 4, "epochs": 3, "fedstats": {"adapt": 3}}
        reason = "adapters: they learn for three rounds, then sums of the adapted features"
    if name == "lite0":
        options["model"] = {"levels": 5}
    return Recommendation(options, reason)


def _trained(reason: str) -> Recommendation:
    return Recommendation({"method": "fedmes-plus"}, reason)


def _no_sums(asked: Mapping[str, Any]) -> str:
    """What of the configuration `fedstats` cannot do."""
    if asked.get("engine", {}).get("precision") == "bf16":
        return "engine.precision=bf16"
    if asked.get("device") == "mps":
        return "device=mps"
    for section, key in (("privacy", "clip"), ("privacy", "sample_clip"), ("server", "robust")):
        if asked.get(section, {}).get(key) not in (None, "none"):
            return f"{section}.{key}"
    return ""
