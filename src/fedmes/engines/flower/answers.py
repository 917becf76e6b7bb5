"""What a site answers in addition to its upload: one strict form for each kind of message.

Sites write them and the server reads them. Whatever does not fit is read as a refusal, with its
reason, and affects only its sender.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from flwr.app import Message
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedmes.common.text import printable
from fedmes.engines.flower import messages
from fedmes.engines.server import REJECTIONS
from fedmes.tensors import Tensors, pick

TOTAL = "sum"  # the part of a message's tensors that is a sum of several clients' updates
MOST = 10**9  # of anything that is counted
MOST_NEW = 1000  # classes that a site brings at once
LONGEST = 200  # characters of a reason; it ends in logs and results


def plain(text: str) -> str:
    """In one short line that cannot control a terminal nor fill a log."""
    return printable(text[:LONGEST], " ")


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise ValueError("a line of text is needed")
    return text


def _share(value: float) -> float:
    if not math.isnan(value) and not 0 <= value <= 1:
        raise ValueError("a share between 0 and 1 is needed")
    return value


Hex = Annotated[str, Field(pattern="^([0-9a-f]{2})*$", max_length=256)]
Count = Annotated[int, Field(ge=0, le=MOST)]
Protected = Annotated[str, Field(pattern="^(sample|site)$")]
Name = Annotated[str, Field(max_length=100), AfterValidator(_name)]
Number = Annotated[float, Field(allow_inf_nan=True)]  # what has diverged is reported as it is
# NaN: of a task never met
Share = Annotated[float, Field(allow_inf_nan=True), AfterValidator(_share)]


class Form(BaseModel):
    """Nothing but the fields, in exactly their types."""

    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants"
    )


class Facts(Form):
    """What every answer says about its sender."""

    name: Name
    key: Hex = ""  # with secure aggregation: the public key for the next sum
    # of that part of the server's state which the site keeps
    version: Annotated[int, Field(ge=-1, le=MOST)]


class Hello(Facts):
    """A site's introduction."""

    client: Count
    samples: Count  # all that it can train on, which bounds its weight in an average
    waiting: bool  # are there tasks left to learn?


class Work(Form):
    """Numbers about a round that was trained."""

    position: Count
    index: Count
    samples: Count
    report: dict[str, Number]
    seconds: Annotated[float, Field(ge=0)]
    # what the site's training has revealed so far, by its own account
    epsilon: dict[Protected, Annotated[float, Field(ge=0)]] = {}


class Hidden(Form):
    """What comes with a masked upload: shares of the seed of its mask, and how to check it."""

    finite: bool  # False: the update was not, and nothing is added to the sum instead
    seal: Hex
    shares: dict[Count, Hex]  # by client, encrypted for it


class Trained(Facts):
    """The answer to a round; its upload comes beside it."""

    waiting: bool
    ended: bool
    work: Work | None = None  # None: there was nothing to do
    spent: bool = False  # does its privacy budget not allow another round?
    hidden: Hidden | None = None  # None: nothing is hidden, or nothing is sent
    # where a node sends the sum of its clients' updates: why this one is not in it, as an index
    # into server.REJECTIONS; None: the update comes by itself
    verdict: Annotated[int, Field(ge=0, lt=len(REJECTIONS))] | None = None


class Unmasked(Facts):
    """What removes masks from a sum (secure_site.py)."""

    pairs: dict[Count, Hex]  # of sites that are missing: the seed shared with each
    shares: dict[Count, Hex]  # of sites that are in the sum: a share of each one's own seed


class Scored(Facts):
    """Accuracies after a task: by kind of prediction, per task (task-oblivious, task-aware)."""

    position: Count
    accuracy: dict[str, list[tuple[Share, Share]]]
    undefined: bool  # was an output not a number?
    # with eval.forward, the same on the next task: now, and of the initial model
    ahead: dict[str, list[tuple[Share, Share]]] = {}


