"""A client with its state on disk: what a site does with each message of the server.

Everything a site must not lose is in its directory: state and progress under `checkpoint/`
(results/checkpoint.py), and what predicts as a client directory (results/client_dir.py). Nothing is
kept in memory between two messages, so a process may be killed at any moment; a message that comes
twice changes nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedmes.engines.client_data import ClientData
from fedmes.engines.flower.answers import Facts, Hello, Scored, Trained, Work
from fedmes.engines.flower.messages import Taken
from fedmes.engines.flower.privacy import protected
from fedmes.engines.ledger import Ledger, update_cost
from fedmes.engines.loop import (
    accuracy_ahead,
    client_predictor,
    client_round,
    client_score,
    tidy,
)
from fedmes.engines.protocol import EvalProtocol
from fedmes.engines.server import tampered
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.methods.dp_sgd import unpredictable_noise
from fedmes.results import checkpoint
from fedmes.scenario.plan import Round
from fedmes.tensors import Tensors, all_grown, grown, map_entries, pick, put


class Lesson(NamedTuple):
    """What there is to train: a round, and the state that it begins with."""

    state: Tensors
    work: Round


@dataclass(frozen=True)
class Answer:
    """All that leaves a site: a few facts and numbers, and what the method uploads."""

    facts: Facts
    upload: Tensors = field(default_factory=dict)


class SiteClient:
    """One client's part in one federation, in a directory."""

    def __init__(
        self,
        name: str,
        directory: Path,
        method: Method,
        initial: Tensors,
        site: ClientData,
        save_predictor: Callable[[Tensors, int], None],
        *,
        scheduled: bool,
    ) -> None:
        """`scheduled`: rounds of the plan are the server's, as in a simulation; else they are those
        in which this site has taken part, with one task after the other as they arrive."""
        self.name = name
        self.directory = directory
        self.method = method
        self.site = site
        self.scheduled = scheduled
        self.initial = initial
        self.save_predictor = save_predictor
        self.state = method.init(initial, site.ctx())
        # of the server's state, what comes only when it has changed; and which version it is
        self.kept: Tensors = {}
        # the server's last round here, own rounds so far, the tasks begun and ended last, and the
        # last round within its task
        self.about = dict.fromkeys(("round", "begun", "ended", "index", "version"), -1)
        self.about["attended"] = 0
        # the last upload, where noise was added to it: a second draw would reveal more
        self.noisy: Tensors = {}
        self.ledger = Ledger(method, site.plan, sends=True)
        if method.dp_sgd is not None and not scheduled:  # a simulation can be repeated
            method.dp_sgd.draw = unpredictable_noise
        self.saves = 0
        self.received = False
        self._restore()

    def _restore(self) -> None:
        found = checkpoint.latest(self.directory)
        if found is None:
            return
        tensors, stored = found
        site_tasks = self.site.plan.task_names
        try:
            # In its own order, which decides how sums round. Classes, tasks and sites may have been
            # added since.
            self.state = all_grown(tensors, "client", self.state, self.method.newer)
            self.kept = pick(tensors, "kept")
            self.noisy = pick(tensors, "noisy")
            # earlier versions did not keep the round: nobody said what a server has taken
            self.about = {name: int(({"index": -1} | stored)[name]) for name in self.about}
            self.saves = int(stored["saves"])
            # before there was an account, every round was noised if any was
            self.ledger.site = self.about["attended"] * update_cost(self.method.config.privacy)
            self.ledger.restore(pick(tensors, "ledger"))
            _check_order(list(stored.get("tasks", ())), site_tasks)
        except KeyError as error:
            raise UserError(
                f"{self.directory}: its state is of another method or model ({error} is missing)"
            ) from None
        except ValueError as error:
            raise UserError(
                f"{self.directory}: its state is of another method or model ({error})"
            ) from None

    def hello(self) -> Answer:
        """The site's introduction."""
        now = self.about["attended"]
        if self.scheduled:
            now = self.about["round"] + 1
        waiting = bool((self.site.plan.position[now:] >= 0).any())
        samples = self.site.plan.count
        client = int(self.site.index)
        return Answer(Hello(client=client, samples=samples, waiting=waiting, **self._sender()))

    def receive(self, sent: Tensors, kept: Tensors | None, version: int) -> Tensors:
        """The server's state, put together from what comes each time and what came earlier."""
        if kept is not None:
            self.kept = kept
            self.about["version"] = version
            self.received = True
        if self.about["version"] != version:
            raise UserError("a part of the server's state that was sent before is not here")
        device = self.site.samples.device
        return map_entries(lambda t: t.to(device), sent | self.kept)

    @torch.no_grad()
    def train(self, g: int, broadcast: Tensors, taken: Taken | None = None) -> Answer:
        """Take part in the server's round g. `taken`: the last update that counts, if the server
        says so."""
        start = time.perf_counter()
        lesson = self.lesson(g, broadcast, taken)
        if lesson is not None:
            state = client_round(self.method, lesson.state, broadcast, lesson.work, self.site)
            self.learned(g, lesson, state)
        return self.trained(g, broadcast, start)

    def lesson(self, g: int, broadcast: Tensors, taken: Taken | None) -> Lesson | None:
        """What there is to train in the server's round g; None: nothing, or it is done already. A
        site that was away when a task ended or began catches up first."""
        if self.about["round"] > g:
            done = self.about["round"] + 1
            raise UserError(f"{self.directory} has done round {done} and is asked for {g + 1}")
        work = self.site.plan.round(self._own_round(g))
        if work is None or self.about["round"] == g:
            return None
        if spent := self.ledger.exceeded_by(work):
            raise UserError(spent)
        state = self.state
        if self.about["round"] < 0 and not self.scheduled:
            state = self._joining(broadcast)
        if taken is not None and taken < self._sent():  # one restored from a backup may know less
            state = state | self.method.upload_lost(state)
        first = self.about["begun"] != work.position
        if first:
            state = state | self._end_task()
        return Lesson(state, replace(work, first=first))

    def _sent(self) -> Taken:
        """The last update; before the first, that which a server has taken of nobody."""
        return self.about["begun"], self.about["index"]

    def learned(self, g: int, lesson: Lesson, state: Tensors) -> None:
        """The state after the round."""
        self.state = tidy(state)
        self.ledger.train(lesson.work)
        self.about["round"] = g
        self.about["attended"] += 1
        self.about["begun"] = lesson.work.position
        self.about["index"] = lesson.work.index
        self.noisy = {}

    def _own_round(self, g: int) -> int:
        """The number that the server's round g has in this site's plan."""
        if self.scheduled:
            return g
        return self.about["attended"] - (self.about["round"] == g)

    @torch.no_grad()
    def trained(self, g: int, broadcast: Tensors, start: float) -> Answer:
        """The answer to a round that is done, which began at `start`; nothing is lost from now
        on."""
        now = self._own_round(g)
        plan = self.site.plan
        work = plan.round(now)
        waiting = bool((plan.position[now + 1 :] >= 0).any())
        if work is None:
            if self.received:  # what was sent once is not sent again
                self._save()
            ended = plan.ends(now) == self.about["begun"]
            return Answer(Trained(waiting=waiting, ended=ended, **self._sender()))
        upload = self._upload(work, broadcast)
        self._save()
        reported = self.method.report(self.state, broadcast)
        about = Work(
            position=work.position,
            index=work.index,
            samples=len(work.samples),
            report=map_entries(float, reported),
            seconds=time.perf_counter() - start,
            epsilon=self.ledger.epsilon(),
        )
        another = self.ledger.exceeded_by(plan.round(now + 1))
        ended = plan.ends(now) is not None
        facts = Trained(
            waiting=waiting, ended=ended, work=about, spent=bool(another), **self._sender()
        )
        if work.factor != 1:
            upload = tampered(self.method, upload, broadcast, work.factor)
        return Answer(facts, upload)

    def _joining(self, broadcast: Tensors) -> Tensors:
        """The state of a site that begins: with the federation's present model, if the server has
        one; a site that was there from the start begins with the initial one."""
        if not {f"w.{name}" for name in self.initial} <= broadcast.keys():
            return self.state
        params = {name: broadcast[f"w.{name}"].to(t) for name, t in self.initial.items()}
        return self.method.init(params, self.site.ctx())

    @torch.no_grad()
    def evaluate(self, broadcast: Tensors) -> Answer:
        """End the task, keep what predicts, and score it on the site's own test data."""
        self.state = self.state | self._end_task()
        self._save()
        position = self.about["begun"]
        protocol = EvalProtocol.of(self.method)
        predictor = client_predictor(protocol, self.state, broadcast, position, self.site)
        self.save_predictor(predictor, position)
        ctx = self.site.ctx(self.site.plan.last_round(position))
        accuracy, undefined = client_score(protocol, predictor, position, self.site, ctx)
        facts = Scored(
            position=position,
            accuracy=accuracy,
            undefined=undefined,
            ahead=accuracy_ahead(protocol, predictor, position, self.site, self.initial),
            **self._sender(),
        )
        return Answer(facts)

    def _upload(self, work: Round, broadcast: Tensors) -> Tensors:
        options = self.method.config.privacy
        upload = self.method.upload(self.state, self.site.ctx(work))
        if self.noisy:
            # drawn for fewer classes, perhaps: the others' weights are as they came
            return {name: grown(self.noisy[name], t) for name, t in upload.items()}
        upload = protected(upload, broadcast, options)
        if options.epsilon is not None:
            self.noisy = upload
            self.ledger.send()
        return upload

    def _end_task(self) -> Tensors:
        """What changes at the end of the current task, once."""
        begun = self.about["begun"]
        if self.about["ended"] == begun:
            return {}
        self.about["ended"] = begun
        return self.method.end_task(self.state, self.site.ctx(self.site.plan.last_round(begun)))

    def _sender(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.about["version"]}

    def _save(self) -> None:
        self.saves += 1
        self.received = False
        tensors = put("client", self.state) | put("kept", self.kept) | put("noisy", self.noisy)
        if self.ledger.promises:
            tensors |= put("ledger", self.ledger.save())
        learned = self.site.plan.task_names[: self.about["begun"] + 1]
        about = self.about | {"saves": self.saves, "tasks": learned}
        checkpoint.save(self.directory, self.saves, tensors, about)


def _check_order(learned: list[str], tasks: list[str]) -> None:
    """A task that is learned keeps its place: state, memory and scores are by number."""
    for place, name in enumerate(learned):
        if name not in tasks:
            raise UserError(f"task {name}, which is learned, is no longer in the site's data")
        if tasks[place] != name:
            raise UserError(
                f"task {tasks[place]} comes before {name}, which is learned; give it a name that "
                "comes later, or list the tasks in tasks.txt"
            )
