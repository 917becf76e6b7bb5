"""Networks, losses, optimizers and the memory's vote, as the textbooks have them."""

import math

import torch
from torch.nn import functional as F

from oracle.scenario import hashed

# --- networks: functions of a dictionary of weights -----------------------------------------------


class Network:
    def __init__(self, config):
        self.name, self.rate = config["model"]["name"], config["model"]["dropout"]
        self.sought = config["knn"]["features"]

    def logits(self, w, x, key=None):
        """Class scores; with a key, dropout is on."""
        return F.linear(self.features(w, x, key)[0], w["head.weight"], w["head.bias"])

    def embedding(self, w, x):
        """Where neighbours are sought."""
        return self.features(w, x)[1]

    def features(self, w, x, key=None):
        """The head's input and the embedding."""

        def layer(name, h):
            return F.relu(F.linear(h, w[f"{name}.weight"], w[f"{name}.bias"]))

        def maps(name, h):
            return F.max_pool2d(
                F.relu(F.conv2d(h, w[f"{name}.weight"], w[f"{name}.bias"], padding=2)), 2
            )

        if self.name == "linear":
            h = x.flatten(1)
        elif self.name == "mlp":
            h = self.dropped(layer("body.0", x.flatten(1)), key, 1)
            h = self.dropped(layer("body.3", h), key, 2)
        else:
            assert self.name == "cnn2"
            h = self.dropped(maps("conv.0", x), key, 1)
            convolved = self.dropped(maps("conv.4", h), key, 2).flatten(1)
            h = self.dropped(layer("fc.0", convolved), key, 3)
            return h, convolved if self.sought == "conv" else h
        return h, h

    def dropped(self, h, key, place):
        if key is None or not self.rate:
            return h
        return h * (hashed(key + (place << 32), *h.shape) >= self.rate) / (1 - self.rate)


# --- losses ---------------------------------------------------------------------------------------


def log_softmax(logits, scope):
    """Over the classes in scope; minus infinity elsewhere."""
    return torch.log_softmax(logits.masked_fill(~scope, -math.inf), dim=-1)


def cross_entropy(logits, y, scope):
    """The mean over a batch; 0 for an empty one."""
    if not len(y):
        return logits.sum()
    return -log_softmax(logits, scope)[torch.arange(len(y)), y].mean()


def distillation(teacher, student, scope, temperature):
    """Cross-entropy against the teacher's softmax, both at a temperature and over the classes in
    scope."""
    if not scope.any():
        return student.sum() * 0
    teacher, student = teacher[:, scope] / temperature, student[:, scope] / temperature
    return -(teacher.softmax(-1) * student.log_softmax(-1)).sum(-1).mean()


# --- steps ----------------------------------------------------------------------------------------


def gradient(loss, w):
    """Of a loss of weights, at these weights, and the loss."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in w.items()}
    value = loss(leaves)
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(t) if g is None else g for (name, t), g in pairs}, float(
        value.detach()
    )


def flat(w):
    return torch.cat([t.flatten() for t in w.values()])


def mean(dictionaries, weights):
    """The weighted mean of dictionaries of weights."""
    total = sum(weights)
    return {
        name: sum(share * w[name] for share, w in zip(weights, dictionaries, strict=True)) / total
        for name in dictionaries[0]
    }


class SGD:
    def step(self, w, direction, rate):
        return {name: t - rate * direction[name] for name, t in w.items()}


class Adam:
    """Kingma and Ba, Algorithm 1."""

    def __init__(self):
        self.t, self.m, self.v = 0, {}, {}

    def step(self, w, direction, rate):
        self.t += 1
        new = {}
        for name, t in w.items():
            g = direction[name]
            self.m[name] = 0.9 * self.m.get(name, 0) + 0.1 * g
            self.v[name] = 0.999 * self.v.get(name, 0) + 0.001 * g * g
            first, second = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.999**self.t)
            new[name] = t - rate * first / (second.sqrt() + 1e-8)
        return new


OPTIMIZERS = {"sgd": SGD, "adam": Adam}


# --- the memory's vote ----------------------------------------------------------------------------


def vote(query, store, labels, scope, k, kernel):
    """The class shares of one sample's k nearest, those out of scope left out; None: nobody is
    left."""
    distances = [float(((z - query) ** 2).sum().sqrt()) for z in store]
    nearest = sorted(range(len(store)), key=lambda i: (distances[i], i))[:k]
    exponent = {
        "exp_d": lambda d: -d,
        "exp_d2": lambda d: -d * d,
        "knnper": lambda d: -d * d / len(query),
    }[kernel]
    heard = [(exponent(distances[i]), labels[i]) for i in nearest if scope[labels[i]]]
    if not heard:
        return None
    highest = max(e for e, _ in heard)
    share = torch.zeros(len(scope), dtype=torch.float64)
    for e, label in heard:
        share[label] += math.exp(e - highest)
    return share / share.sum()
