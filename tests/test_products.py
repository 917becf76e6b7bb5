"""Long thin products in pieces, inside a compiled function, equal the library's."""

import torch
from torch._inductor import config as inductor
from torch.func import grad, vmap

from fedmes.engines import products
from fedmes.methods.fedweit import from_others


class Seen(products.LongProducts):
    """The pass, and the inner lengths of the products that were left after it."""

    def __call__(self, graph):
        super().__call__(graph)
        bmm = torch.ops.aten.bmm.default
        self.inner = [node.args[0].meta["val"].shape[2] for node in graph.nodes if node.target is bmm]


def compiled(function, *arguments):
    torch._dynamo.reset()
    found = Seen()
    with inductor.patch(fx_graph_cache=False, post_grad_custom_post_pass=found):
        result = torch.compile(function, fullgraph=True)(*arguments)
    return result, found.inner


def test_the_gradient_to_what_weighs_whole_layers(monkeypatch):
    monkeypatch.setattr(products, "LONG", 1000)
    monkeypatch.setattr(products, "PIECE", 100)
    generator = torch.Generator().manual_seed(0)
    alpha, kb, x = (
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in ((2, 3, 5), (2, 1, 5, 12, 100), (2, 3, 12, 100))
    )

    def loss(alpha, kb, x):
        return (from_others(alpha, kb) * x).sin().sum()

    stacked = vmap(vmap(grad(loss), in_dims=(0, None, 0)))
    got, inner = compiled(stacked, alpha, kb, x)
    assert inner == [5, 100]  # to the layers as it was; back to the alphas in pieces of 100 instead of 1,200
    torch.testing.assert_close(got, stacked(alpha, kb, x), rtol=1e-12, atol=1e-12)


def test_others_stay_whole(monkeypatch):
    monkeypatch.setattr(products, "LONG", 1000)
    monkeypatch.setattr(products, "PIECE", 100)
    monkeypatch.setattr(products, "SMALL", 6)
    for rows, length, columns in ((2, 999, 3), (3, 1200, 3), (2, 1009, 3)):  # short; a large result; a prime length
        a, b = torch.randn(4, rows, length), torch.randn(4, length, columns)
        got, inner = compiled(torch.bmm, a, b)
        assert inner == [length]
        torch.testing.assert_close(got, torch.bmm(a, b))
    a, b = torch.randn(4, 2, 1200, dtype=torch.float64), torch.randn(4, 1200, 3, dtype=torch.float64)
    got, inner = compiled(torch.bmm, a, b)
    assert inner == [100]
    torch.testing.assert_close(got, torch.bmm(a, b))
