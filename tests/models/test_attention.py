"""Mapped attention: one kernel for all clients, and for each of them the same as by itself."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from fedmes.models.adapters import LowRank
from fedmes.models.functional import Net

WIDTH = 8
TOKENS = 5


class Calls(TorchDispatchMode):
    """How often kernels of attention are called, forward and backward."""

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if "scaled_dot_product" in name:
            self.count["backward" if name.endswith("backward") else "forward"] += 1
        return func(*args, **(kwargs or {}))


class Attending(nn.Module):
    """Tokens that look at each other in two heads; layers before and after it have adapters."""

    def __init__(self, masked):
        super().__init__()
        self.qkv = LowRank(nn.Linear(WIDTH, 3 * WIDTH), rank=2)
        self.out = LowRank(nn.Linear(WIDTH, WIDTH), rank=2)
        self.head = nn.Linear(WIDTH, 3)
        self.mask = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril() if masked else None

    def features(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, dropout_p=0.0)
        return self.out(seen.transpose(1, 2).flatten(2)).mean(1)


def gradients(net, params, x):
    return net.gradient(lambda w: net.logits(w, x).square().sum(), params)[0]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # where there is a mask
def test_all_clients_attend_together(masked):
    torch.manual_seed(0)
    net = Net(Attending(masked), (TOKENS, WIDTH), 3).to(torch.device("cpu"), torch.float64)
    own = {name: torch.randn(2, 3, *p.shape).double() for name, p in net.initial.items()}
    x = torch.randn(2, 3, 4, TOKENS, WIDTH).double()
    alone = {name: torch.empty_like(p) for name, p in own.items()}
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(3)).tolist():
        one = {name: p[tuple(place)] for name, p in own.items()}
        for name, slope in gradients(net, one, x[tuple(place)]).items():
            alone[name][tuple(place)] = slope
    net.mapped = True
    with Calls() as calls, torch.no_grad():
        together = vmap(vmap(lambda w, x: gradients(net, w, x)))(own, x)
    for name, slope in alone.items():
        assert slope.abs().max() > 0.01
        torch.testing.assert_close(together[name], slope, rtol=1e-10, atol=1e-12, msg=name)
    if not masked:  # once more for the backward pass
        assert calls.count == {"forward": 2, "backward": 1}
