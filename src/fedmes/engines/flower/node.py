"""A node that holds several clients: one folder, one key, one device, one message for all of them.

Each client has a directory and a state of its own and is a `SiteClient` like any other. Only
training is done for all of them together, by the stacked engine; and where nobody looks at single
updates, the node sends their sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fedmes.config.options import Config
from fedmes.engines.capacity import worth_stacking
from fedmes.engines.flower.answers import Refusal, Trained
from fedmes.engines.flower.messages import Taken
from fedmes.engines.flower.site import Answer, Lesson, SiteClient
from fedmes.engines.loop import client_round
from fedmes.engines.server import distances, screened
from fedmes.engines.stacked.together import clients_round
from fedmes.engines.summed import share, weight_of
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.methods.dp_sgd import unpredictable_noise
from fedmes.tensors import Tensors, added, stacked

Refuse = Callable[[str, UserError], Refusal]


@dataclass(frozen=True)
class Members:
    """The clients that an order is about, each of them or why it does nothing; and their answers so
    far."""

    refuse: Refuse
    answers: list[SiteClient | Answer | Refusal]

    def each(self, work: Callable[[int, SiteClient], Answer | None]) -> None:
        """Let those that are left answer, unless there is no answer yet; a mistake affects its own
        client alone."""
        for place, client in enumerate(self.answers):
            if isinstance(client, SiteClient):
                try:
                    self.answers[place] = work(place, client) or client
                except UserError as error:
                    self.answers[place] = self.refuse(client.name, error)


@dataclass(frozen=True)
class Node:
    """The clients of a node, which have one method, one federation and one set of samples."""

    config: Config
    clients: Mapping[int, SiteClient]  # by number
    refusals: Mapping[str, UserError]  # of others, by name

    @property
    def method(self) -> Method:
        return next(iter(self.clients.values())).method

    def asked(self, numbers: Sequence[int] | None, refuse: Refuse) -> Members:
        """The clients of these numbers, or all."""
        found: list[SiteClient | Answer | Refusal] = []
        if numbers is None:
            found += [refuse(name, error) for name, error in self.refusals.items()]
            return Members(refuse, [*self.clients.values(), *found])
        sites = self.config.federation.sites
        for k in numbers:
            if k in self.clients:
                found.append(self.clients[k])
                continue
            name = sites[k] if k < len(sites) else f"client {k}"
            found.append(refuse(name, self.refusals.get(name, UserError("it is not here"))))
        return Members(refuse, found)

    def train(
        self,
        members: Members,
        g: int,
        receive: Callable[[SiteClient], Tensors],
        taken: Callable[[SiteClient], Taken | None],
        add_up: bool,
    ) -> Tensors:
        """Take part in the server's round g. With `add_up`, the sum of the clients' updates."""
        start = time.perf_counter()
        received: dict[int, Tensors] = {}
        lessons: dict[SiteClient, Lesson] = {}

        def begin(place: int, client: SiteClient) -> None:
            received[place] = receive(client)
            if (lesson := client.lesson(g, received[place], taken(client))) is not None:
                lessons[client] = lesson

        members.each(begin)
        broadcast = next(iter(received.values()), {})
        for client, state in self._learned(lessons, broadcast).items():
            client.learned(g, lessons[client], state)
        seconds = (time.perf_counter() - start) / max(1, len(received))

        def end(place: int, client: SiteClient) -> Answer:
            return client.trained(g, received[place], time.perf_counter() - seconds)

        members.each(end)
        return _sum(self.method, members, broadcast) if add_up and received else {}

    def _learned(
        self, lessons: Mapping[SiteClient, Lesson], broadcast: Tensors
    ) -> dict[SiteClient, Tensors]:
        """The clients' states after a round."""
        clients = list(lessons)
        if not clients:
            return {}
        method = self.method
        samples = clients[0].site.samples
        together = worth_stacking(method.net, method.config.model.name, samples.device.type)
        if method.dp_sgd is not None and method.dp_sgd.draw is unpredictable_noise:
            together = False  # what the system draws would be the same for all that are mapped
        if not together or len(clients) < 2:
            found = {}
            for client, (state, work) in lessons.items():
                found[client] = client_round(method, state, broadcast, work, client.site)
            return found
        states = {client.site.column: lesson.state for client, lesson in lessons.items()}
        works = {client.site.column: lesson.work for client, lesson in lessons.items()}
        federation = clients[0].site.federation
        after = clients_round(method, states, broadcast, works, federation, samples)
        return {client: after[client.site.column] for client in clients}


def _sum(method: Method, members: Members, broadcast: Tensors) -> Tensors:
    """The updates of the clients that have learned as one sum; each answer says whether it is in
    it."""
    working = {}
    for place, answer in enumerate(members.answers):
        if isinstance(answer, Answer) and isinstance(answer.facts, Trained) and answer.facts.work:
            working[place] = answer
    uploads = stacked([answer.upload for answer in working.values()] or [{}])
    if len(working) < 2 or not uploads:
        return {}
    device = next(iter(uploads.values())).device
    sent = torch.ones(len(working), dtype=torch.bool, device=device)
    verdicts = screened(method, distances(broadcast, uploads, sent), sent)
    total: Tensors = {}
    for (place, answer), verdict in zip(working.items(), verdicts.tolist(), strict=True):
        facts = answer.facts.model_copy(update={"verdict": verdict})
        members.answers[place] = Answer(facts)
        if not verdict:
            assert isinstance(facts, Trained) and facts.work is not None
            weight = weight_of(method, facts.work.samples)
            own = share(method, broadcast, answer.upload)
            total = added(total, {name: weight * t for name, t in own.items()})
    return total
