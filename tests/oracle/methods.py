"""The methods: what a client does with what it receives, what it sends, and what predicts."""

import math
from types import SimpleNamespace

import torch

from oracle.mathematics import (
    OPTIMIZERS,
    Network,
    cross_entropy,
    distillation,
    flat,
    gradient,
    log_softmax,
    mean,
    vote,
)


class FedAvg:
    """Each round: the received model, some epochs of it, the average by samples; which is what
    predicts."""

    weighted = True  # by samples, or everybody alike
    judged = "global"
    keeps = False  # a memory
    walks_all = False  # the tasks so far, in an epoch

    def __init__(self, scenario, initial):
        self.scenario, self.config = scenario, scenario.config
        self.network = Network(self.config)
        self.judged = self.config["eval"].get("model", self.judged)
        self.server = self.shared(initial)
        self.states = [SimpleNamespace(w=dict(initial)) for _ in scenario.clients]
        for state in self.states:
            self.join(state, initial)

    def options(self, section):
        return SimpleNamespace(**self.config[section])

    def join(self, state, initial):
        """What a client keeps besides its model."""

    def shared(self, w):
        """The part of a model that leaves a client."""
        return dict(w)

    # --- training ---------------------------------------------------------------------------------

    def train(self, client, work):
        """A client's part in a round; its mean loss."""
        state = self.states[client.column]
        if work.first:
            self.begin_task(client, state, work)
        self.begin_round(client, state, work)
        losses = [self.step(client, state, work, step) for step in work.steps]
        return sum(losses) / len(losses)

    def begin_task(self, client, state, work):
        pass

    def begin_round(self, client, state, work):
        state.w = state.w | self.server
        state.optimizer = OPTIMIZERS[self.config["optim"]["name"]]()

    def step(self, client, state, work, step):
        direction, loss = self.direction(client, state, work, step)
        state.w = state.optimizer.step(state.w, direction, work.rate)
        return loss

    def direction(self, client, state, work, step):
        return self.on_batch(client, state.w, work, step)

    def ce(self, client, w, position, rows, key=None):
        """The mean cross-entropy of rows of the data set."""
        logits = self.network.logits(w, self.scenario.x[rows], key)
        return cross_entropy(logits, self.scenario.y[rows], client.trained_among(position, rows))

    def on_batch(self, client, w, work, step):
        return gradient(lambda w: self.ce(client, w, work.position, step.batch, step.key), w)

    def on_memory(self, client, w, work, step):
        return gradient(lambda w: self.ce(client, w, work.position, step.memory), w)[0]

    def end_task(self, client, state, position):
        pass

    # --- the server -------------------------------------------------------------------------------

    def upload(self, client, work):
        return self.shared(self.states[client.column].w)

    def lost(self, client):
        """What the client has just sent does not count."""

    def aggregate(self, arrived):
        """`arrived`: of who has sent something, (client, upload, number of samples)."""
        weights = [samples if self.weighted else 1 for _, _, samples in arrived]
        self.server = mean([upload for _, upload, _ in arrived], weights)

    # --- prediction -------------------------------------------------------------------------------

    def model(self, client):
        """The weights that predict."""
        state = self.states[client.column]
        return state.w | self.server if self.judged == "global" else state.w

    def probabilities(self, client, position, rows, scope, task):
        """By kind of prediction, class probabilities [B, C] in the scope. `task`: that was told, or
        None."""
        return {
            "": log_softmax(
                self.network.logits(self.model(client), self.scenario.x[rows]), scope
            ).exp()
        }


class FedProx(FedAvg):
    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        mu = self.options("fedprox").mu
        return {name: g[name] + mu * (state.w[name] - self.server[name]) for name in g}, loss


class Ditto(FedAvg):
    """A personal model v beside the one that is averaged."""

    weighted = False
    judged = "personal"

    def join(self, state, initial):
        state.v = dict(initial)

    def begin_round(self, client, state, work):
        super().begin_round(client, state, work)
        state.personal = OPTIMIZERS[self.config["optim"]["name"]]()

    def step(self, client, state, work, step):
        lam = self.options("ditto").lam
        g, loss = self.on_batch(client, state.v, work, step)
        drawn = {name: g[name] + lam * (state.v[name] - self.server[name]) for name in g}
        state.v = state.personal.step(state.v, drawn, work.rate)
        super().step(client, state, work, step)
        return loss

    def model(self, client):
        return self.server if self.judged == "global" else self.states[client.column].v


