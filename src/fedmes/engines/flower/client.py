"""Flower's ClientApp: it passes the server's messages to a site, and the site's answers back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from pydantic import ValidationError

from fedmes.common.text import short_sha256
from fedmes.config.options import Config
from fedmes.engines import wire
from fedmes.engines.devices import numerics
from fedmes.engines.flower import messages
from fedmes.engines.flower.answers import MOST_NEW, TOTAL, Refusal
from fedmes.engines.flower.node import Node
from fedmes.engines.flower.secure_site import Masker
from fedmes.engines.flower.site import Answer, SiteClient
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.scenario.custom import UnlistedClasses
from fedmes.tensors import Tensors, put

NodeConfig = dict[str, Any]  # what a SuperNode was started with
NameOf = Callable[[NodeConfig], str]
# of the server's configuration and the index of a seed
OpenClient = Callable[[Config, int, NodeConfig], SiteClient | Node]
Order = dict[str, Any]
Handler = Callable[[SiteClient, Order, Tensors], Answer]


def client_app(name_of: NameOf, open_client: OpenClient, mods: Sequence[Mod] = ()) -> ClientApp:
    """An app that answers for the site of the node it runs on. `mods`: see Flower."""
    app = ClientApp(mods=list(mods))

    def answer(message: Message, context: Context, handler: Handler) -> Message:
        order = messages.order_of(message)
        node = dict(context.node_config)
        name = ""
        try:
            name = name_of(node)
            config = Config.model_validate(order["config"])
            with numerics(config):
                found = open_client(config, order["seed"], node)
                if not isinstance(found, Node) or found.clients:
                    _refuse_other_network(name, found.method, config, order["frozen"])
                tensors = messages.tensors_of(message)
                if isinstance(found, Node):
                    content = _of_many(found, handler, order, tensors)
                else:
                    done = handler(found, order, tensors)
                    content = messages.records(_text(done), wire.pack(done.upload))
        except UserError as error:
            return refusal(message, name, error)
        return Message(content, reply_to=message)

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        return answer(message, context, _hello)

    @app.query("unmask")
    def unmask(message: Message, context: Context) -> Message:
        return answer(message, context, _unmask)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answer(message, context, _train)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answer(message, context, _evaluate)

    return app


def _text(answer: Answer) -> str:
    return answer.facts.model_dump_json(exclude_unset=True)


def _of_many(node: Node, handler: Handler, order: Order, tensors: Tensors) -> RecordDict:
    """The answers of a node's clients, in one message."""
    members = node.asked(order.get("clients"), _refusal)
    total: Tensors = {}
    if handler is _train and not node.config.privacy.secure_aggregation:

        def receive(client: SiteClient) -> Tensors:
            return _received(client, order, dict(tensors))

        taken = partial(_taken, order)
        total = node.train(members, order["round"], receive, taken, order.get("sum", False))
    else:
        members.each(lambda _, client: handler(client, order, dict(tensors)))
    texts = []
    sent = put(TOTAL, total)
    for place, answer in enumerate(members.answers):
        if isinstance(answer, Refusal):
            texts.append((answer.model_dump_json(), True))
            continue
        assert isinstance(answer, Answer)
        texts.append((_text(answer), False))
        sent |= put(str(place), wire.pack(answer.upload))
    return messages.several(texts, sent)


def refusal(message: Message, name: str, error: UserError) -> Message:
    """The answer of a site that does not do what it is asked for."""
    text = _refusal(name, error).model_dump_json()
    return Message(messages.records(text, {}, refused=True), reply_to=message)


def _refusal(name: str, error: UserError) -> Refusal:
    classes: list[str] = []
    if isinstance(error, UnlistedClasses):
        classes = error.classes
    try:
        return Refusal(name=name, error=str(error), classes=classes)
    except ValidationError:
        limits = f"new classes: at most {MOST_NEW}, with names of at most 100 characters"
        return Refusal(name=name, error=f"{limits}; {error}")


def _refuse_other_network(name: str, method: Method, servers: Config, frozen: str | None) -> None:
    """What is frozen never travels: the site must have the same as the server."""
    found = method.net.frozen_sha256
    if found != frozen:
        here = _frozen(method.config, found)
        there = _frozen(servers, frozen)
        raise UserError(
            f"model {servers.model.name}: what is frozen has SHA-256 {here} at site {name}, "
            f"{there} at the server"
        )


def _frozen(config: Config, sha256: str | None) -> str:
    weights = config.model.weights
    if weights is None:
        return short_sha256(sha256)
    return f"{short_sha256(sha256)} (weights {Path(weights).name})"


def _hello(client: SiteClient, order: Order, tensors: Tensors) -> Answer:
    return _signed(client, client.hello())


def _train(client: SiteClient, order: Order, tensors: Tensors) -> Answer:
    if not client.method.config.privacy.secure_aggregation:
        broadcast = _received(client, order, tensors)
        return client.train(order["round"], broadcast, _taken(order, client))
    masker = Masker(client)
    masker.check(order["secure"])
    broadcast = _received(client, order, tensors)
    # Nothing is sent again: the difference of two sums over other sites would be what one has sent.
    answer = client.train(order["round"], broadcast)
    return masker.signed(masker.hidden(order["secure"], order["round"], answer, broadcast))


def _unmask(client: SiteClient, order: Order, tensors: Tensors) -> Answer:
    masker = Masker(client)
    return masker.signed(masker.unmask(order["secure"][str(masker.me)]))


def _evaluate(client: SiteClient, order: Order, tensors: Tensors) -> Answer:
    return _signed(client, client.evaluate(_received(client, order, tensors)))


def _signed(client: SiteClient, answer: Answer) -> Answer:
    if client.method.config.privacy.secure_aggregation:
        return Masker(client).signed(answer)
    return answer


def _taken(order: Order, client: SiteClient) -> messages.Taken | None:
    """The client's last update that counts; None: a server of an earlier version does not say."""
    told = order.get("taken", {}).get(str(int(client.site.index)))
    return None if told is None else (int(told[0]), int(told[1]))


def _received(client: SiteClient, order: Order, tensors: Tensors) -> Tensors:
    """The server's state, of which a part may have come before."""
    each, kept = client.method.sent_down(client.method.server(client.initial))
    rest = None
    try:
        sent = wire.unpack({name: tensors.pop(name) for name in order["each"]}, each)
        if order["kept"]:
            found = wire.unpack(tensors, kept)
            rest = {name: t for name, t in found.items() if not name.endswith("#mask")}
    except (ValueError, KeyError) as error:
        raise UserError(f"the server's state does not fit this site's method ({error})") from None
    return client.receive(sent, rest, order["version"])
