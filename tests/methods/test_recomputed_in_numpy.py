"""A run without any random choice after the split and the initial weights, recomputed with numpy
from the formulas."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import fedmes

LR, GAMMA, ROUNDS, EPOCHS, CLASSES = 0.3, 0.9, 2, 3, 6


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss_and_gradient(w, x, y, scope):
    """Mean cross-entropy over the classes in scope, and its gradient, of a linear model with
    weights [C, D + 1]."""
    x1 = np.hstack([x, np.ones((len(x), 1))])
    p = np.zeros((len(x), CLASSES))
    p[:, scope] = softmax((x1 @ w.T)[:, scope])
    loss = -np.log(p[np.arange(len(y)), y]).mean()
    p[np.arange(len(y)), y] -= 1
    return loss, p.T @ x1 / len(x)


def weights(path):
    tensors = load_file(path)
    assert set(tensors) == {"head.weight", "head.bias"}
    return np.hstack([tensors["head.weight"], tensors["head.bias"][:, None]]).astype(np.float64)


def federated(data, initial, method):
    """The final global and client weights."""
    x, y, client, task, split = (data[name] for name in ("x", "y", "client", "task", "split"))
    tasks = {"a": 3, "b": 2}
    glob, own = initial.copy(), {name: initial.copy() for name in tasks}
    rule2 = 0
    for t in range(3):
        here = [name for name in tasks if t < tasks[name]]
        for r in range(ROUNDS):
            sizes = []
            for name in here:
                mine = (client == name) & (split == 0)
                xd, yd = x[mine & (task == t)], y[mine & (task == t)]
                xm, ym = x[mine & (task < t)], y[mine & (task < t)]
                scope = np.unique(y[mine & (task <= t)])
                lam = 2 / (1 + np.exp(-1 / loss_and_gradient(glob, xd, yd, scope)[0]))
                w = glob.copy()
                for _ in range(EPOCHS):
                    g = loss_and_gradient(w, xd, yd, scope)[1]
                    if method == "fedmes":
                        gm = loss_and_gradient(w, xm, ym, scope)[1] if len(xm) else np.zeros_like(g)
                        inner = (g * gm).sum()
                        rule2 += inner < 0
                        g = g - inner / (gm * gm).sum() * gm if inner < 0 else g + lam * (w - glob)
                    w = w - LR * GAMMA**r * g
                own[name] = w
                sizes.append(len(xd))
            share = (
                np.array(sizes) / sum(sizes)
                if method == "fedavg"
                else np.full(len(here), 1 / len(here))
            )
            glob = sum(s * own[name] for s, name in zip(share, here, strict=True))
    return glob, own, rule2


@pytest.mark.parametrize("method", ["fedmes", "fedavg"])
def test_final_weights_follow_from_the_formulas(own_npz, tmp_path, method):
    out = tmp_path / "out"
    fedmes.run(
        data=str(own_npz), method=method, model="linear", rounds=ROUNDS, epochs=EPOCHS, batch=1000, memory=3000,
        out=out, optim={"name": "sgd", "lr": LR, "gamma": GAMMA},
    )  # fmt: skip
    initial = weights(out / "seed0/initial.safetensors")
    glob, own, rule2 = federated(np.load(own_npz), initial, method)
    assert np.abs(weights(out / "seed0/global.safetensors") - glob).max() < 1e-5
    for k, name in enumerate("ab"):
        # FedAvg predicts with the global model, so that is what its client directories hold
        expected = own[name] if method == "fedmes" else glob
        assert np.abs(weights(out / f"seed0/client{k}/model.safetensors") - expected).max() < 1e-5
    assert np.abs(glob - initial).max() > 0.1
    assert (rule2 > 0) == (method == "fedmes")  # both rules were exercised
