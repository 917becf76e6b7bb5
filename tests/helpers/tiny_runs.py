"""The options of a run of Split Digits that takes no time."""

TINY = {
    "method": "fedavg",
    "clients": 2,
    "tasks": 2,
    "rounds": 2,
    "epochs": 1,
    "model": "linear",
    "stream": {"frac": 3},
}
