"""LFedCon2 a second time: classifiers as records in lists, votes counted sample by sample."""

from fractions import Fraction
from types import SimpleNamespace

import torch

from oracle.mathematics import OPTIMIZERS, log_softmax
from oracle.methods import FedAvg


class LFedCon2(FedAvg):
    judged = "personal"

    def __init__(self, scenario, initial):
        self.members, self.candidates, self.initial = [], {}, initial
        super().__init__(scenario, initial)

    def shared(self, w):
        return {}

    def join(self, state, initial):
        state.past, state.known, state.sure, state.version = [], set(), 0.0, 0

    def begin_round(self, client, state, work):
        here = self.members + list(self.candidates.values())
        state.votes, confidence = [0] * len(here), 0.0
        for row in work.samples:
            x, label = self.scenario.x[[row]], int(self.scenario.y[row])
            for i, one in enumerate(here):
                p = self.answer(one.w, one.known, x)
                state.votes[i] += int(p.argmax()) == label
            confidence += float(self.answer(state.w, state.known, x)[0, label])
        confidence /= len(work.samples)
        if confidence < self.options("lfedcon2").drift * state.sure:
            state.past.insert(0, SimpleNamespace(w=state.w, known=state.known))
            del state.past[self.options("lfedcon2").local :]
            state.known, state.version, state.sure = set(), state.version + 1, confidence
        state.sure = max(state.sure, confidence)
        state.known = state.known | set(client.own(work.position).nonzero()[:, 0].tolist())
        state.optimizer = OPTIMIZERS[self.config["optim"]["name"]]()

    def answer(self, w, known, x, scope=None):
        """Among the classes that a classifier knows; zeros, if it knows none of these."""
        among = self.scenario.mask(known)
        if scope is not None:
            among = among & scope
        if not among.any():
            return torch.zeros(len(x), self.scenario.classes, dtype=torch.float64)
        return log_softmax(self.network.logits(w, x), among).exp()

    def upload(self, client, work):
        state = self.states[client.column]
        return SimpleNamespace(
            w=state.w, known=state.known, owner=client.column, version=state.version
        )

    def aggregate(self, arrived):
        here = self.members + list(self.candidates.values())

        def merit(i):
            others = [(c, n) for c, _, n in arrived if c.column != here[i].owner]
            right = sum(self.states[c.column].votes[i] for c, _ in others)
            return Fraction(right, max(1, sum(n for _, n in others)))

        best = sorted(range(len(here)), key=lambda i: (-merit(i), i))
        self.members = [here[i] for i in best[: self.options("lfedcon2").members]]
        self.candidates = {}
        for client, sent, _ in arrived:
            seat = [(m.owner, m.version) for m in self.members]
            if (sent.owner, sent.version) in seat:
                self.members[seat.index((sent.owner, sent.version))] = sent
            else:
                self.candidates[client.column] = sent

    def ensemble(self, client):
        """With empty places, as they are stored."""
        options, state = self.options("lfedcon2"), self.states[client.column]
        nobody = SimpleNamespace(
            w={name: torch.zeros_like(t) for name, t in self.initial.items()}, known=set()
        )
        members = self.members + [nobody] * (options.members - len(self.members))
        if self.judged == "global":
            return members
        distant = [
            SimpleNamespace(w=m.w, known=m.known if m is nobody or m.owner != client.column else ())
            for m in members
        ]
        past = state.past + [nobody] * (options.local - len(state.past))
        return [SimpleNamespace(w=state.w, known=state.known), *past, *distant]

    def model(self, client):
        each = [one.w for one in self.ensemble(client)]
        return {name: torch.stack([w[name] for w in each]) for name in each[0]}

    def probabilities(self, client, position, rows, scope, task):
        x = self.scenario.x[rows]
        able = [m for m in self.ensemble(client) if (self.scenario.mask(m.known) & scope).any()]
        if not able:
            return {"": scope.double().expand(len(rows), -1) / int(scope.sum())}
        total = sum(self.answer(one.w, one.known, x, scope) for one in able)
        return {"": total / len(able)}
