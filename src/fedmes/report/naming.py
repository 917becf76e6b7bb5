"""What the reader calls the runs of a report, and in which order they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedmes.common.text import printable
from fedmes.errors import UserError, unknown
from fedmes.report.collect import Group, Run, method_label


@dataclass(frozen=True)
class Naming:
    """Names and order by method, or by run where a report has several of one method. A run keeps
    the look of its method, whatever it is called."""

    names: Mapping[str, str] = field(default_factory=dict)
    order: Sequence[str] = ()

    def applied(self, groups: Sequence[Group]) -> list[Group]:
        known: set[str] = set()
        for group in groups:
            known.update(*map(_keys, group.runs))
        for key in (*self.names, *self.order):
            if key not in known:
                raise unknown("run", key, known)
        return list(map(self._of_group, groups))

    def _of_group(self, group: Group) -> Group:
        runs = sorted(map(self._named, group.runs), key=self._place)
        times = Counter(run.label for run in runs)
        for label, count in times.items():
            if count > 1:
                raise UserError(f"report: {count} runs would be called '{label}'")
        return Group(tuple(runs), ordered=bool(self.order))

    def _named(self, run: Run) -> Run:
        method = method_label(run.config)
        for key in _keys(run):
            if key in self.names:
                name = printable(self.names[key])
                of_run = key == run.label and key != method
                label = name if of_run else run.label.replace(method, name, 1)
                return replace(run, label=label, key=run.label)
        return replace(run, key=run.label)

    def _place(self, run: Run) -> int:
        places = [self.order.index(key) for key in _keys(run) if key in self.order]
        return min(places, default=len(self.order))


def _keys(run: Run) -> list[str]:
    """By what a run can be named, the most particular first."""
    config = run.config
    return [run.key or run.label, method_label(config), config.method, config.method_name]
