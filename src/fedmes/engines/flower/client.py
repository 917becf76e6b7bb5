"""Flower's client: it takes the server's messages to a site, and the site's answers back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.devices import numerics
from fedmes.engines.flower import messages
from fedmes.engines.flower.answers import Refusal
from fedmes.engines.flower.site import Answer, SiteClient
from fedmes.errors import UserError
from fedmes.tensors import Tensors

Node = dict[str, Any]  # what a SuperNode was started with
NameOf = Callable[[Node], str]
# by the server's configuration and a seed's place
OpenClient = Callable[[Config, int, Node], SiteClient]
Order = dict[str, Any]


def client_app(name_of: NameOf, open_client: OpenClient) -> ClientApp:
    app = ClientApp()

    def answer(
        message: Message, context: Context, work: Callable[[SiteClient, Order, Tensors], Answer]
    ) -> Message:
        order, node, name = messages.order_of(message), dict(context.node_config), ""
        try:
            name = name_of(node)
            config = Config.model_validate(order["config"])
            with numerics(config):
                done = work(
                    open_client(config, order["seed"], node), order, messages.tensors_of(message)
                )
        except UserError as error:
            refusal = Refusal(name=name, error=str(error)).model_dump_json()
            return Message(messages.records(refusal, {}, refused=True), reply_to=message)
        return Message(
            messages.records(done.facts.model_dump_json(), wire.pack(done.upload)), reply_to=message
        )

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, lambda client, order, tensors: client.hello())

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(
            message,
            context,
            lambda client, order, tensors: client.train(
                order["round"], _received(client, order, tensors)
            ),
        )

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(
            message,
            context,
            lambda client, order, tensors: client.evaluate(_received(client, order, tensors)),
        )

    return app


def _received(client: SiteClient, order: Order, tensors: Tensors) -> Tensors:
    """The server's state, of which a part may have come before."""
    each, kept = client.method.sent_down(client.method.server(client.initial))
    try:
        sent = wire.unpack({name: tensors.pop(name) for name in order["each"]}, each)
        rest = wire.unpack(tensors, kept) if order["kept"] else None
    except (ValueError, KeyError) as error:
        raise UserError(f"the server's state does not fit this site's method ({error})") from None
    without_masks = {name: t for name, t in (rest or {}).items() if not name.endswith("#mask")}
    return client.receive(sent, without_masks if rest is not None else None, order["version"])
