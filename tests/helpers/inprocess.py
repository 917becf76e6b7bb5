"""Flower's grid without processes: messages go to the client app and back, through their bytes, in
this process; and a clock for whoever waits for them."""

from cryptography.hazmat.primitives import serialization
from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedmes.deployment.app import client as site_app
from fedmes.deployment.app import main
from fedmes.engines.flower.client import client_app
from fedmes.experiment.simulation import simulated_client, simulated_name


class Clock:
    """Stands in for `time`: nobody waits, so nothing depends on how fast the machine is."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        self.now += 0.001
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Grid:
    def __init__(self, app, nodes):
        """`nodes`: what each SuperNode was started with."""
        # as in a process of Flower's
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.app = app
        self.contexts = {
            100 + k: Context(
                run_id=1, node_id=100 + k, node_config=node, state=RecordDict(), run_config={}
            )
            for k, node in enumerate(nodes)
        }
        self.away = lambda node, message: False  # who does not answer
        self.late = lambda node, message: False  # whose answer comes with `deliver`
        self.gone = lambda: ()  # who is not even connected
        self.starts = lambda k: 1  # how often its SuperNode has been started
        self.keys = {}  # public keys that SuperNodes have shown, in PEM
        self.forged = lambda node, kind, content: content  # what somebody makes of an answer
        self.replies, self.held, self.received, self.sent = {}, {}, [], 0

    def get_node_ids(self):
        gone = {100 + k for k in self.gone()}
        return [node for node in self.contexts if node not in gone]

    def get_nodes(self):
        return [
            NodeInfo(
                node_id=node,
                last_activated_at=str(self.starts(node - 100)),
                public_key=self.keys.get(node - 100, b""),
            )
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.sent += 1
            ids.append(str(self.sent))
            message.metadata.__dict__["_message_id"] = ids[-1]
            node = message.metadata.dst_node_id
            if not self.away(node - 100, message):
                reply = self.app(through_bytes(message), self.contexts[node])
                reply.content = self.forged(
                    node - 100, message.metadata.message_type, reply.content
                )
                there = self.held if self.late(node - 100, message) else self.replies
                there[ids[-1]] = through_bytes(reply)
        return ids

    def deliver(self):
        """What was late arrives."""
        self.replies |= self.held
        self.held = {}

    def pull_messages(self, ids):
        there = [self.replies.pop(i) for i in list(ids) if i in self.replies]
        self.received += there
        return there


def through_bytes(message):
    return message_from_proto(
        type(message_to_proto(message)).FromString(message_to_proto(message).SerializeToString())
    )


def simulated(directory, clients):
    def client(config, s, node):
        return simulated_client(directory, config, s, node)

    nodes = [{"partition-id": k, "num-partitions": clients} for k in range(clients)]
    return Grid(client_app(simulated_name, client), nodes)


def at_sites(folders):
    grid = Grid(site_app, [{"site": str(folder)} for folder in folders])
    for k, folder in enumerate(folders):
        if (folder / "key.pub").is_file():
            grid.keys[k] = _public_key(folder / "key.pub")
    return grid


def _public_key(path):
    """As Flower passes it on."""
    key = serialization.load_ssh_public_key(path.read_bytes())
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


class Federation:
    """Stands in for Flower's processes of `fedmes federation up`: all of them in this one."""

    def __init__(self, folder, sites, meanwhile):
        self.sites = sites
        self.meanwhile = meanwhile
        self.log = folder / "log"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, **given):
        self.given = given

    def wait(self):
        context = Context(1, 1, node_config={}, state=RecordDict(), run_config=self.given)
        main(at_sites(self.sites), context)
        self.meanwhile()
        return "completed"
