"""What is kept for steps alone: nothing that a method looks at after the last one, however it does."""

from types import SimpleNamespace

import pytest
import torch
from torch.func import grad, vjp, vmap

from fedmes.engines.stacked.steps_only import needed_in_steps_only

READS = {
    "not at all": lambda t: torch.ones(1),
    "handed over": lambda t: t,
    "an operator": lambda t: t + 1,
    "a view": lambda t: t[0],
    "a gradient": lambda t: grad(lambda w: (w**2).sum())(t),
    "a gradient of entries": lambda t: vjp(lambda w: (w["a"] ** 2).sum(), {"a": t})[0],
    "mapped": lambda t: vmap(lambda row: row * 2)(t),
    "mapped over another": lambda t: vmap(lambda row: row + t)(torch.ones(2)),
    "traced": torch.jit.trace(lambda t: t * 2, torch.ones(3, 4)),
}


@pytest.mark.parametrize("function", ["end_round", "upload", "report"])
@pytest.mark.parametrize("read", READS)
def test_what_is_looked_at_after_the_last_step_is_kept(function, read):
    def call(name, state):
        if name == function:
            return {"seen": READS[read](state["moment"])}
        return {}

    method = SimpleNamespace(
        end_round=lambda state, server, ctx: call("end_round", state),
        upload=lambda state, ctx: call("upload", state),
        report=lambda state, server: call("report", state),
    )
    state = {"moment": torch.ones(3, 4), "untouched": torch.ones(3, 4)}
    needed = needed_in_steps_only(method, state, state, {}, None)
    assert needed == ({"moment", "untouched"} if read == "not at all" else {"untouched"})
