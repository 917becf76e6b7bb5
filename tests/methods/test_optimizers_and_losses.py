"""Optimizers and cross-entropy against torch's own, and what padding changes: nothing."""

import pytest
import torch
from torch.func import grad_and_value, vmap

from fedmes.methods.losses import cross_entropy, cross_entropy_sum, scoped
from fedmes.methods.optimizers import SGD, Adam
from helpers.small_vectors import close, doubles

# --- optimizers against torch ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "torchs"), [(Adam, torch.optim.Adam), (SGD, torch.optim.SGD)], ids=["adam", "sgd"]
)
def test_optimizer_matches_torch(own, torchs):
    """Five steps with given gradients, the rate changing on the way, end where torch's optimizer
    ends."""
    generator = torch.Generator().manual_seed(3)

    def draw():
        return {
            "a": torch.randn(4, 3, generator=generator, dtype=torch.float64),
            "b": torch.randn(3, generator=generator, dtype=torch.float64) * 1e-4,
        }

    params = draw()
    theirs = {name: p.clone().requires_grad_() for name, p in params.items()}
    reference = torchs(theirs.values(), lr=0.1)
    optimizer = own()
    state = optimizer.fresh(params)
    for step in range(5):
        lr = 0.1 * 0.9**step
        reference.param_groups[0]["lr"] = lr
        gradient = draw()
        for name, p in theirs.items():
            p.grad = gradient[name].clone()
        reference.step()
        params, state = optimizer.step(params, gradient, state, doubles(lr)[0])
        for name in params:
            close(params[name], theirs[name].detach())


# --- cross-entropy --------------------------------------------------------------------------------


def batch_of_logits(samples=6, classes=5):
    generator = torch.Generator().manual_seed(11)
    logits = 3 * torch.randn(samples, classes, generator=generator, dtype=torch.float64)
    return logits, torch.arange(samples) % classes, torch.ones(samples, dtype=torch.float64)


def test_cross_entropy_over_all_classes_is_torchs():
    """With every class in scope: torch's cross-entropy, as mean and as sum."""
    logits, y, mask = batch_of_logits()
    scope = torch.ones_like(logits, dtype=torch.bool)
    close(cross_entropy(logits, y, mask, scope), torch.nn.functional.cross_entropy(logits, y))
    total = torch.nn.functional.cross_entropy(logits, y, reduction="sum")
    close(cross_entropy_sum(logits, y, mask, scope), total)


def test_cross_entropy_in_scope_is_torchs_on_those_columns():
    """A narrower scope equals dropping the other columns, and those get no gradient."""
    logits, _, mask = batch_of_logits()
    columns = [0, 2, 3]
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    scope = torch.zeros_like(logits, dtype=torch.bool)
    scope[:, columns] = True
    labels = torch.tensor(columns)[y]
    gradient, loss = grad_and_value(cross_entropy)(logits, labels, mask, scope)
    close(loss, torch.nn.functional.cross_entropy(logits[:, columns], y))
    assert torch.equal(gradient[:, [1, 4]], torch.zeros(6, 2, dtype=torch.float64))
    assert (gradient[:, columns] != 0).all()


def linear_loss(weight, x, y, mask, scope):
    return cross_entropy(x @ weight, y, mask, scope)


def padded(x, y, mask, scope, extra):
    """The batch with padding behind it: large inputs, class 0, an empty scope."""
    return (
        torch.cat([x, torch.full((extra, x.shape[1]), 1e3, dtype=x.dtype)]),
        torch.cat([y, torch.zeros(extra, dtype=y.dtype)]),
        torch.cat([mask, torch.zeros(extra, dtype=mask.dtype)]),
        torch.cat([scope, torch.zeros(extra, scope.shape[1], dtype=torch.bool)]),
    )


def linear_batch(samples):
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(samples, 4, generator=generator, dtype=torch.float64)
    scope = torch.zeros(samples, 5, dtype=torch.bool)
    scope[:, :3] = True
    return weight, (x, torch.arange(samples) % 3, torch.ones(samples, dtype=torch.float64), scope)


@pytest.mark.parametrize("samples", [6, 1])
def test_padding_changes_neither_loss_nor_gradient(samples):
    """Samples with mask 0 count neither in the sum nor in the mean's divisor, nor in the
    gradient."""
    weight, batch = linear_batch(samples)
    gradient, loss = grad_and_value(linear_loss)(weight, *batch)
    gradient_padded, loss_padded = grad_and_value(linear_loss)(weight, *padded(*batch, extra=3))
    assert loss > 0 and gradient.abs().max() > 0
    close(loss_padded, loss, 1e-12)
    close(gradient_padded, gradient, 1e-12)


def test_nothing_but_padding_is_zero_and_not_nan():
    """A batch of padding alone and a batch of no samples: loss 0, gradient 0; the same when
    stacked."""
    weight, batch = linear_batch(0)
    for empty in (batch, padded(*batch, extra=2)):
        gradient, loss = grad_and_value(linear_loss)(weight, *empty)
        assert float(loss) == 0
        assert torch.equal(gradient, torch.zeros_like(weight))
    full = linear_batch(2)[1]
    stacked = [torch.stack(pair) for pair in zip(padded(*batch, extra=2), full, strict=True)]
    gradients, losses = vmap(grad_and_value(linear_loss), in_dims=(None, 0, 0, 0, 0))(
        weight, *stacked
    )
    assert torch.equal(gradients[0], torch.zeros_like(weight)) and float(losses[0]) == 0
    close(losses[1], linear_loss(weight, *full), 1e-12)
    close(gradients[1], grad_and_value(linear_loss)(weight, *full)[0], 1e-12)


def test_an_empty_scope_makes_no_nan():
    """Padding may have no class in scope at all: its probabilities and its loss are still
    numbers."""
    logits, y, mask = batch_of_logits()
    nothing = torch.zeros_like(logits, dtype=torch.bool)
    assert torch.isfinite(torch.softmax(scoped(logits, nothing), dim=-1)).all()
    assert torch.isfinite(cross_entropy(logits, y, mask, nothing))
