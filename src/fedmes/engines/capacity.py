"""An estimate of how many clients can be trained at a time in the available memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, UntypedStorage
from torch.autograd.graph import saved_tensors_hooks

from fedmes.common import limits
from fedmes.engines import wire
from fedmes.engines.client_data import ClientData, Federation, Samples
from fedmes.engines.peers import ALONE, Share
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.models.functional import Net
from fedmes.scenario.plans import Bounds
from fedmes.tensors import cast, map_entries

HEADROOM = 0.7  # the part of free memory that is planned with
ENOUGH = 96  # clients in a wave: more at once take more memory and save next to nothing
# How many clients stay on the device if they fit, and how much memory more of them may take there:
# coming and going costs time.
STAY = 256
LITTLE = 8e9
# Bytes of a layer's output that are made at once outside of training. A frozen body has fifty
# layers, each of which has to be launched, and its training takes more memory anyway.
LAYER = 200e6
LAYER_OF_A_BODY = 1e9
SOLVED = 4e9  # of what methods work with to make something of their sums
# Of all tasks and rounds, some 2,000 steps of all slots. Of 30 slots of `cnn6`, a compiled one
# takes 7 ms less on an H200, and to compile it 50 s more than to record it.
EPOCHS_WORTH_COMPILING = 200


def replicas_that_fit(method: Method, federations: Sequence[Federation], samples: Samples) -> int:
    """Clients (of all seeds) that should be on the device at once: those of the largest round, or
    the largest power of two that fits; of very many, a part of them."""
    weights, state = _client_bytes(method, federations[0], samples)
    replicas = len(federations) * wanted_together(federations)
    bounds = Bounds.over(f.plans for f in federations)
    # For every client: at most its state, and what is made of it when it is merged or averaged. On
    # a slot: the state, that of a client which waits for another slot, two gradients and what the
    # optimizer makes of them, and what the backward pass needs, with as much again in passing.
    kept = state + weights
    width = bounds.batch + bounds.memory
    slot = 2 * state + 5 * weights + 2 * width * activation_bytes(method.net, samples)
    slot += _sample_gradients(method, bounds, weights)
    fit = int(HEADROOM * free_bytes(samples.device) // (kept + slot))
    if fit >= replicas and (replicas <= STAY or replicas * (kept + slot) <= LITTLE):
        return replicas
    return min(replicas, ENOUGH, 2 ** int(math.log2(max(1, fit))))


def wanted_together(federations: Sequence[Federation], share: Share = ALONE.share) -> int:
    """How many clients of each seed should be on the device: those of the largest round, or all of
    them, where no more than half would come and go. `share`: the clients that the device has."""
    mine = share.clients(len(federations[0].plans))
    most = 1
    for federation in federations:
        takes_part = federation.stream.takes_part[:, slice(share.rank, None, share.of)]
        most = max(most, int(takes_part.sum(axis=1).max(initial=0)))
    return len(mine) if len(mine) <= 2 * most else most


def worth_stacking(net: Net, model: str, device: str) -> bool:
    """Are clients with a network of this name trained faster together than one after the other?
    Measured: on a CPU, not with convolutions mapped over clients."""
    vectors = net.takes_features and net.samples.ndim == 2
    small = vectors or model in ("linear", "mlp", "text")
    return (device == "cuda" or (device == "cpu" and small)) and net.stackable()


def worth_compiling(net: Net, device: str, epochs: int) -> bool:
    """Does a compiled step save the time that compiling it takes, in a run of so many epochs? A
    rule and not a timing, so that a run repeats."""
    # All clients' samples pass what is frozen together, in kernels that are large already: to
    # compile a body of 50 layers takes minutes and saves less.
    return device == "cuda" and not net.frozen and epochs >= EPOCHS_WORTH_COMPILING


def check(method: Method, federations: Sequence[Federation], samples: Samples) -> None:
    """Refuse runs that cannot even be planned, and clients' states that do not fit."""
    together = len(federations) * wanted_together(federations)
    # numbers of samples, in a round's batches and its memory's
    bounds = Bounds.over(f.plans for f in federations)
    epochs = federations[0].plans[0].work.epochs
    longest = epochs * bounds.samples
    limits.check_memory(4 * 8 * together * longest, f"a round of {epochs:,} epochs")
    if method.config.engine.name == "stacked":
        together = len(federations)  # the others wait
    else:
        together = sum(len(f.stream.participants) for f in federations)
    weights, state = _client_bytes(method, federations[0], samples)
    needed = together * state
    free = free_bytes(samples.device)
    if needed > free:
        raise UserError(
            f"the states of {together} clients take {needed / 1e9:,.1f} GB of memory; "
            f"{free / 1e9:,.1f} GB are free"
        )
    single = _sample_gradients(method, bounds, weights)
    if needed + single > free:
        raise UserError(
            f"privacy.sample_clip: the gradients of a batch's samples take {single / 1e9:,.1f} GB "
            f"of memory; {max(0, free - needed) / 1e9:,.1f} GB are free; take a smaller batch"
        )


