"""Every option with its default and limits, how files and flags become a `Config`, and each
benchmark's presets."""

from fedmes.config.loading import load, parse_value, stored
from fedmes.config.options import Config, current, dotted

__all__ = ["Config", "current", "dotted", "load", "parse_value", "stored"]
