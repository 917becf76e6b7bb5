"""What is in Flower's messages: dictionaries of tensors, and JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedmes.tensors import Tensors

# --- messages ---------------------------------------------------------------------------------------------------------


def _records(order: dict[str, Any], tensors: Tensors, privacy: dict[str, float] | None = None) -> RecordDict:
    arrays = ArrayRecord({name: _array(t) for name, t in tensors.items()})
    return RecordDict({"tensors": arrays, "fedmes": ConfigRecord({"json": json.dumps(order), **(privacy or {})})})


def _array(t: Tensor) -> Array:
    return Array(t.detach().cpu().contiguous().numpy())


def _read(message: Message) -> tuple[dict[str, Any], Tensors]:
    arrays = message.content.array_records["tensors"]
    text = message.content.config_records["fedmes"]["json"]
    assert isinstance(text, str)
    return json.loads(text), {name: torch.from_numpy(array.numpy().copy()) for name, array in arrays.items()}
