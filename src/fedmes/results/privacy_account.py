"""The key `privacy` of `result.json`: the account of differential privacy, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

PROTECTED = {"sample": "every sample", "site": "every site's updates"}


def words(account: Mapping[str, Any]) -> list[str]:
    """The most that any client's training has revealed, in a line; none without noise."""
    if not account:
        return []
    found = []
    for kind, table in account["epsilon"].items():
        found.append(f"epsilon {np.max(table):.3g} for {PROTECTED.get(kind, kind)}")
    return [f"differential privacy: {', '.join(found)}, at delta {account['delta']:g}"]
