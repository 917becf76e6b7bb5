"""What is in Flower's messages: dictionaries of tensors, and JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedmes.tensors import Tensors, map_entries


def records(text: str, tensors: Tensors, refused: bool = False) -> RecordDict:
    record = ConfigRecord({"json": text})
    if refused:
        record = ConfigRecord({"refusal": text})
    return RecordDict({"tensors": ArrayRecord(map_entries(_array, tensors)), "fedmes": record})


def text_of(message: Message) -> tuple[str, bool]:
    """The JSON of a message, and whether it is a refusal."""
    record = message.content.config_records["fedmes"]
    refused = "refusal" in record
    text = record[{True: "refusal", False: "json"}[refused]]
    if not isinstance(text, str):
        raise TypeError("its text is none")
    return text, refused


def tensors_of(message: Message) -> Tensors:
    arrays = message.content.array_records["tensors"]
    return map_entries(lambda array: torch.from_numpy(array.numpy().copy()), arrays)


def order_of(message: Message) -> dict[str, Any]:
    """What the server asks for."""
    content: dict[str, Any] = json.loads(text_of(message)[0])
    return content


def _array(t: Tensor) -> Array:
    return Array(t.detach().cpu().contiguous().numpy())
