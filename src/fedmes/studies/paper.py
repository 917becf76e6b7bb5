"""The numbers that the paper prints (Xie, Zhu and Li 2024, arXiv 2404.12710), and where.

Curves, bars and boxes that its figures show without numbers are not here: a table says "not
printed" for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedmes.report.table import Number


@dataclass(frozen=True)
class Printed:
    """A number, its spread over five repetitions where one is printed, and its place."""

    mean: float
    std: float | None
    where: str

    def number(self, digits: int) -> Number:
        """As a cell with so many digits."""
        return Number(self.mean, self.std, digits, 2)


TABLE_1 = 'Table 1, "Acc_ALL (Acc) and Average Forgetting Rate (FR)"'
MEMORY_TEXT = 'Section "Cross-domain Performance", paragraph "Effect of memory size"'

# Benchmark and clients by column: Acc, its spread, FR, its spread.
_METHODS = ("fedavg", "ditto", "fedrep", "fedagem", "fedweit", "fedmes-nolip", "fedmes")
_COLUMNS: dict[tuple[str, int], tuple[tuple[float, float, float, float], ...]] = {
    ("split-cifar100", 10): (
        (0.249, 0.02, 0.35, 0.05), (0.219, 0.02, 0.37, 0.03), (0.415, 0.04, 0.13, 0.02),
        (0.351, 0.04, 0.14, 0.03), (0.421, 0.05, 0.06, 0.03), (0.475, 0.05, 0.08, 0.03),
        (0.530, 0.05, 0.06, 0.01),
    ),
    ("split-cifar100", 20): (
        (0.263, 0.03, 0.29, 0.03), (0.221, 0.02, 0.38, 0.06), (0.425, 0.06, 0.13, 0.02),
        (0.398, 0.05, 0.14, 0.03), (0.432, 0.05, 0.08, 0.03), (0.488, 0.05, 0.07, 0.03),
        (0.533, 0.04, 0.06, 0.02),
    ),
    ("split-emnist", 10): (
        (0.450, 0.02, 0.49, 0.02), (0.388, 0.03, 0.71, 0.04), (0.723, 0.04, 0.23, 0.04),
        (0.817, 0.04, 0.09, 0.05), (0.867, 0.03, 0.03, 0.01), (0.891, 0.02, 0.03, 0.05),
        (0.935, 0.01, 0.01, 0.01),
    ),
    ("split-emnist", 20): (
        (0.465, 0.03, 0.48, 0.02), (0.381, 0.02, 0.72, 0.03), (0.723, 0.06, 0.24, 0.06),
        (0.828, 0.04, 0.16, 0.04), (0.857, 0.03, 0.03, 0.02), (0.912, 0.02, 0.02, 0.05),
        (0.964, 0.01, 0.01, 0.01),
    ),
    ("split-core50", 10): (
        (0.303, 0.01, 0.60, 0.02), (0.266, 0.01, 0.79, 0.02), (0.547, 0.03, 0.34, 0.02),
        (0.731, 0.04, 0.18, 0.03), (0.595, 0.04, 0.17, 0.04), (0.821, 0.04, 0.05, 0.03),
        (0.877, 0.04, 0.04, 0.01),
    ),
    ("split-core50", 20): (
        (0.311, 0.01, 0.59, 0.02), (0.267, 0.01, 0.81, 0.03), (0.551, 0.04, 0.35, 0.03),
        (0.741, 0.04, 0.20, 0.03), (0.589, 0.05, 0.19, 0.04), (0.834, 0.04, 0.04, 0.03),
        (0.891, 0.04, 0.03, 0.01),
    ),
    ("split-miniimagenet", 10): (
        (0.271, 0.02, 0.51, 0.04), (0.264, 0.03, 0.49, 0.05), (0.410, 0.03, 0.30, 0.05),
        (0.504, 0.05, 0.18, 0.03), (0.319, 0.04, 0.17, 0.03), (0.607, 0.04, 0.11, 0.03),
        (0.645, 0.05, 0.08, 0.02),
    ),
    ("split-miniimagenet", 20): (
        (0.262, 0.02, 0.39, 0.05), (0.265, 0.01, 0.51, 0.04), (0.388, 0.03, 0.24, 0.02),
        (0.477, 0.05, 0.17, 0.05), (0.343, 0.04, 0.15, 0.03), (0.617, 0.04, 0.11, 0.03),
        (0.659, 0.03, 0.08, 0.02),
    ),
}  # fmt: skip

# FedMeS on Split CIFAR-100 with 10 clients, by samples in the memory: "48 %" at 30, "around 55 %"
# from 150 on.
_MEMORY = {30: 0.48, 150: 0.55, 180: 0.55, 210: 0.55, 240: 0.55, 300: 0.55}


def table1(benchmark: str, clients: int, row: str) -> dict[str, Printed]:
    """Acc_ALL and FR of a row (`fedmes-nolip` is one); empty where the paper has no such cell."""
    numbers = _COLUMNS.get((benchmark, clients))
    if numbers is None or row not in _METHODS:
        return {}
    acc, acc_std, fr, fr_std = numbers[_METHODS.index(row)]
    return {"acc_all": Printed(acc, acc_std, TABLE_1), "fr": Printed(fr, fr_std, TABLE_1)}


def memory(benchmark: str, clients: int, size: int) -> Printed | None:
    """Acc_ALL of FedMeS by the size of its memory."""
    if (benchmark, clients) != ("split-cifar100", 10) or size not in _MEMORY:
        return None
    return Printed(_MEMORY[size], None, MEMORY_TEXT)
