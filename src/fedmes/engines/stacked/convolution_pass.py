"""The convolutions of all clients in one launch, in steps that are compiled for a GPU in bf16.

Mapped over clients, a convolution becomes one with a group for each client. A pass over a compiled
step's graph replaces those by operators that take all groups at once
(models/grouped_convolution.py), so that networks and methods need not know. Sequences of
convolutions and ReLUs use them already.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

from fedmes.models import grouped_convolution

aten = torch.ops.aten
ours = torch.ops.fedmes
BF16 = torch.bfloat16


class GroupedConvolutions(CustomGraphPass):
    """Replaces a graph's grouped convolutions by these kernels."""

    def __call__(self, graph: fx.Graph) -> None:
        rewriting = _Rewriting(graph)
        for node in list(graph.nodes):
            if node.target is aten.convolution.default:
                rewriting.forward(node)
            elif node.target is aten.convolution_backward.default:
                rewriting.backward(node)
        graph.eliminate_dead_code()
        _compile_ahead(graph)

    def uuid(self) -> Any:
        from fedmes.models import grouped_kernels

        files = (__file__, grouped_convolution.__file__, grouped_kernels.__file__)
        return get_hash_for_files(files)


class _Rewriting:
    """A graph whose convolutions are being replaced."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.channels_last: dict[fx.Node, fx.Node] = {}  # of images [n, group * channel, h, w]
        self.taps: dict[fx.Node, fx.Node] = {}  # of weights

    def forward(self, node: fx.Node) -> None:
        arguments: Any = node.args
        x, w, *how = arguments
        if not _can(x, w, how):
            return
        padding = list(how[2])
        groups = how[6]
        pixels = self.pixels(x, groups)
        with self.graph.inserting_before(node):
            out = self.convolution(pixels, self.by_tap(w, groups), w, padding)
            node.replace_all_uses_with(self.images(out))

    def backward(self, node: fx.Node) -> None:
        arguments: Any = node.args
        g, x, w, _, *how = arguments
        if not _can(x, w, [None, *how[:-1]]):
            return
        padding = list(how[1])
        groups = how[5]
        gradient = self.pixels(g, groups)
        pixels = self.pixels(x, groups)
        for part in list(node.users):  # getitem nodes
            with self.graph.inserting_before(part):
                if part.args[1] == 0:
                    part.replace_all_uses_with(self.to_input(gradient, w, padding, groups))
                elif part.args[1] == 1:
                    part.replace_all_uses_with(self.to_weight(gradient, pixels, w, padding))

    def to_input(self, g: fx.Node, w: fx.Node, padding: list[int], groups: int) -> fx.Node:
        wider = [k - 1 - p for k, p in zip(_size(w)[2:], padding, strict=True)]
        return self.images(self.convolution(g, self.by_tap(w, groups), w, wider, flip=True))

    def to_weight(self, g: fx.Node, x: fx.Node, w: fx.Node, padding: list[int]) -> fx.Node:
        write = self.write
        parts = write(ours.weight_gradient.default, x, g, _size(w)[2:], padding)
        total = write(aten.sum.dim_IntList, write(getitem, parts, 0), [0])
        taps = write(aten.permute.default, total, [0, 3, 2, 1])
        gradient = write(aten.reshape.default, taps, _size(w))
        return write(torch.ops.prims.convert_element_type.default, gradient, BF16)

    def convolution(
        self, pixels: fx.Node, taps: fx.Node, w: fx.Node, padding: list[int], flip: bool = False
    ) -> fx.Node:
        kernel = _size(w)[2:]
        return self.write(ours.convolve.default, pixels, taps, None, None, flip, kernel, padding)

    def by_tap(self, w: fx.Node, groups: int) -> fx.Node:
        """Weights in whole lines; the compiler makes that a part of their rounding to bf16."""
        if w not in self.taps:
            out, inputs, *_ = _size(w)
            with self.graph.inserting_before(w.next):
                split = self.write(aten.reshape.default, w, [groups, out // groups, inputs, -1])
                self.taps[w] = self.packed(self.write(aten.permute.default, split, [0, 3, 2, 1]))
        return self.taps[w]

    def pixels(self, images: fx.Node, groups: int) -> fx.Node:
        """Images with their channels last. From here on everybody reads those, so that the compiler
        keeps no other copy."""
        if images not in self.channels_last:
            n, channels, *sides = _size(images)
            size = [n, groups, channels // groups, *sides]
            with self.graph.inserting_before(images.next):
                split = self.write(aten.reshape.default, images, size)
                pixels = self.packed(self.write(aten.permute.default, split, [1, 0, 3, 4, 2]))
                again = self.images(pixels)
            images.replace_all_uses_with(again, delete_user_cb=lambda user: user is not split)
            self.channels_last |= {images: pixels, again: pixels}
        return self.channels_last[images]

    def images(self, pixels: fx.Node) -> fx.Node:
        """With their channels where torch has them."""
        groups, n, *sides, channels = _size(pixels)
        split = self.write(aten.permute.default, pixels, [1, 0, 4, 2, 3])
        return self.write(aten.reshape.default, split, [n, groups * channels, *sides])

    def packed(self, node: fx.Node) -> fx.Node:
        return self.write(aten.clone.default, node, memory_format=torch.contiguous_format)

    def write(self, target: Any, *arguments: Any, **named: Any) -> fx.Node:
        new = self.graph.call_function(target, arguments, named)
        new.meta["val"] = target(*map(_value, arguments), **named)
        return new


def _compile_ahead(graph: fx.Graph) -> None:
    """Begin to compile the kernels that a graph launches, while the compiler works on the rest."""
    nodes = [node for node in graph.nodes if getattr(node.target, "namespace", "") == "fedmes"]
    values = [(node, _flat(_value(node)), list(map(_value, node.args))) for node in nodes]
    on_a_gpu = [(node, out, args) for node, out, args in values if out[0].device.type == "cuda"]
    if not on_a_gpu:
        return
    from fedmes.models import grouped_kernels

    launches: dict[Any, Callable[..., grouped_kernels.Launch]] = {
        ours.convolve.default: grouped_kernels.convolve,
        ours.convolve_and_pool.default: grouped_kernels.convolve_and_pool,
        ours.unpool.default: grouped_kernels.unpool,
        ours.weight_gradient.default: grouped_kernels.weight_gradient,
    }
    # Once the compiler has loaded a kernel, Triton takes torch's assembler instead of its own. Its
    # cache keeps them apart: without this, another process would not find these kernels there.
    _set_triton_ptxas_path()
    grouped_kernels.compile_ahead(
        launches[node.target](*out, *args) for node, out, args in on_a_gpu
    )


def _can(x: fx.Node, w: fx.Node, how: list[Any]) -> bool:
    """Can these kernels do it?"""
    bias, stride, _, dilation, transposed, _, groups = how
    image = _value(x)
    return (
        bias is None
        and set(stride) == {1}
        and set(dilation) == {1}
        and not transposed
        and groups > 1
        and image.ndim == 4
        and image.dtype == BF16
    )


def _size(node: fx.Node) -> list[int]:
    return list(_value(node).shape)


def _value(item: Any) -> Any:
    """A node's fake tensor; anything else as it is."""
    return item.meta["val"] if isinstance(item, fx.Node) else item


def _flat(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