class Refusal(Form):
    """Why a site does not do what it is asked for."""

    name: Annotated[str, AfterValidator(plain)]  # "": unknown
    error: Annotated[str, AfterValidator(plain)]
    # classes of the site that the federation does not know, in the order of first appearance
    classes: Annotated[list[Name], Field(max_length=MOST_NEW)] = []


FORMS: dict[str, type[Facts]] = {
    "query": Hello,
    "query.unmask": Unmasked,
    "train": Trained,
    "evaluate": Scored,
}


Good = tuple[Facts, Tensors]


class Reply(NamedTuple):
    """What a node answers: for each client that it was asked about, and perhaps one sum of their
    updates. If it refuses as a whole, there is that one refusal."""

    answers: list[Good | Refusal]
    total: Tensors

    def of(self, clients: Sequence[int]) -> dict[int, Good | Refusal]:
        """The answers of the clients that were asked."""
        answers = self.answers
        if len(answers) == 1 and isinstance(answers[0], Refusal):
            answers = answers * len(clients)
        if len(answers) != len(clients):
            answers = [unreadable(f"{len(answers)} answers of {len(clients)} clients")]
            answers = answers * len(clients)
        return dict(zip(clients, answers, strict=True))


@dataclass(frozen=True)
class Limits:
    """What a run knows of every answer."""

    clients: int
    tasks: int
    rounds: int
    reported: Collection[str]  # the names of the method's report

    def check(self, facts: Facts) -> None:
        """Raise a ValueError where an answer exceeds them."""
        if isinstance(facts, Hello):
            _below("client", facts.client, self.clients)
        if isinstance(facts, Trained) and facts.work is not None:
            _below("work.position", facts.work.position, self.tasks)
            _below("work.index", facts.work.index, self.rounds)
            if not set(facts.work.report) <= set(self.reported):
                raise ValueError(
                    f"work.report: the method reports {', '.join(sorted(self.reported))} alone"
                )
        if isinstance(facts, Scored):
            _below("position", facts.position, self.tasks)
            if not {"acc"} <= facts.accuracy.keys() <= {"acc", "nolip"}:
                raise ValueError("accuracy: acc, and perhaps nolip, should be there")
            tasks = facts.position + 1
            if any(len(shares) != tasks for shares in facts.accuracy.values()):
                raise ValueError(f"accuracy: {tasks} tasks should be there")
            if facts.ahead and facts.ahead.keys() != facts.accuracy.keys():
                raise ValueError("ahead: as many kinds as in accuracy should be there")
            if any(len(shares) != 2 for shares in facts.ahead.values()):
                raise ValueError("ahead: two models should be there")


def _below(what: str, value: int, limit: int) -> None:
    if value >= limit:
        raise ValueError(f"{what}: should be below {limit}")


def read(reply: Message, kind: str, limits: Limits) -> Reply:
    """A node's answer to a message of this kind."""
    try:
        texts = messages.texts_of(reply)
        tensors = messages.tensors_of(reply)
        if texts is None:
            return Reply([_read(*messages.text_of(reply), kind, limits, tensors)], {})
        if len(texts) > limits.clients:
            raise ValueError(f"{len(texts)} clients; there are {limits.clients}")
        answers = []
        for place, (text, refused) in enumerate(texts):
            answers.append(_read(text, refused, kind, limits, pick(tensors, str(place))))
        return Reply(answers, pick(tensors, TOTAL))
    except Exception as error:
        # a malformed message may fail in Flower or numpy with any of their errors
        return Reply([unreadable(str(error) or type(error).__name__)], {})


def _read(text: str, refused: bool, kind: str, limits: Limits, tensors: Tensors) -> Good | Refusal:
    """The answer of a client."""
    try:
        if refused:
            return Refusal.model_validate_json(text)
        facts = FORMS[kind].model_validate_json(text)
        limits.check(facts)
        return facts, tensors
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        if place:
            return unreadable(f"{place}: {first['msg']}")
        return unreadable(first["msg"])
    except ValueError as error:
        return unreadable(str(error))


def unreadable(why: str) -> Refusal:
    return Refusal(name="", error=f"unreadable answer ({plain(why)})")
