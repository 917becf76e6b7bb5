"""Flower's client: it takes the server's messages to a site, and the site's answers back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.devices import numerics
from fedmes.engines.flower.messages import _read, _records
from fedmes.engines.flower.site import Answer, Desk
from fedmes.errors import UserError
from fedmes.tensors import Tensors

# --- a site -----------------------------------------------------------------------------------------------------------

# From the server's configuration, a seed (by its place) and what the SuperNode was started with to a name and a desk.
OpenDesk = Callable[[Config, int, dict[str, Any]], tuple[str, Desk]]


def client_app(open_desk: OpenDesk) -> ClientApp:
    app = ClientApp()

    def answer(message: Message, context: Context, work: Callable[[Desk, dict[str, Any], Tensors], Answer]) -> Message:
        order, tensors = _read(message)
        try:
            config = Config.model_validate(order["config"])
            with numerics(config):
                name, desk = open_desk(config, order["seed"], dict(context.node_config))
                done = work(desk, order, tensors)
            facts = {"name": name, **done.facts}
        except UserError as error:
            return Message(_records({"error": str(error)}, {}), reply_to=message)
        return Message(_records(facts, wire.pack(done.upload)), reply_to=message)

    def received(desk: Desk, order: dict[str, Any], tensors: Tensors) -> Tensors:
        each, kept = desk.method.sent_down(desk.method.server(desk.initial))
        try:
            sent = wire.unpack({name: tensors.pop(name) for name in order["each"]}, each)
            rest = wire.unpack(tensors, kept) if order["kept"] else None
        except (ValueError, KeyError) as error:
            raise UserError(f"the server's state does not fit this site's method ({error})") from None
        without_masks = {name: t for name, t in (rest or {}).items() if not name.endswith("#mask")}
        return desk.receive(sent, without_masks if rest is not None else None, order["version"])

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, lambda desk, order, tensors: desk.hello())

    @app.train(mods=[_privacy])
    def train(message: Message, context: Context) -> Message:
        return answer(
            message, context, lambda desk, order, tensors: desk.train(order["round"], received(desk, order, tensors))
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, lambda desk, order, tensors: desk.evaluate(received(desk, order, tensors)))

    return app


def _privacy(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Flower's clipping, or clipping and noise, where the configuration asks for it."""
    order, _ = _read(message)
    options = order["config"]["privacy"]
    if options["clip"] is None:
        return call_next(message, context)
    inner: list[Message] = []

    def keep(message: Message, context: Context) -> Message:
        inner.append(call_next(message, context))
        return inner[0]

    if options["epsilon"] is None:
        outer = fixedclipping_mod(message, context, keep)
    else:
        noise = LocalDpMod(options["clip"], options["clip"], options["epsilon"], options["delta"])
        outer = noise(message, context, keep)
    sent_something = not inner[0].has_error() and len(inner[0].content.array_records["tensors"])
    return outer if sent_something else inner[0]
