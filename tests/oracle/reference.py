"""The methods that papers on class-incremental learning compare with, a second time: sample by
sample and class by class."""

import math

import torch
from torch.nn import functional as F

from oracle.mathematics import cross_entropy, gradient, log_softmax
from oracle.methods import FedAvg
from oracle.scenario import hashed


class ER(FedAvg):
    """A batch and one of the memory."""

    keeps = True

    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        gm = self.on_memory(client, state.w, work, step)
        return {name: g[name] + gm[name] for name in g}, loss


class ERACE(ER):
    """New samples compete among the classes of their batch; in the replay, which has some of the
    new ones too, all do."""

    def direction(self, client, state, work, step):
        x, y = self.scenario.x[step.batch], self.scenario.y[step.batch]
        scope = client.trained_among(work.position, step.batch)
        here = self.scenario.mask(set(y.tolist()))
        new = int(client.own(work.position).sum()) / int(client.seen(work.position).sum())

        def loss(w):
            logits = self.network.logits(w, x, step.key)
            replayed = new * cross_entropy(logits, y, scope)
            if step.memory:
                replayed = replayed + (1 - new) * self.ce(client, w, work.position, step.memory)
            return cross_entropy(logits, y, scope & here) + replayed

        return gradient(loss, state.w)


class DERPP(ER):
    """What a stored sample recalls: its label, and the logits of when it was last learned."""

    def join(self, state, initial):
        state.logits = {}  # by row, and when they were stored

    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        options = self.options("derpp")

        def recalled(w):
            total = 0
            for row in step.memory:
                then, position = state.logits[row]
                known = sum(client.own(p) for p in range(position + 1)) > 0
                among = client.trained_among(work.position, [row])[0] & known
                now = self.network.logits(w, self.scenario.x[[row]])[0]
                total = total + options.alpha * ((now - then)[among] ** 2).mean()
            return total / len(step.memory) + options.beta * self.ce(
                client, w, work.position, step.memory
            )

        if step.memory:
            gm, _ = gradient(recalled, state.w)
            g = {name: g[name] + gm[name] for name in g}
        for row in step.batch:
            logits = self.network.logits(state.w, self.scenario.x[[row]])[0]
            state.logits[row] = logits, work.position
        return g, loss


class EWC(FedAvg):
    """Weights are held by the mean of squared gradients of single samples."""

    section = "ewc"

    def join(self, state, initial):
        state.anchor = dict(initial)
        state.held = {name: torch.zeros_like(t) for name, t in initial.items()}

    def begin_task(self, client, state, work):
        state.anchor = self.server

    def begin_round(self, client, state, work):
        super().begin_round(client, state, work)
        each = [self.importance(client, self.server, work, row) for row in work.samples]
        state.new = {name: sum(one[name] for one in each) / len(each) for name in self.server}

    def importance(self, client, w, work, row):
        g, _ = gradient(lambda w: self.ce(client, w, work.position, [row]), w)
        return {name: t**2 for name, t in g.items()}

    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        lam = self.options(self.section).lam
        for name, t in state.w.items():
            g[name] = g[name] + lam * state.held[name] * (t - state.anchor[name])
        return g, loss

    def end_task(self, client, state, position):
        gamma = self.options(self.section).gamma
        state.held = {name: gamma * t + state.new[name] for name, t in state.held.items()}


class MAS(EWC):
    """By gradients of the squared output, without labels."""

    section = "mas"

    def importance(self, client, w, work, row):
        scope = client.trained_among(work.position, [row])[0]

        def square(w):
            return (self.network.logits(w, self.scenario.x[[row]])[0, scope] ** 2).sum()

        return {name: t.abs() for name, t in gradient(square, w)[0].items()}


class ICaRL(FedAvg):
    """A sigmoid a class; the model that was received as the task began teaches the old ones."""

    keeps = True

    def join(self, state, initial):
        state.known = torch.zeros(self.scenario.classes, dtype=torch.bool)

    def begin_task(self, client, state, work):
        state.teacher = self.server

    def end_task(self, client, state, position):
        state.known = client.seen(position)

    def direction(self, client, state, work, step):
        def mean_loss(w, rows, key):
            if not rows:
                return sum(t.sum() * 0 for t in w.values())
            x, y = self.scenario.x[rows], self.scenario.y[rows]
            target = F.one_hot(y, self.scenario.classes).double()
            taught = torch.sigmoid(self.network.logits(state.teacher, x))
            target[:, state.known] = taught[:, state.known]
            each = F.binary_cross_entropy_with_logits(
                self.network.logits(w, x, key), target, reduction="none"
            )
            return (each * client.trained_among(work.position, rows)).sum() / len(rows)

        g, loss = gradient(lambda w: mean_loss(w, step.batch, step.key), state.w)
        gm, _ = gradient(lambda w: mean_loss(w, step.memory, None), state.w)
        return {name: g[name] + gm[name] for name in g}, loss

    def probabilities(self, client, position, rows, scope, task):
        """By the distance to the mean of each class's exemplars, all on the unit sphere."""
        w, x = self.model(client), self.scenario.x
        stored = client.memory[position][0 if self.options("knn").memory == "before" else 1]
        exemplars = {}
        for row in stored:
            z = self.network.embedding(w, x[[row]])[0]
            exemplars.setdefault(int(self.scenario.y[row]), []).append(
                z / z.norm().clamp(min=1e-12)
            )
        score = torch.full((len(rows), self.scenario.classes), -math.inf, dtype=torch.float64)
        for label, those in exemplars.items():
            center = sum(those) / len(those)
            center = center / center.norm().clamp(min=1e-12)
            for i, row in enumerate(rows):
                z = self.network.embedding(w, x[[row]])[0]
                z = z / z.norm().clamp(min=1e-12)
                if scope[label]:
                    # minus the squared distance, plus 2; of a dead network's zeros exactly 0
                    score[i, label] = 2 * (z @ center)
        if torch.isinf(score).all():
            return {"": log_softmax(self.network.logits(w, x[rows]), scope).exp()}
        return {"": score.softmax(-1)}


