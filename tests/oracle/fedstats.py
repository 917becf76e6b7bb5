"""FedStats a second time: sums over samples in a plain loop, and a head by eigenvalues."""

import math

import torch

from oracle.mathematics import mean
from oracle.methods import FedAvg


class FedStats(FedAvg):
    judged = "personal"

    def __init__(self, scenario, initial):
        self.rounds = 0  # that the server has taken
        self.adapt = scenario.config["fedstats"]["adapt"]
        super().__init__(scenario, initial)

    def shared(self, w):
        return dict(w) if self.adapt else {}

    def join(self, state, initial):
        classes, width = initial["head.weight"].shape
        state.own = self.nothing(classes, width)
        self.all = self.nothing(classes, width)
        state.told = set()
        state.owed = None

    def lost(self, client):
        state = self.states[client.column]
        state.owed = state.new

    def nothing(self, classes, width):
        shapes = {"n": (classes,), "s": (classes, width), "g": (width, width)}
        return {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    def train(self, client, work):
        state = self.states[client.column]
        state.new = {name: torch.zeros_like(t) for name, t in state.own.items()}
        state.w = state.w | self.server
        if self.rounds < self.adapt:
            super().train(client, work)
            state.w, state.trained = state.w | self.server, state.w
        elif work.position not in state.told:
            state.told.add(work.position)
            with torch.no_grad():
                for row in work.samples:
                    features, _ = self.network.features(state.w, self.scenario.x[[row]])
                    feature = torch.round(features[0] * 4096) / 4096
                    label = int(self.scenario.y[row])
                    state.new["n"][label] += 1
                    state.new["s"][label] += feature
                    state.new["g"] += torch.outer(feature, feature)
        if state.owed:
            for name, t in state.owed.items():
                state.new[name] = state.new[name] + t
                state.own[name] = state.own[name] - t
            state.owed = None
        for name, t in state.new.items():
            state.new[name] = t.float().double()  # as it is sent
            state.own[name] = state.own[name] + state.new[name]

    def upload(self, client, work):
        state = self.states[client.column]
        return (state.trained, {}) if self.rounds < self.adapt else ({}, state.new)

    def aggregate(self, arrived):
        trained = [w for _, (w, _), _ in arrived if w]
        if trained:
            self.server = mean(trained, [1] * len(trained))
        for _, (_, new), _ in arrived:
            self.all = {name: t + new.get(name, 0) for name, t in self.all.items()}
        self.rounds += 1

    def model(self, client):
        state = self.states[client.column]
        options = self.options("fedstats")
        own = 0 if self.judged == "global" else options.own
        n, s, g = ((1 - own) * self.all[name] + own * state.own[name] for name in "nsg")
        means = torch.where(n[:, None] > 0, s / n[:, None], 0)
        matrix, right = g / n.sum(), s / n.sum()
        if options.head == "lda":
            spread = sum(n[c] * torch.outer(means[c], means[c]) for c in range(len(n)))
            matrix, right = (g - spread) / n.sum(), means
        ridge = options.prior / n.sum()
        matrix = matrix + torch.diag(ridge * matrix.trace() / len(matrix) + 0 * g.diag())
        values, vectors = torch.linalg.eigh(matrix)
        weight = right @ (vectors / values) @ vectors.T
        bias = torch.zeros_like(n)
        if options.head == "lda":
            bias = torch.stack([-(w @ m) / 2 for w, m in zip(weight, means, strict=True)])
        counts = self.all["n"] if self.judged == "global" else state.own["n"]
        logs = [math.log(max(n, 1)) for n in counts.tolist()]
        bias = bias + options.frequency * torch.tensor(logs, dtype=bias.dtype)
        return state.w | self.server | {"head.weight": weight, "head.bias": bias}