class FedRep(FedAvg):
    """The body is averaged, the head stays; the head is trained in the first epochs, then the
    body."""

    weighted = False

    def shared(self, w):
        return {name: t for name, t in w.items() if not name.startswith("head.")}

    def begin_round(self, client, state, work):
        state.w = state.w | self.server
        state.optimizers = [OPTIMIZERS[self.config["optim"]["name"]]() for _ in range(2)]

    def step(self, client, state, work, step):
        epochs = self.config["epochs"]
        for_head, for_body = math.ceil(epochs / 2), max(1, epochs // 2)
        g, loss = self.on_batch(client, state.w, work, step)
        body = self.shared(state.w)
        head = {name: t for name, t in state.w.items() if name not in body}
        if step.epoch < for_head:
            state.w = state.w | state.optimizers[0].step(head, g, work.rate)
        if step.epoch >= epochs - for_body:
            state.w = state.w | state.optimizers[1].step(body, g, work.rate)
        return loss


class FedAGEM(FedAvg):
    """A gradient that points against the memory's loses its part along it."""

    keeps = True

    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        gm = self.on_memory(client, state.w, work, step)
        inner, square = float(flat(g) @ flat(gm)), float(flat(gm) @ flat(gm))
        if inner < 0 and square >= 1e-12:
            return self.against(g, gm, inner / square), loss
        return self.along(state, g), loss

    def against(self, g, gm, share):
        return {name: g[name] - share * gm[name] for name in g}

    def along(self, state, g):
        return g


class Voting(FedAvg):
    """The nearest samples of a memory vote beside the network."""

    keeps = True

    def probabilities(self, client, position, rows, scope, task):
        network, memory = self.opinions(client, position, rows, scope)
        theta = self.theta(client, position)
        return {"": self.mixed(network, memory, theta), "_nolip": network}

    def opinions(self, client, position, rows, scope):
        knn, w, x = self.options("knn"), self.model(client), self.scenario.x
        stored = client.memory[position][0 if knn.memory == "before" else 1]
        labels = self.scenario.y[stored].tolist()
        z, queries = self.network.embedding(w, x[stored]), self.network.embedding(w, x[rows])
        memory = [vote(query, z, labels, scope, knn.k, knn.kernel) for query in queries]
        return log_softmax(self.network.logits(w, x[rows]), scope).exp(), memory

    def mixed(self, network, memory, theta):
        pairs = zip(network, memory, strict=True)
        return torch.stack([h if b is None else theta * b + (1 - theta) * h for h, b in pairs])

    def theta(self, client, position):
        """As given; tuned: the best of 0, 0.1, ..., 1 on what was kept back, of equally good ones
        the most even."""
        if self.config["knn"]["theta"] != "tuned":
            return self.config["knn"]["theta"]
        rows = [row for p in client.learned(position) for row in client.kept_back(p)]
        network, memory = self.opinions(client, position, rows, client.seen(position))

        def merit(tenths):
            right = self.mixed(network, memory, tenths / 10).argmax(-1) == self.scenario.y[rows]
            return int(right.sum()), -abs(tenths - 5), -tenths

        return max(range(11), key=merit) / 10


class FedMeS(Voting, FedAGEM):
    """A-GEM's correction; where it has nothing to say, a pull towards the received model. The
    memory votes."""

    weighted = False
    judged = "personal"

    def begin_round(self, client, state, work):
        before = state.w
        super().begin_round(client, state, work)
        options = self.options("fedmes")
        if options.start == "continue":
            state.w = before
        rule = getattr(options, "lambda")
        if isinstance(rule, str):
            loss = max(float(self.ce(client, self.server, work.position, work.samples)), 1e-6)
            rule = (
                2 / (1 + math.exp(-1 / loss)) if rule == "paper" else 2 * math.tanh(1 / (2 * loss))
            )
        state.pull = rule

    def direction(self, client, state, work, step):
        if self.options("fedmes").correction != "replay":
            return super().direction(client, state, work, step)
        g, loss = self.on_batch(client, state.w, work, step)
        gm = self.on_memory(client, state.w, work, step)
        return {name: t + gm[name] for name, t in self.along(state, g).items()}, loss

    def against(self, g, gm, share):
        margin = 0.5 if self.options("fedmes").correction == "agem_margin" else 0
        return super().against(g, gm, share - margin)

    def along(self, state, g):
        return {name: g[name] + state.pull * (state.w[name] - self.server[name]) for name in g}


class KNNPer(Voting):
    pass


class FLwF(FedAvg):
    """The client's own model at the end of its task before teaches the classes known then."""

    def join(self, state, initial):
        state.past, state.known = (
            dict(initial),
            torch.zeros(self.scenario.classes, dtype=torch.bool),
        )

    def end_task(self, client, state, position):
        state.past, state.known = state.w, client.seen(position)

    def direction(self, client, state, work, step):
        x, y = self.scenario.x[step.batch], self.scenario.y[step.batch]
        scope = client.trained_among(work.position, step.batch)

        def loss(w):
            logits = self.network.logits(w, x, step.key)
            return self.loss(client, state, work, logits, x, cross_entropy(logits, y, scope))

        return gradient(loss, state.w)

    def loss(self, client, state, work, logits, x, ce):
        options = self.options("flwf")
        return ce + options.alpha * distillation(
            self.network.logits(state.past, x), logits, state.known, options.temp
        )


class FLwF2T(FLwF):
    """And the received model teaches all classes seen."""

    def loss(self, client, state, work, logits, x, ce):
        options = self.options("flwf2t")
        past, received = (self.network.logits(w, x) for w in (state.past, self.server))
        own = distillation(past, logits, state.known, options.temp)
        others = distillation(received, logits, client.seen(work.position), options.temp)
        return options.alpha * ce + options.beta * own + (1 - options.alpha - options.beta) * others


class Local(FedAvg):
    """Nothing is sent."""

    judged = "personal"

    def shared(self, w):
        return {}


class LocalER(Local):
    keeps = True

    def direction(self, client, state, work, step):
        g, loss = self.on_batch(client, state.w, work, step)
        gm = self.on_memory(client, state.w, work, step)
        return {name: g[name] + gm[name] for name in g}, loss


class Joint(Local):
    walks_all = True
