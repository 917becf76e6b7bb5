"""The method contract: one client's mathematics as pure tensor functions.

A method is written once, for one client, and never knows where it runs. Engines call its functions
for one client after the other, for all clients at once (`torch.func.vmap`), or on a site of its
own. Hence the rules of the house:

* no Python branch on a tensor's value (`torch.where`, masks), nothing in place, no randomness of its own;
* what a client keeps is a flat dictionary of tensors; a client function returns only the entries it changes;
* state entries are named `part.name`, for example `w.head.weight` for a model's weights or `opt.c1` for an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedmes.config.loading import method_options
from fedmes.config.method_options import MethodOptions
from fedmes.models.functional import Net
from fedmes.tensors import Tensors

if TYPE_CHECKING:
    from fedmes.config.options import Config


class Batch(NamedTuple):
    """Samples of one client; also the memory, whole or a part of it."""

    x: Tensor  # [B, ...] normalised
    y: Tensor  # [B] class ids
    mask: Tensor  # [B] 1, or 0 for padding
    scope: Tensor  # [B, C] the classes in the softmax of each sample
    task: Tensor  # [B] the position of the task each sample belongs to


class ClientContext(NamedTuple):
    """Where a client stands, as 0-dim tensors."""

    client: Tensor
    position: Tensor  # which of its tasks, from 0
    first: Tensor  # is this the first (last) round at this position that the client takes part in?
    last: Tensor
    lr: Tensor
    samples: Tensor  # how many training samples this round walks
    blocks: Tensor  # [T, C] the classes of each task's block
    # [T, C] and those of them that the client has; blocks may share classes, so `seen` does not
    # tell
    classes: Tensor
    seen: Tensor  # [C] the classes met so far, this task's included
    epoch: Tensor  # only moving within `step`
    # a random number of (seed, client, round); in `step`, for dropout, another one each time
    key: Tensor

    @classmethod
    def outside_rounds(
        cls, blocks: Tensor, classes: Tensor, seen: Tensor, dtype: torch.dtype, position: int = 0
    ) -> ClientContext:
        """Of a client that is in no round, as for prediction or for the shapes of its state."""
        zero = torch.tensor(0)
        no = torch.tensor(False)
        none = torch.zeros((), dtype=dtype)
        at = torch.tensor(position)
        return cls(zero, at, no, no, none, none, blocks, classes, seen, zero, zero)


Me = ClientContext  # its former name, which custom methods may still import


class Method:
    """The functions an engine calls, in this order; `broadcast` is the server's state as every
    client receives it.

    Defaults do nothing. `fedmes.methods.fedavg.FedAvg` is the plainest whole method and what others
    build on.
    """

    # the samples an epoch walks: the current task's, or those of all tasks "seen"
    epoch_over: ClassVar[str] = "task"
    store: str = "none"  # what a client keeps of its samples: nothing, a "memory", or "all" of them
    # which samples a memory keeps, unless memory.policy says otherwise
    policy: ClassVar[str] = "fifo"
    # options that were left open, as the method settles them
    resolved_options: Mapping[str, object] = {}
    # the options that only this method has; for a class Replay, in the section `replay`
    Options: ClassVar[type[MethodOptions] | None] = None
    options: Any = None  # their values
    unused: ClassVar[tuple[str, ...]] = ()  # options for all methods that this one does not look at
    # (state, broadcast, batch) -> sums over the round's samples, added up in chunks before
    # `begin_round`; None: no such pass
    measure: Callable[[Tensors, Tensors, Batch], Tensors] | None = None
    # (predictor, batch, scope[C]) -> sums over the held-back samples of all tasks so far, added up
    # before `apply_tuning`; None: nothing is held back from training
    tune: Callable[[Tensors, Batch, Tensor], Tensors] | None = None

    def __init__(self, net: Net, config: Config) -> None:
        self.net = net
        self.config = config
        if self.Options is not None:
            self.options = method_options(config, self.section(), self.Options)

    @classmethod
    def section(cls) -> str:
        """The section of the options: the name, in lower case, of the class that declares them."""
        owner = next(kind for kind in cls.__mro__ if "Options" in vars(kind))
        return owner.__name__.lower()

    # on the server
    def server(self, params: Tensors) -> Tensors:
        """The server's state before the first round."""
        raise NotImplementedError

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        """The server's new state. Uploads are stacked by client, [n, ...]; present [n] says who
        took part and sent what can be used, and nothing of the others counts."""
        raise NotImplementedError

    def sent_down(self, server: Tensors) -> tuple[Tensors, Tensors]:
        """What a client receives in every round, and what besides in the first round of each of its
        tasks. Entries are chosen here, and masks made value by value: several servers' states may
        come stacked."""
        return server, {}

    # on a client, in training
    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """A client's state before its first round."""
        raise NotImplementedError

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """Before the broadcast is taken over in the first round of a task."""
        return {}

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        raise NotImplementedError

    def step(
        self, state: Tensors, broadcast: Tensors, batch: Batch, mem: Batch, ctx: ClientContext
    ) -> Tensors:
        """One mini-batch; `mem` is a batch of the memory, empty while there is none."""
        raise NotImplementedError

    def end_round(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """After a round's last step, while `broadcast` is still what the round began with."""
        return {}

    def upload(self, state: Tensors, ctx: ClientContext) -> Tensors:
        """What leaves the client, and nothing else does. An entry `name#mask` marks the part of
        `name` that is sent (engines/wire.py)."""
        raise NotImplementedError

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        """Numbers about the round just trained: columns of `rounds.csv`, under names that its other
        columns do not have."""
        return {}

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        """After the last round of a task."""
        return {}

    # on a client, in use
    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        """What predicts: model entries `w.*`, and whatever else `predict` needs."""
        raise NotImplementedError

    def embed_memory(self, params: Tensors, store: Batch) -> Tensors:
        """The entries `store.*` of `build_predictor`: what the stored samples are to the weights
        that predict. A client directory keeps the samples and not these, which are made again when
        it is opened."""
        return {}

    def apply_tuning(self, predictor: Tensors, sums: Tensors) -> Tensors:
        """The entries of `build_predictor` that the sums of `tune` decide."""
        return {}

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        """Class probabilities [B, C], zero outside the scope [C], under "acc" and, where the method
        has a part beside the network, under "nolip" without it. `task` is the position the samples
        belong to, -1 where nobody tells."""
        raise NotImplementedError

    def explain(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> Tensors:
        """What `predict` says and what it rests on, in one pass: where a memory votes, also its
        probabilities "memory" [B, C], whether it "voted" [B], and "distance" and "index" of the
        nearest stored samples [B, K]. Who overrides `predict` there overrides this too. Outside of
        a run, only position, blocks, classes and seen of `ctx` are known."""
        return self.predict(predictor, x, scope, task, ctx)