class GLFC(ICaRL):
    """Hard samples count more, among the new and among the old each; the heads predict."""

    def direction(self, client, state, work, step):
        rows = [*step.batch, *step.memory]
        y = self.scenario.y[rows].tolist()
        with torch.no_grad():
            logits = torch.cat(
                [
                    self.network.logits(state.w, self.scenario.x[step.batch], step.key),
                    self.network.logits(state.w, self.scenario.x[step.memory]),
                ]
            )
        far = [1 - float(torch.sigmoid(logits[i, label])) for i, label in enumerate(y)]
        groups = {}
        for i, label in enumerate(y):
            groups.setdefault(bool(state.known[label]), []).append(far[i])
        average = {group: sum(those) / len(those) for group, those in groups.items()}
        weight = [
            far[i] / average[bool(state.known[label])] if state.known.any() else 1
            for i, label in enumerate(y)
        ]

        def part(w, rows, key, weights):
            x, one_hot = (
                self.scenario.x[rows],
                F.one_hot(self.scenario.y[rows], self.scenario.classes).double(),
            )
            logits, scope = (
                self.network.logits(w, x, key),
                client.trained_among(work.position, rows),
            )
            taught = torch.sigmoid(self.network.logits(state.teacher, x))
            kept = torch.where(state.known, taught, one_hot)

            def each(target):
                bce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
                return (bce * scope).sum(-1)

            learned = (torch.tensor(weights, dtype=torch.float64) * each(one_hot)).mean()
            return (learned + each(kept).mean()) / 2 if state.known.any() else learned

        def loss(w):
            total = part(w, step.batch, step.key, weight[: len(step.batch)])
            if step.memory:
                total = total + part(w, step.memory, None, weight[len(step.batch) :])
            return total

        return gradient(loss, state.w)

    def probabilities(self, client, position, rows, scope, task):
        return FedAvg.probabilities(self, client, position, rows, scope, task)


class _Statistics(FedAvg):
    """Clients count classes and add up features, by the received model, once a round."""

    def __init__(self, scenario, initial):
        self.known = {}  # by class: samples, the sum of features, the sum of squares
        super().__init__(scenario, initial)

    def begin_round(self, client, state, work):
        super().begin_round(client, state, work)
        state.counted = {}
        with torch.no_grad():
            for row in work.samples:
                z = self.network.features(self.server, self.scenario.x[[row]])[1][0]
                add_to(state.counted, int(self.scenario.y[row]), (1, z, z**2))

    def aggregate(self, arrived):
        super().aggregate(arrived)
        self.latest = {}
        for client, _, _ in arrived:
            for label, sums in self.states[client.column].counted.items():
                add_to(self.latest, label, sums)


def add_to(table, label, sums):
    before = table.get(label, (0, 0, 0))
    table[label] = tuple(a + b for a, b in zip(before, sums, strict=True))


class FedProto(_Statistics):
    """Features are drawn to the mean of their class in the round before."""

    def aggregate(self, arrived):
        super().aggregate(arrived)
        self.known = self.latest

    def direction(self, client, state, work, step):
        x, y = self.scenario.x[step.batch], self.scenario.y[step.batch]
        scope = client.trained_among(work.position, step.batch)
        ld = self.options("fedproto").ld

        def loss(w):
            features = self.network.features(w, x, step.key)[1]
            away = 0
            for z, label in zip(features, y.tolist(), strict=True):
                if label in self.known:
                    n, s, _ = self.known[label]
                    away = away + ((z - s / n) ** 2).mean()
            ce = cross_entropy(self.network.logits(w, x, step.key), y, scope)
            return ce + ld * away / len(y)

        return gradient(loss, state.w)


class CCVR(_Statistics):
    """The head is trained on features drawn from a Gaussian of each class."""

    def aggregate(self, arrived):
        super().aggregate(arrived)
        self.known = self.known | self.latest

    def model(self, client):
        w = super().model(client)
        if not self.known:
            return w
        options, (classes, width) = self.options("ccvr"), w["head.weight"].shape
        shape = (classes, options.samples, width)
        radius = (-2 * (1 - hashed(0, *shape)).log()).sqrt()
        normal = radius * (2 * math.pi * hashed(1, *shape)).cos()
        features, labels = [], []
        for label, (n, s, q) in sorted(self.known.items()):
            variance = q / n - (s / n) ** 2
            deviation = torch.where(variance > 1e-6 * q / n, variance, 0).sqrt()
            features += [s / n + deviation * z for z in normal[label]]
            labels += [label] * options.samples
        x, y = torch.stack(features), torch.tensor(labels)
        scope = self.scenario.mask(self.known).expand(len(y), -1)
        head = {name: w[name] for name in ("head.weight", "head.bias")}
        speed = dict.fromkeys(head, 0)
        for _ in range(options.steps):
            with torch.enable_grad():
                g, _ = gradient(lambda h: cross_entropy(F.linear(x, *h.values()), y, scope), head)
            speed = {name: 0.9 * speed[name] + g[name] for name in head}
            head = {name: t - 0.1 * speed[name] for name, t in head.items()}
        return w | head
