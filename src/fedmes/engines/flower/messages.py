"""What is in Flower's messages: dictionaries of tensors, and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from fedmes.tensors import Tensors, map_entries

# what a client hears of its updates: the task of the last one that counts, and its round there
Taken = tuple[int, int]
NOTHING_TAKEN: Taken = (-1, -1)


def records(text: str, tensors: Tensors, refused: bool = False) -> RecordDict:
    record = ConfigRecord({"json": text})
    if refused:
        record = ConfigRecord({"refusal": text})
    return RecordDict({"tensors": ArrayRecord(map_entries(_array, tensors)), "fedmes": record})


def several(texts: Sequence[tuple[str, bool]], tensors: Tensors) -> RecordDict:
    """Of a node's clients, one after the other: JSON, and whether it is a refusal."""
    content, refused = map(list, zip(*texts, strict=True))
    record = ConfigRecord({"several": content, "refused": refused})
    return RecordDict({"tensors": ArrayRecord(map_entries(_array, tensors)), "fedmes": record})


def texts_of(message: Message) -> list[tuple[str, bool]] | None:
    """The same of a message; None: it is not of several clients."""
    record = message.content.config_records["fedmes"]
    if "several" not in record:
        return None
    texts = record["several"]
    refused = record["refused"]
    if not isinstance(texts, list) or not isinstance(refused, list):
        raise TypeError("its texts are no list")
    return list(zip(map(str, texts), map(bool, refused), strict=True))


def text_of(message: Message) -> tuple[str, bool]:
    """The JSON of a message, and whether it is a refusal; of several clients, if all refuse."""
    if (texts := texts_of(message)) is not None:
        return f"[{', '.join(text for text, _ in texts)}]", all(refused for _, refused in texts)
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
