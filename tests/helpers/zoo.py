"""Ordinary modules as PyTorch's users write them, around images of a few pixels."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from helpers.torchvision_operators import declared

SIDE = 6  # of an image, in pixels
CLASSES = 4
WORDS = 11


class Conv(nn.Module):
    """A convolution, what flattens its output, head."""

    def __init__(self, shape, classes):
        super().__init__()
        self.conv, self.act = nn.Conv2d(shape[0], 4, 3, padding=1), nn.Tanh()
        self.head = nn.Linear(4 * SIDE * SIDE, classes)

    def features(self, x):
        return self.flat(self.act(self.conv(x)))

    def flat(self, x):
        return x.flatten(1)


class ViewBySize(Conv):
    def flat(self, x):
        return x.view(x.size(0), -1)


class ViewByWidth(Conv):
    def flat(self, x):
        return x.view(-1, 4 * SIDE * SIDE)


class ViewTheImages(Conv):
    """No layer before it: what counts is how images lie in memory."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.conv = nn.Linear(math.prod(shape), 8)
        self.head = nn.Linear(8, classes)

    def features(self, x):
        return self.act(self.conv(x.view(x.size(0), -1)))


class Reshape(Conv):
    def flat(self, x):
        return x.reshape(x.size(0), -1)


class Rows(nn.Module):
    """The rows of an image, one after the other, through a recurrent layer."""

    kind = nn.GRU

    def __init__(self, shape, classes):
        super().__init__()
        self.recurrent = self.kind(shape[0] * SIDE, 5, batch_first=True)
        self.head = nn.Linear(5, classes)

    def features(self, x):
        return self.recurrent(x.transpose(1, 2).flatten(2))[0][:, -1]


class Elman(Rows):
    kind = nn.RNN


class LongShort(Rows):
    kind = nn.LSTM


class Encoder(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.width = nn.Linear(shape[0] * SIDE, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 1)
        self.head = nn.Linear(8, classes)

    def features(self, x):
        return self.body(self.width(x.transpose(1, 2).flatten(2))).mean(1)


class ReadsItsDropout(nn.Module):
    """As attention of timm does: torch's own function, which is told how much to drop."""

    def __init__(self, shape, classes):
        super().__init__()
        self.qkv, self.dropped = nn.Linear(shape[0] * SIDE, 12), nn.Dropout(0.0)
        self.head = nn.Linear(4, classes)

    def features(self, x):
        q, k, v = self.qkv(x.transpose(1, 2).flatten(2)).chunk(3, dim=-1)
        p = self.dropped.p if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=p).mean(1)


class Branches(Conv):
    def flat(self, x):
        return x.flatten(1) * (2 if x.abs().max() > 0.5 else 3)


class Straight(torch.autograd.Function):
    """Signs forward, and a gradient as if they were not there; in the style that torch.func cannot
    map."""

    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, slope):
        return slope


class OwnGradient(Conv):
    def flat(self, x):
        return Straight.apply(x).flatten(1)


class KnowsThatItTrains(Conv):
    def flat(self, x):
        return x.flatten(1) * (0.5 if self.training else 2.0)


class Tokens(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        assert shape == (5,)
        self.words = nn.Embedding(WORDS, 6)
        self.head = nn.Linear(6, classes)

    def features(self, x):
        assert x.dtype == torch.int64
        return self.words(x).mean(1)


def hugging_face(shape, classes):
    transformers = pytest.importorskip("transformers")
    made = transformers.ViTConfig(
        image_size=SIDE, patch_size=3, num_channels=shape[0], hidden_size=8, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=16,
    )  # fmt: skip
    with declared():  # it imports torchvision
        body = transformers.ViTModel(made, add_pooling_layer=False)
    return HuggingFace(body, classes)


class HuggingFace(nn.Module):
    def __init__(self, body, classes):
        super().__init__()
        self.body, self.head = body, nn.Linear(8, classes)

    def features(self, x):
        return self.body(pixel_values=x).last_hidden_state[:, 0]


IMAGES = {
    "view by size": ViewBySize,
    "view by width": ViewByWidth,
    "view of the images": ViewTheImages,
    "reshape": Reshape,
    "GRU": Rows,
    "RNN": Elman,
    "LSTM": LongShort,
    "TransformerEncoder": Encoder,
    "reads its dropout": ReadsItsDropout,
    "Hugging Face ViT": hugging_face,
    "branches on values": Branches,
    "own gradient": OwnGradient,
    "knows that it trains": KnowsThatItTrains,
}
