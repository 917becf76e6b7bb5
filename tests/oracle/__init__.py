"""Every method once more, in plain float64: one client after the other, `torch.autograd`, nothing
clever.

Written from the papers' formulas and the sentences of docs/methods.md and docs/options.md, and from
nothing else: no module of fedmes that computes is imported here. What a run is given is taken as
data: its directory's config.toml, split.json and initial.safetensors, the samples, and the random
numbers that belong to a key.
"""

from oracle.federation import Outcome, simulate

__all__ = ["Outcome", "simulate"]
