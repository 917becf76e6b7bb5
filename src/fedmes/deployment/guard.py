"""Between Flower and a site's client: the owner's policy, and the record of what leaves.

A mod of Flower's. It sees every message before the client does, and every answer before it leaves.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from pydantic import ValidationError

from fedmes.common.files import replace_private
from fedmes.config.options import Config
from fedmes.deployment import audit, site
from fedmes.deployment.policy import Policy
from fedmes.engines.flower import messages
from fedmes.engines.flower.client import refusal
from fedmes.errors import UserError

BROADCASTS = "broadcasts.json"  # norms of the last good ones, by federation
# the class of the words of an answer, by the kind of request; tensors are updates
WORDS = {"query": "facts", "query.unmask": "shares", "train": "facts", "evaluate": "scores"}
PATHS = ("path", "more")  # of the section data: files that the server would choose

Norms = dict[str, float]
Next = Callable[[Message, Context], Message]


def guard(message: Message, context: Context, answer: Next) -> Message:
    """Refuse what the policy does not allow, before anything of it is done; record everything."""
    if "site" not in context.node_config:
        return answer(message, context)  # which says what is missing
    folder = Path(str(context.node_config["site"]))
    name = ""
    try:
        about = site.read(folder)
        name = str(about["name"])
        order = _order(message)
        record = {"kind": message.metadata.message_type, **_place(order)}
        _append(folder, {"event": "asked", **record, **_content(message, "orders", "broadcast")})
        try:
            policy = Policy.of(about, folder / "site.toml")
            norms = _checked(policy, folder, order, message)
            reply = answer(message, context)
        except UserError as error:
            reply = refusal(message, name, error)
        except Exception as error:
            _append(folder, {"event": "failed", **record, "reason": repr(error), "bytes": {}})
            raise
        _, refused = messages.text_of(reply)
        reasons = _reasons(reply)
        if refused:
            record |= {"event": "refused", "reason": "; ".join(dict.fromkeys(reasons.values()))}
            _append(folder, record | _content(reply, "refusals", "updates"))
        else:
            if reasons:  # of some of the site's clients
                record |= {"refused": reasons}
            words = WORDS.get(record["kind"], record["kind"])
            _append(folder, {"event": "left", **record} | _content(reply, words, "updates"))
            _keep(folder, order, norms)
        return reply
    except UserError as error:
        return refusal(message, name, error)


def _order(message: Message) -> dict[str, Any]:
    try:
        return messages.order_of(message)
    except Exception:  # as of any damaged message
        raise UserError("an order that cannot be read") from None


def _reasons(reply: Message) -> dict[str, str]:
    """Why clients do not do what they were asked for, by name."""
    texts = messages.texts_of(reply) or [messages.text_of(reply)]
    said = [json.loads(text) for text, refused in texts if refused]
    return {each["name"]: each["error"] for each in said}


def _place(order: dict[str, Any]) -> dict[str, Any]:
    """Which federation and round it is about."""
    federation = order.get("config", {}).get("federation", {}).get("name")
    return {"federation": federation, "round": order.get("round")}


def _checked(policy: Policy, folder: Path, order: dict[str, Any], message: Message) -> Norms:
    """The norms of the broadcast, if everything about the order is allowed."""
    try:
        config = Config.model_validate(order["config"])
    except (ValidationError, KeyError):
        raise UserError("the server's configuration is not one of this version") from None
    policy.check(config)
    if config.data.path is not None or config.data.more:
        raise UserError("the server names files of this site (data.path, data.more)")
    size = sum(_content(message, "orders", "broadcast")["bytes"].values())
    policy.check_place(folder, config.federation.name, size)
    norms = _norms(order, message)
    last = _broadcasts(folder).get(config.federation.name, {})
    for part, norm in norms.items():
        if not math.isfinite(norm):
            raise UserError("a broadcast that is not finite; the last good predictor is kept")
        policy.check_growth(norm, last.get(part, 0.0))
    return norms


def _norms(order: dict[str, Any], message: Message) -> Norms:
    """Of what the server sends each time, and of what it sends when it has changed."""
    squares: Norms = {}
    if "each" not in order:  # no broadcast
        return squares
    for name, t in messages.tensors_of(message).items():
        part = "each" if name in order["each"] else "kept"
        squares[part] = squares.get(part, 0.0) + float(t.double().square().sum())
    return {part: math.sqrt(square) for part, square in squares.items()}


def _broadcasts(folder: Path) -> dict[str, Norms]:
    try:
        return dict(json.loads((folder / BROADCASTS).read_bytes()))
    except FileNotFoundError:
        return {}


def _keep(folder: Path, order: dict[str, Any], norms: Norms) -> None:
    """For the next broadcast to be compared with."""
    if not norms:
        return
    known = _broadcasts(folder)
    name = order["config"]["federation"]["name"]
    known[name] = known.get(name, {}) | norms
    replace_private(folder / BROADCASTS, json.dumps(known).encode())


def _content(message: Message, words: str, arrays: str) -> dict[str, Any]:
    """What is in a message: names, types and shapes, bytes by class, and a hash of everything."""
    text, _ = messages.text_of(message)
    digest = hashlib.sha256(text.encode())
    tensors = {}
    size = 0
    for name, t in messages.tensors_of(message).items():
        data = t.contiguous().numpy()
        tensors[name] = [str(data.dtype), *data.shape]
        size += data.nbytes
        digest.update(name.encode())
        digest.update(data.tobytes())
    sizes = {words: len(text.encode())}
    if size:
        sizes[arrays] = size
    return {"bytes": sizes, "tensors": tensors, "sha256": digest.hexdigest()}


def _append(folder: Path, entry: dict[str, Any]) -> None:
    try:
        audit.append(folder, entry)
    except OSError as error:
        raise UserError(
            f"the audit file cannot be written ({error.strerror}), so nothing leaves"
        ) from None
