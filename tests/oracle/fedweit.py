"""FedWeIT: theta = B s(m) + A + sum_j alpha_j KB_j, layer by layer; B is shared, the rest is a
task's own."""

import math
from types import SimpleNamespace

import torch

from oracle.mathematics import OPTIMIZERS, cross_entropy, gradient, log_softmax
from oracle.methods import FedAvg
from oracle.scenario import hashed


class FedWeIT(FedAvg):
    judged = "personal"

    def __init__(self, scenario, initial):
        self.initial = initial
        self.layers = [
            name for name, t in initial.items() if t.ndim > 1 and not name.startswith("head.")
        ]
        # each client's adaptive parts, of task after task
        self.delivered = [[] for _ in scenario.clients]
        super().__init__(scenario, initial)

    @property
    def weit(self):
        return self.options("fedweit")

    def shared(self, w):
        return {name: w[name] for name in self.layers}

    def join(self, state, initial):
        state.base = self.shared(initial)
        state.tasks = {}  # by position: mask, part, what others gave, and the plain parameters
        state.done = []

    # --- training ---------------------------------------------------------------------------------

    def begin_task(self, client, state, work):
        start = work.steps[0].key
        task = SimpleNamespace(m={}, A={}, alpha={}, own={})
        for i, name in enumerate(self.layers):
            task.m[name] = small(start + (2 * i << 32), len(self.initial[name]))
            task.alpha[name] = small(start + (2 * i + 1 << 32), len(self.knowledge(name)))
            if not state.done:  # in its first task a client is on its own
                task.alpha[name] = torch.zeros_like(task.alpha[name])
            task.A[name] = self.initial[name] / 3
        task.own = {name: t for name, t in self.initial.items() if name not in self.layers}
        state.tasks[work.position] = task
        # What earlier tasks must not drift from: their weights under the base as it is before the
        # server's arrives.
        state.anchors = {p: self.composed(state.base, state.tasks[p]) for p in state.done}

    def knowledge(self, name):
        """What clients have delivered: of their previous task or of all, in the order (task,
        client)."""
        nothing = torch.zeros_like(self.initial[name])
        if self.weit.kb == "previous":
            return [parts[-1][name] if parts else nothing for parts in self.delivered]
        return [
            parts[t][name] if t < len(parts) else nothing
            for t in range(self.config["tasks"])
            for parts in self.delivered
        ]

    def composed(self, base, task):
        return {
            name: base[name] * channels(torch.sigmoid(task.m[name]), base[name]) + task.A[name]
            for name in base
        }

    def begin_round(self, client, state, work):
        state.base = {name: taken_over(state.base[name], self.server[name]) for name in self.layers}
        state.optimizer = OPTIMIZERS[self.config["optim"]["name"]]()

    def step(self, client, state, work, step):
        """What is trained is one dictionary: the base, entries of this task and, retroactively, of
        earlier ones."""
        trained = put("B", state.base) | self.entries(
            state.tasks[work.position], work.position, "m A own"
        )
        if state.done:
            trained |= self.entries(state.tasks[work.position], work.position, "alpha")
        if self.weit.retroactive:
            for p in state.done:
                trained |= self.entries(state.tasks[p], p, "m A")
        parts = {}

        def loss(w):
            base, tasks = (
                pick(w, "B"),
                {p: self.overlaid(task, w, p) for p, task in state.tasks.items()},
            )
            theta = self.weights(base, tasks[work.position]) | tasks[work.position].own
            logits = self.network.logits(theta, self.scenario.x[step.batch], step.key)
            block = client.block(work.position).expand(len(step.batch), -1)
            parts["ce"] = cross_entropy(logits, self.scenario.y[step.batch], block)
            return parts["ce"] + self.penalty(base, tasks, work.position, state)

        g, _ = gradient(loss, trained)
        trained = state.optimizer.step(trained, g, work.rate)
        state.base = pick(trained, "B")
        state.tasks = {p: self.overlaid(task, trained, p) for p, task in state.tasks.items()}
        task = state.tasks[work.position]
        task.others = {name: self.from_others(task, name) for name in self.layers}
        return float(parts["ce"].detach())

    def entries(self, task, p, kinds):
        return {
            name: t
            for kind in kinds.split()
            for name, t in put(f"{p}.{kind}", getattr(task, kind)).items()
        }

    def overlaid(self, task, w, p):
        """The task with those of its entries that are trained."""
        new = SimpleNamespace(**vars(task))
        for kind in ("m", "A", "alpha", "own"):
            setattr(new, kind, getattr(task, kind) | pick(w, f"{p}.{kind}"))
        return new

    def weights(self, base, task):
        return {
            name: t + self.from_others(task, name) for name, t in self.composed(base, task).items()
        }

    def from_others(self, task, name):
        return sum(
            share * part for share, part in zip(task.alpha[name], self.knowledge(name), strict=True)
        )

    def penalty(self, base, tasks, position, state):
        weit, now = self.weit, tasks[position]
        total = 0
        for name in self.layers:
            total = (
                total
                + weit.wd * (l2(now.A[name]) + l2(now.m[name]))
                + weit.l1 * now.A[name].abs().sum()
            )
            if not state.done:
                total = total + weit.wd * l2(base[name])
        for p in state.done:
            for name, theta in self.composed(base, tasks[p]).items():
                total = (
                    total
                    + weit.l2 * l2(theta - state.anchors[p][name])
                    + weit.l1 * tasks[p].A[name].abs().sum()
                )
        return total

    def end_task(self, client, state, position):
        state.done.append(position)

    # --- the server -------------------------------------------------------------------------------

    def upload(self, client, work):
        """The base's channels that the mask weighs most; with a task's last round, its part without
        what is small."""
        state = self.states[client.column]
        task, sent = state.tasks[work.position], {}
        for name in self.layers:
            weight = task.m[name].abs()
            threshold = weight.sort().values[math.floor(self.weit.sparsity * len(weight))]
            sent[name] = (state.base[name], channels(weight > threshold, state.base[name]))
        return sent, {name: self.pruned(a) for name, a in task.A.items()} if work.last else None

    def pruned(self, part):
        return part * (part.abs() > self.weit.l1)

    def aggregate(self, arrived):
        for name in self.layers:
            sent = [upload[0][name] for _, upload, _ in arrived]
            count = sum(kept.double() for _, kept in sent)
            total = sum(base * kept for base, kept in sent)
            self.server[name] = total / count.clamp(min=1)  # what nobody sent is 0
        for client, (_, part), _ in arrived:
            if part is not None:
                self.delivered[client.column].append(part)

    # --- prediction -------------------------------------------------------------------------------

    def model(self, client):
        """The weights of each task, one below the other; NaN where nothing can depend on them."""
        state, every = self.states[client.column], []
        base = state.base
        if self.judged == "global":
            base = {name: taken_over(base[name], self.server[name]) for name in self.layers}
        for p in range(self.config["tasks"]):
            if p not in state.done:
                every.append(
                    {name: torch.full_like(t, math.nan) for name, t in self.initial.items()}
                )
                continue
            task = SimpleNamespace(**vars(state.tasks[p]))
            task.A = {name: self.pruned(a) for name, a in task.A.items()}
            theta = self.composed(base, task)
            own = {name: t.clone() for name, t in task.own.items()}
            own["head.weight"][~client.block(p)] = own["head.bias"][~client.block(p)] = math.nan
            every.append({name: theta[name] + task.others[name] for name in theta} | own)
        return {name: torch.stack([w[name] for w in every]) for name in self.initial}

    def probabilities(self, client, position, rows, scope, task):
        """Of the task that was told; otherwise of the one that is surest of a class of its own."""
        model = self.model(client)

        def of(p, among):
            return log_softmax(
                self.network.logits({n: t[p] for n, t in model.items()}, self.scenario.x[rows]),
                among,
            ).exp()

        if task is not None:
            return {"": of(task, scope)}
        every = torch.stack([of(p, client.own(p)) for p in client.learned(position)])
        surest = every.amax(-1).argmax(0)
        return {"": every[surest, torch.arange(len(rows))]}


def channels(values, weight):
    """One value for each output channel, beside a weight."""
    return values.reshape(-1, *[1] * (weight.ndim - 1))


def taken_over(own, received):
    """What nobody sent, which is 0, stays the client's own."""
    return torch.where(received == 0, own, received)


def l2(t):
    return (t * t).sum() / 2


def small(key, length):
    """Random numbers of variance 1 / length."""
    return (2 * hashed(key, length) - 1) * math.sqrt(3 / length)


def put(part, entries):
    return {f"{part}.{name}": t for name, t in entries.items()}


def pick(entries, part):
    return {
        name.removeprefix(f"{part}."): t
        for name, t in entries.items()
        if name.startswith(f"{part}.")
    }
