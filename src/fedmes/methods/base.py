"""The method contract: one client's mathematics as pure tensor functions.

A method is written once, for one client, and never knows where it runs. Engines call its functions
for one client after the other, for all clients at once (`torch.func.vmap`), or on a separate site.

Rules for methods:

* no Python branch on a tensor's value (use `torch.where` and masks), nothing in place, no random
  numbers except from `ctx.key`;
* a client's state is a flat dictionary of tensors; a function returns only the entries it changes;
* state entries are named `part.name`, for example `w.head.weight` for a model's weights or `opt.c1`
  for an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedmes.config.loading import method_options
from fedmes.config.method_options import MethodOptions
from fedmes.errors import UserError
from fedmes.models.functional import Net
from fedmes.tensors import Tensors

if TYPE_CHECKING:
    from fedmes.config.options import Config
    from fedmes.methods.dp_sgd import DPSGD


class Batch(NamedTuple):
    """Samples of one client; also the memory, whole or a part of it."""

    x: Tensor  # [B, ...] normalised
    y: Tensor  # [B] class ids
    mask: Tensor  # [B] 1, or 0 for padding
    scope: Tensor  # [B, C] the classes in the softmax of each sample (a class mask)
    task: Tensor  # [B] the index of the task each sample belongs to
    # [B] the place in the memory that is the sample's own from its task on until it leaves, below
    # twice the memory's size, as those who leave and those who come are there at once; -1: none
    place: Tensor


class ClientContext(NamedTuple):
    """Where a client stands, as 0-dim tensors."""

    client: Tensor
    position: Tensor  # the index of its current task, from 0
    first: Tensor  # is this the first (last) round of the task that the client takes part in?
    last: Tensor
    lr: Tensor
    samples: Tensor  # how many training samples this round iterates over
    blocks: Tensor  # [T, C] all classes of each task
    classes: Tensor  # [T, C] those of them that the client has; tasks may share classes
    seen: Tensor  # [C] the classes met so far, this task's included
    epoch: Tensor  # advances only within `step`
    key: Tensor  # a random number of (seed, client, round); in `step`, one of the step

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

    Defaults do nothing. `fedmes.methods.fedavg.FedAvg` is the plainest whole method and the base of
    the others.
    """

    # the samples an epoch iterates over: the current task's, or those of all tasks "seen"
    epoch_over: ClassVar[str] = "task"
    # the first rounds of a run, in which steps are made; None: in all
    training_rounds: int | None = None
    # what a client keeps of its samples: "none", a "memory", or "all" of them
    store: str = "none"
    # which samples a memory keeps; memory.policy overrides it
    policy: ClassVar[str] = "fifo"
    # options without a value, as the method resolves them
    resolved_options: Mapping[str, object] = {}
    # the options that only this method has; for a class Replay, in the section `replay`
    Options: ClassVar[type[MethodOptions] | None] = None
    options: Any = None  # their values
    # can clients be added between rounds? Not where the place of an entry depends on their number
    sites_may_join: bool = True
    # what `aggregate` needs of uploads: their "mean" alone, their "sum" alone, or each "individual"
    aggregation: ClassVar[str] = "individual"
    # what weighs a client in that mean: its "samples", or "uniform" for equal weights
    average: ClassVar[str] = "samples"
    # parts of the state (entries `part.*`, or one entry `part`) that every round makes anew before
    # it reads them, and that nothing reads between rounds: they are not kept for absent clients
    round_only: ClassVar[tuple[str, ...]] = ()
    # entries of the state that earlier versions of the method did not have: a client that began
    # with one goes on with those of a new client
    newer: ClassVar[tuple[str, ...]] = ()
    # how the names of entries end whose first axis is classes, where a step neither reads nor
    # changes what belongs to a class that the client has not met, and reads no broadcast
    by_class: tuple[str, ...] = ()
    # does it keep sums in float64, which not every device has?
    exact_sums: ClassVar[bool] = False
    # bytes that `measure` or `build_predictor` works with for one client, if they are many
    workspace: int = 0
    # options for all methods that this one ignores
    unused: ClassVar[tuple[str, ...]] = ()
    # how many gradients of a sample of the batch and of one of the memory a step takes, all of them
    # by `FedAvg.mean_gradient`; None: it uses samples in other ways (privacy.sample_clip)
    sample_gradients: ClassVar[tuple[int, int] | None] = None
    dp_sgd: DPSGD | None = None  # clips and noises these gradients, if asked to
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

    def outlives_round(self, name: str) -> bool:
        """Does an entry of the state have to be kept until the client's next round?"""
        return not (declares(self, "round_only") and within(self.round_only, name))

    # on the server
    def server(self, params: Tensors) -> Tensors:
        """The server's state before the first round."""
        raise NotImplementedError

    def aggregate(
        self, server: Tensors, uploads: Tensors, present: Tensor, samples: Tensor
    ) -> Tensors:
        """The server's new state. Uploads are stacked by client, [n, ...]; `present` [n] marks the
        clients that took part and sent something usable: the others must not count."""
        raise NotImplementedError

    def without(self, server: Tensors, state: Tensors) -> Tensors:
        """The server's state as if the client with this state had never sent anything, to the last
        bit. Most methods mix what clients send, and do not know."""
        raise UserError(
            f"method {self.config.method_name}: what a client sent cannot be taken out again; "
            "fedstats can (docs/privacy.md)"
        )

    def sent_down(self, server: Tensors) -> tuple[Tensors, Tensors]:
        """What a client receives in every round, and what in addition in the first round of each
        task. Choose entries and make masks value by value: several servers' states may come
        stacked."""
        return server, {}

    # on a client, in training
    def augmentation(self, shape: tuple[int, ...]) -> str:
        """How the method moves training images of a shape: "none", "shift", or "flip" for shifted
        and mirrored. `model.views` moves images in the same way."""
        return "none"

    def init(self, params: Tensors, ctx: ClientContext) -> Tensors:
        """A client's state before its first round."""
        raise NotImplementedError

    def upload_lost(self, state: Tensors) -> Tensors:
        """Before the client's next round, if its last upload did not count: the server left it out,
        or it has not arrived. For methods that send something once."""
        return {}

    def begin_task(self, state: Tensors, broadcast: Tensors, ctx: ClientContext) -> Tensors:
        """Before the broadcast is taken over in the first round of a task."""
        return {}

    def begin_round(
        self, state: Tensors, broadcast: Tensors, sums: Tensors, ctx: ClientContext
    ) -> Tensors:
        """The client takes over the broadcast; `sums` are those of `measure`."""
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
        """All that leaves the client. An entry `name#mask` marks the part of `name` that is sent
        (engines/wire.py)."""
        raise NotImplementedError

    def report(self, state: Tensors, broadcast: Tensors) -> Tensors:
        """Numbers about the round just trained: columns of `rounds.csv`, under names that its other
        columns do not have."""
        return {}

    def end_task(self, state: Tensors, ctx: ClientContext) -> Tensors:
        """After the last round of a task."""
        return {}

    # on a client, in prediction
    def build_predictor(self, state: Tensors, broadcast: Tensors, store: Batch) -> Tensors:
        """What predicts: model entries `w.*`, and whatever else `predict` needs."""
        raise NotImplementedError

    def embed_memory(self, params: Tensors, store: Batch) -> Tensors:
        """The entries `store.*` of `build_predictor`: the stored samples as the predicting weights
        see them. A client directory keeps the samples, from which these are made again."""
        return {}

    def apply_tuning(self, predictor: Tensors, sums: Tensors) -> Tensors:
        """The entries of `build_predictor` that the sums of `tune` decide."""
        return {}

    def predict(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> dict[str, Tensor]:
        """Class probabilities [B, C], zero outside the scope [C], under "acc"; where the memory
        votes too, those of the network alone under "nolip". `task` is the index of the samples'
        task, -1 without a task id."""
        raise NotImplementedError

    def explain(
        self, predictor: Tensors, x: Tensor, scope: Tensor, task: Tensor, ctx: ClientContext
    ) -> Tensors:
        """A prediction and its reasons, in one pass: where a memory votes, also its probabilities
        "memory" [B, C], whether it "voted" [B], and "distance" and "index" of the nearest stored
        samples [B, K]. Such a method overrides this together with `predict`. Outside of a run, only
        position, blocks, classes and seen of `ctx` are known."""
        return self.predict(predictor, x, scope, task, ctx)


def declares(method: Method, attribute: str) -> bool:
    """Can a declaration be relied on? A custom method makes it itself, since what it overrides may
    change it."""
    kind = type(method)
    return kind.__module__.startswith("fedmes.methods.") or attribute in vars(kind)


def within(parts: tuple[str, ...], name: str) -> bool:
    """Is it an entry of one of these parts?"""
    return any(name == part or name.startswith(f"{part}.") for part in parts)
