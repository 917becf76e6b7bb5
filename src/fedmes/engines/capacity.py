"""An estimate of how many clients can be trained at a time in the available memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedmes.common import limits
from fedmes.engines import wire
from fedmes.engines.client_data import ClientData, Federation, Samples
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.models.functional import Net
from fedmes.scenario.plan import Plan
from fedmes.tensors import cast, map_entries

HEADROOM = 0.7  # the part of free memory that is planned with


def replicas_that_fit(method: Method, federations: Sequence[Federation], samples: Samples) -> int:
    """Clients (of all seeds) that fit on the device at once: all of them, or the largest power of
    two that does."""
    weights, state = _client_bytes(method, federations[0], samples)
    plans = all_plans(federations)
    replicas = len(plans)
    width = max(plan.batch_width for plan in plans) + max(plan.memory_width for plan in plans)
    # Kept for every client: its state, and a copy while it is merged. On a slot: the state before
    # and after a step, two gradients and what the optimizer makes of them, and what the backward
    # pass needs, with as much again in passing.
    kept = 2 * state + weights
    slot = 2 * state + 5 * weights + 2 * width * activation_bytes(method.net, samples)
    slot += _sample_gradients(method, plans, weights)
    room = HEADROOM * free_bytes(samples.device) - replicas * kept
    fit = max(1, int(room // slot))
    if fit >= replicas:
        return replicas
    return 2 ** int(math.log2(fit))


def all_plans(federations: Sequence[Federation]) -> list[Plan]:
    """The plans of all clients of all seeds."""
    return [plan for f in federations for plan in f.plans]


def check(method: Method, federations: Sequence[Federation], samples: Samples) -> None:
    """Refuse runs that cannot even be planned, and clients' states that do not fit."""
    plans = all_plans(federations)
    # numbers of samples, in a round's batches and its memory's
    numbers = sum(plan.work.epochs * plan.longest for plan in plans)
    limits.check_memory(4 * 8 * numbers, f"a round of {plans[0].work.epochs:,} epochs")
    weights, state = _client_bytes(method, federations[0], samples)
    needed = len(plans) * state
    free = free_bytes(samples.device)
    if needed > free:
        raise UserError(
            f"the states of {len(plans)} clients take {needed / 1e9:,.1f} GB of memory; "
            f"{free / 1e9:,.1f} GB are free"
        )
    single = _sample_gradients(method, plans, weights)
    if needed + single > free:
        raise UserError(
            f"privacy.sample_clip: the gradients of a batch's samples take {single / 1e9:,.1f} GB "
            f"of memory; {max(0, free - needed) / 1e9:,.1f} GB are free; take a smaller batch"
        )


def _sample_gradients(method: Method, plans: Sequence[Plan], weights: int) -> int:
    """Of DP-SGD: a gradient for each sample of a batch, before and after it is clipped. Those of
    the memory's batch come when the others are gone."""
    if method.config.privacy.sample_clip is None:
        return 0
    return 2 * weights * max(max(plan.batch_width, plan.memory_width) for plan in plans)


def _client_bytes(method: Method, federation: Federation, samples: Samples) -> tuple[int, int]:
    """The size of a client's weights, and of all its state."""
    initial = cast(federation.initial, samples.device, samples.dtype)
    state = method.init(initial, ClientData(0, federation, samples, method.config).ctx())
    return int(wire.size(initial)), int(wire.size(state))


def activation_bytes(net: Net, samples: Samples) -> float:
    """What one sample leaves behind for the backward pass."""
    params = cast(net.initial, samples.device, samples.dtype)
    params = map_entries(lambda p: p.detach().clone().requires_grad_(), params)
    # weights are there once, and what is frozen once for all clients
    module = net.parts
    weights = {_place(t) for t in (*params.values(), *module.parameters(), *module.buffers())}
    saved: dict[int, int] = {}  # several layers may need the same numbers

    def note(tensor: Tensor) -> Tensor:
        saved[_place(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    rows = torch.zeros(2, dtype=torch.int64, device=samples.device)
    x = samples.take(rows, samples.scale(None))
    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        _kept = net.logits(params, x)  # while it lives, no place is used twice
    return sum(size for place, size in saved.items() if place not in weights) / 2


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return limits.free_memory()