def _sample_gradients(method: Method, bounds: Bounds, weights: int) -> int:
    """Of DP-SGD: a gradient for each sample of a batch, before and after it is clipped. Those of
    the memory's batch come when the others are gone."""
    if method.config.privacy.sample_clip is None:
        return 0
    return 2 * weights * max(bounds.batch, bounds.memory)


def _client_bytes(method: Method, federation: Federation, samples: Samples) -> tuple[int, int]:
    """The size of a client's weights, and of all its state."""
    initial = cast(federation.initial, samples.device, samples.dtype)
    state = method.init(initial, ClientData(0, federation, samples, method.config).ctx())
    return int(wire.size(initial)), int(wire.size(state))


def activation_bytes(net: Net, samples: Samples) -> float:
    """What one sample leaves behind for the backward pass."""
    return sum(_activations(net, samples))


def clients_side_by_side(method: Method, samples: Samples, each: int) -> int:
    """Clients in one forward pass with so many samples of each. With more, a GPU is no busier."""
    largest = max([1, *_activations(method.net, samples)])
    most = LAYER_OF_A_BODY if method.net.frozen else LAYER
    return max(1, int(most // (each * largest)))


def clients_worked_on(method: Method) -> int:
    """Clients whose sums the method works with at the same time."""
    return max(1, int(SOLVED // max(1, method.workspace)))


def working_memory(method: Method, seeds: int, seats: int) -> int:
    """Bytes that it takes to work with the sums of so many clients at the same time."""
    together = max(seeds, min(clients_worked_on(method), seeds * seats))
    return together * method.workspace


def _activations(net: Net, samples: Samples) -> list[int]:
    """The bytes of each layer that one sample leaves behind: what a further one adds, because a
    layer also keeps its weights, and in bf16 a copy of them."""
    sizes = (_saved(net, samples, count) for count in (2, 3))
    return [more - fewer for fewer, more in zip(*sizes, strict=False)]


def _saved(net: Net, samples: Samples, count: int) -> list[int]:
    """The sizes of what so many samples leave behind, weights included."""
    params = cast(net.initial, samples.device, samples.dtype)
    params = map_entries(lambda p: p.detach().clone().requires_grad_(), params)
    # Several layers may need the same numbers. While all of them live, no place is used twice.
    saved: dict[int, UntypedStorage] = {}

    def note(tensor: Tensor) -> None:
        # nothing for the backward pass, which never comes: it would hold itself for good
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage

    rows = torch.zeros(count, dtype=torch.int64, device=samples.device)
    x = samples.take(rows, samples.scale(None))
    with torch.enable_grad(), saved_tensors_hooks(note, lambda nothing: nothing):
        net.logits(params, x)
    return [storage.nbytes() for storage in saved.values()]


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return limits.free_memory()
