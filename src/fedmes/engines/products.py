"""Long thin matrix products in pieces, inside a compiled step.

A gradient to a handful of numbers that weigh whole layers (FedWeIT's alphas) is a product whose inner axis has millions
of elements and whose result has a hundred. A GPU library gives such a result to one multiprocessor, which walks the
axis from end to end while all others wait. Here the axis is cut; pieces are multiplied side by side and added up.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

aten = torch.ops.aten

LONG = 2**15  # an inner axis from here on is cut
SMALL = 64**2  # elements of a result that one multiprocessor would be given
PIECE = 2048  # the length of a piece, at most


class LongProducts(CustomGraphPass):
    def __call__(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is aten.bmm.default:
                a, b = node.args
                (batch, rows, inner), columns = a.meta["val"].shape, b.meta["val"].shape[2]
                pieces = _pieces(inner) if inner >= LONG and rows * columns <= SMALL else 1
                if pieces > 1:
                    with graph.inserting_before(node):
                        node.replace_all_uses_with(_in_pieces(graph, a, b, pieces, (batch, rows, columns)))
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,))


def _pieces(inner: int) -> int:
    """As few as make pieces short enough; 1 where the axis cannot be cut evenly."""
    fewest = -(-inner // PIECE)
    return next((count for count in range(fewest, 8 * fewest) if inner % count == 0), 1)


def _in_pieces(graph: fx.Graph, a: fx.Node, b: fx.Node, pieces: int, shape: tuple[int, int, int]) -> fx.Node:
    batch, rows, columns = shape

    def call(target: Any, *arguments: Any, **named: Any) -> fx.Node:
        new = graph.call_function(target, arguments, named)
        values = (item.meta["val"] if isinstance(item, fx.Node) else item for item in arguments)
        new.meta["val"] = target(*values, **named)
        return new

    def cut(node: fx.Node, lines: int) -> fx.Node:  # [batch, lines, inner] -> [batch * pieces, lines, a piece]
        apart = call(aten.reshape.default, node, [batch, lines, pieces, -1])
        beside = call(aten.permute.default, apart, [0, 2, 1, 3])
        packed = call(aten.clone.default, beside, memory_format=torch.contiguous_format)
        return call(aten.reshape.default, packed, [batch * pieces, lines, -1])

    other = cut(call(aten.permute.default, b, [0, 2, 1]), columns)
    parts = call(aten.bmm.default, cut(a, rows), call(aten.permute.default, other, [0, 2, 1]))
    return call(aten.sum.dim_IntList, call(aten.reshape.default, parts, [batch, pieces, rows, columns]), [1])
