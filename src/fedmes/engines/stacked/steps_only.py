"""Entries of a client's state that only its steps need, such as an optimizer's moments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedmes.methods.base import ClientContext, Method
from fedmes.tensors import Tensors


@torch.no_grad()
def needed_in_steps_only(
    method: Method, names: Iterable[str], state: Tensors, server: Tensors, ctx: ClientContext
) -> set[str]:
    """Of entries that do not outlive a round, those that nothing looks at after its last step
    either. Methods do not branch on values, so one client in any state tells."""
    with _Watch({name: state[name] for name in names}) as watch:
        ended = method.end_round(state, server, ctx)
        state = state | ended
        watch.note((ended, method.upload(state, ctx), method.report(state, server)))
    return set(watch.names.values()) - watch.read - set(ended)


class _Watch(TorchDispatchMode):
    """Notes which tensors an operator takes."""

    def __init__(self, watched: Tensors) -> None:
        super().__init__()
        self.names = {id(tensor): name for name, tensor in watched.items()}
        self.read: set[str] = set()

    def note(self, values: Any) -> None:
        self.read |= {self.names[id(t)] for t in tree_leaves(values) if id(t) in self.names}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler, to tell it to leave this alone."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.note((args, kwargs))
        return func(*args, **(kwargs or {}))
