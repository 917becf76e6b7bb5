"""One site answers with nonsense: it is left out with the reason, and nobody else notices."""

import copy
import json
import math
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo

from fedmes import config
from fedmes.engines.flower.engine import FlowerEngine
from fedmes.experiment import runner
from fedmes.experiment.prepare import prepare
from fedmes.results import run_dir
from helpers import inprocess

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock")]

TINY = {
    "benchmark": "synthetic", "clients": 3, "tasks": 2, "rounds": 1, "epochs": 1, "batch": 8, "model.name": "linear",
    "memory.size": 4, "synthetic.classes": 2, "synthetic.train": 12, "synthetic.test": 4, "data.image_size": 4,
    "server.timeout": 5.0, "engine.name": "flower", "method": "fedavg",
}  # fmt: skip
SAMPLES = 24  # that each client trains on in its first round
HAS = 48  # and has in all


# --- forgeries ------------------------------------------------------------------------------------


class _Gone:
    def __repr__(self):
        return "gone"  # part of a test's name, which all workers must agree on


GONE = _Gone()


def said(place, value):
    """One of the facts, such as `work.samples`, says something else or is gone."""

    def forge(content):
        facts = json.loads(content["fedmes"]["json"])
        *path, last = place.split(".")
        inner = facts
        for name in path:
            inner = inner[name]
        if value is GONE:
            del inner[last]
        else:
            inner[last] = value
        return text(json.dumps(facts))(content)

    return forge


def text(written, key="json"):
    def forge(content):
        return RecordDict({"tensors": content["tensors"], "fedmes": ConfigRecord({key: written})})

    return forge


def without(record):
    def forge(content):
        return RecordDict({name: each for name, each in content.items() if name != record})

    return forge


def sent(change):
    """The first tensor is another one, by a function of its array."""

    def forge(content):
        arrays = dict(content["tensors"])
        name = next(iter(arrays))
        arrays[name] = change(arrays[name].numpy())
        return RecordDict({"tensors": ArrayRecord(arrays), "fedmes": content["fedmes"]})

    return forge


def renamed(content):
    arrays = {f"{name}x": array for name, array in content["tensors"].items()}
    return RecordDict({"tensors": ArrayRecord(arrays), "fedmes": content["fedmes"]})


def one_more(content):
    arrays = dict(content["tensors"]) | {"w.more": Array(np.zeros(2, np.float32))}
    return RecordDict({"tensors": ArrayRecord(arrays), "fedmes": content["fedmes"]})


def nothing_sent(content):
    return RecordDict({"tensors": ArrayRecord({}), "fedmes": content["fedmes"]})


def raw(data, dtype="float32", shape=(2,), stype="numpy.ndarray"):
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def _numpy_file(header):
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


HUGE = _numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }")
PICKLED = _numpy_file("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + pickle.dumps(
    [{}]
)


NAN, INF = float("nan"), float("inf")
DEEP = "[" * 100_000
# none of them counts anything
COUNTS = (NAN, INF, 1e39, 1e30, -1e9, -1, 10**30, 1.5, "x", None, True, [], {})

HELLOS = {
    **{f"client {value!r}": said("client", value) for value in (*COUNTS, 3, 99, GONE)},
    **{f"samples {value!r}": said("samples", value) for value in (*COUNTS, GONE)},
    **{f"version {value!r}": said("version", value) for value in ("x", 1.5, -2, 10**30, GONE)},
    **{f"waiting {value!r}": said("waiting", value) for value in (1, "yes", None, GONE)},
    **{
        f"name {value!r}": said("name", value)
        for value in ("", " ", "a\nb", "\x1b[31m", "n" * 200, 1, None, GONE)
    },
    "one fact more": said("colour", "blue"),
    "not JSON": text("{"),
}
TRAININGS = {
    **{
        f"samples {value!r}": said("work.samples", value)
        for value in (*COUNTS, HAS + 1, 10**9, GONE)
    },
    **{f"position {value!r}": said("work.position", value) for value in (*COUNTS, 2, 10**9, GONE)},
    **{f"index {value!r}": said("work.index", value) for value in (1, -1, "x", GONE)},
    **{
        f"seconds {value!r}": said("work.seconds", value)
        for value in ("x", NAN, INF, -1, None, GONE)
    },
    **{f"version {value!r}": said("version", value) for value in ("x", 1.5, -2, 10**30, GONE)},
    **{f"waiting {value!r}": said("waiting", value) for value in (1, "yes", None, GONE)},
    **{f"ended {value!r}": said("ended", value) for value in (0, "no", None, GONE)},
    "work is a list": said("work", []),
    "a report that is a list": said("work.report", [1.0]),
    "no report": said("work.report", GONE),
    "a report of other columns": said("work.report", {"client": 0, "seed": 99}),
    "a report of a formula": said("work.report", {"=cmd|calc": 1.0}),
    "a report of text": said("work.report", {"loss": "=1+1"}),
    "a report of nothing": said("work.report", {"loss": None}),
    "a report of lists": said("work.report", {"loss": [1.0]}),
    "one fact more": said("client", 0),
    "an error besides": said("error", "none"),
    "JSON list": text("[]"),
    "JSON null": text("null"),
    "JSON empty": text("{}"),
    "not JSON": text("{"),
    "no text": text(""),
    "deep JSON": text(DEEP),
    "a number for text": text(7),
    "bytes for text": text(b"{}"),
    "another key": text("{}", key="content"),
    "a refusal without a form": text("[]", key="refusal"),
    "no facts": without("fedmes"),
    "no tensors": without("tensors"),
    "strings": sent(lambda a: Array(np.array(["x"] * 4))),
    "pickled": sent(lambda a: raw(pickle.dumps([1.0, 2.0]))),
    "pickled in numpy's form": sent(lambda a: raw(PICKLED)),
    "of another kind": sent(lambda a: raw(b"1", stype="torch.Tensor")),
    "cut off": sent(lambda a: raw(Array(a).data[:-8])),
    "a header that promises too much": sent(lambda a: raw(HUGE)),
}
UPLOADS = {
    "NaN": (sent(lambda a: Array(a * np.float32(NAN))), "not finite"),
    "infinite": (sent(lambda a: Array(a * np.float32(INF))), "not finite"),
    "absurd": (sent(lambda a: Array(a + np.float32(1e6))), "absurd norm"),
    "whose square is infinite": (sent(lambda a: Array(a + np.float32(1e30))), "absurd norm"),
    "another shape": (sent(lambda a: Array(a[None])), "wrong names or shapes"),
    "another type": (sent(lambda a: Array(a.astype(np.float64))), "wrong names or shapes"),
    "other names": (renamed, "wrong names or shapes"),
    "one more": (one_more, "wrong names or shapes"),
    "none at all": (nothing_sent, "wrong names or shapes"),
}
SCORES = {
    **{f"position {value!r}": said("position", value) for value in (*COUNTS, 1, 99, GONE)},
    **{
        f"acc {value!r}": said("accuracy", {"acc": [[value, 0.5]]})
        for value in (1e9, -0.1, INF, "x", None, True)
    },
    "text": said("accuracy", "good"),
    "gone": said("accuracy", GONE),
    "empty": said("accuracy", {}),
    "a list": said("accuracy", [[0.5, 0.5]]),
    "another kind": said("accuracy", {"acc": [[0.5, 0.5]], "best": [[1.0, 1.0]]}),
    "without acc": said("accuracy", {"nolip": [[0.5, 0.5]]}),
    "too many tasks": said("accuracy", {"acc": [[0.5, 0.5]] * 2}),
    "too few tasks": said("accuracy", {"acc": []}),
    "three of them": said("accuracy", {"acc": [[0.5, 0.5, 0.5]]}),
    "not JSON": text("{"),
}


# --- an engine whose sites say what they once said ------------------------------------------------


class Replay:
    """A grid with the answers of an honest round, of which client 1's may be forged."""

    def __init__(self, honest, forge=None, kind=None):
        self.honest, self.forge, self.kind, self.replies = honest, forge, kind, {}

    def get_node_ids(self):
        return [100, 101, 102]

    def get_nodes(self):
        return [NodeInfo(node_id=node, last_activated_at="1") for node in self.get_node_ids()]

    def push_messages(self, messages):
        for message in messages:
            key = message.metadata.dst_node_id - 100, message.metadata.message_type
            message.metadata.__dict__["_message_id"] = str(key)
            content = copy.deepcopy(self.honest[key])
            if key == (1, self.kind):
                content = self.forge(content)
            self.replies[str(key)] = inprocess.through_bytes(Message(content, reply_to=message))
            yield str(key)

    def pull_messages(self, ids):
        return [self.replies.pop(i) for i in ids]


@pytest.fixture(scope="module")
def prepared():
    return prepare(config.load(None, TINY))


@pytest.fixture(scope="module")
def honest(prepared, tmp_path_factory):
    """What three sites answer in the first round, by client and kind of message."""
    grid = inprocess.simulated(tmp_path_factory.mktemp("honest"), 3)
    found = {}

    def keep(k, kind, content):
        found[k, kind] = content
        return content

    grid.forged = keep
    engine = started(prepared, grid)
    engine.round(0)
    engine.evaluate(0)
    facts = json.loads(found[1, "train"]["fedmes"]["json"])
    assert (
        facts["work"]["samples"],
        json.loads(found[1, "query"]["fedmes"]["json"])["samples"],
    ) == (SAMPLES, HAS)
    return found


def started(prepared, grid):
    return FlowerEngine(
        prepared.method, [f.initial for f in prepared.federations], prepared.config, grid
    )


@pytest.fixture(scope="module")
def without_client_1(prepared, honest):
    """The server's state after a round in which client 1 had nothing to do."""
    engine = started(prepared, Replay(honest, said("work", None), "train"))
    engine.round(0)
    return engine.servers[0]


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(t, other[name]) for name, t in one.items()
    )


def test_honest_answers_are_taken(prepared, honest, without_client_1):
    engine = started(prepared, Replay(honest))
    assert [(row.client, row.reason) for row in engine.round(0)] == [(0, ""), (1, ""), (2, "")]
    assert [score.client for score in engine.evaluate(0)] == [0, 1, 2]
    assert engine.sites_left_out == {} and not engine.notes
    assert not same(engine.servers[0], without_client_1)


@pytest.mark.parametrize("forgery", TRAININGS)
def test_an_answer_to_a_round(prepared, honest, without_client_1, forgery):
    engine = started(prepared, Replay(honest, TRAININGS[forgery], "train"))
    assert [(row.client, row.reason) for row in engine.round(0)] == [(0, ""), (2, "")]
    assert same(engine.servers[0], without_client_1)
    assert [score.client for score in engine.evaluate(0)] == [0, 2]
    (note,) = engine.notes
    assert (
        note.startswith("1: unreadable answer (")
        and note.endswith(" (1 times)")
        and note.isprintable()
    )
    assert engine.sites_left_out == {"1": note[3 : -len(" (1 times)")]}


@pytest.mark.parametrize("forgery", UPLOADS)
def test_an_upload(prepared, honest, without_client_1, forgery):
    forge, reason = UPLOADS[forgery]
    engine = started(prepared, Replay(honest, forge, "train"))
    assert [(row.client, row.reason) for row in engine.round(0)] == [(0, ""), (1, reason), (2, "")]
    assert same(engine.servers[0], without_client_1)


@pytest.mark.parametrize("forgery", SCORES)
def test_a_score(prepared, honest, forgery):
    engine = started(prepared, Replay(honest, SCORES[forgery], "evaluate"))
    assert len(engine.round(0)) == 3
    assert [score.client for score in engine.evaluate(0)] == [0, 2]
    assert list(engine.sites_left_out) == ["1"]


@pytest.mark.parametrize("forgery", HELLOS)
def test_a_hello(prepared, honest, forgery, monkeypatch):
    monkeypatch.setattr("fedmes.engines.flower.engine.GATHERING", 0.0)
    engine = started(prepared, Replay(honest, HELLOS[forgery], "query"))
    assert sorted(engine.nodes) == [0, 2]
    assert "unreadable answer" in engine.sites_left_out["node 101"]
    assert [row.client for row in engine.round(0)] == [0, 2]


def test_what_is_not_a_number_in_a_report_or_an_accuracy_is_taken_as_such(prepared, honest):
    """Honest clients diverge, and have tasks that they never met."""
    engine = started(
        prepared, Replay(honest, said("work.report", {"loss": NAN, "distance": INF}), "train")
    )
    assert math.isnan(engine.round(0)[1].report["loss"])
    engine = started(prepared, Replay(honest, said("accuracy", {"acc": [[NAN, NAN]]}), "evaluate"))
    engine.round(0)
    assert math.isnan(engine.evaluate(0)[1].accuracy["acc"][0][0])


def test_a_site_may_have_got_more_samples(prepared, honest):
    """It is asked again how many it has before its answer counts as none."""
    grid = Replay(honest, said("work.samples", HAS + 2), "train")
    engine = started(prepared, grid)
    grid.honest = honest | {(1, "query"): said("samples", HAS + 2)(honest[1, "query"])}
    assert [(row.client, row.reason) for row in engine.round(0)] == [(0, ""), (1, ""), (2, "")]


def test_words_of_a_refusal_are_shown_in_one_line(prepared, honest):
    words = json.dumps({"name": "1", "error": "\x1b[2J" + "no\n" * 1000})
    engine = started(prepared, Replay(honest, text(words, key="refusal"), "train"))
    engine.round(0)
    (reason,) = engine.sites_left_out.values()
    assert reason.isprintable() and reason.startswith(" [2Jno no") and len(reason) == 200


# --- a whole run ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_with_a_liar_is_a_run_without_it(prepared, tmp_path):
    """Another forgery in each round, and what is left is what the honest two make of it; also after
    a stop."""

    def run(name, prepare_grid, **how):
        grid = inprocess.simulated(tmp_path / name, 3)
        prepare_grid(grid)
        return runner.execute(prepare(options), tmp_path / name, grid=grid, **how)

    options = config.load(None, TINY | {"rounds": 3, "method": "fedmes"})
    forgeries = iter(
        [said("work.samples", NAN), text(DEEP), said("work.position", 10**9), without("fedmes")] * 2
    )

    def lie(grid):
        grid.forged = lambda k, kind, content: (
            next(forgeries)(content) if (k, kind) == (1, "train") else content
        )

    def stay_away(grid):
        grid.away = lambda k, message: k == 1 and message.metadata.message_type == "train"

    want = run("away", stay_away)
    got = run("liar", lie)
    for kind, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[kind])
    models = [
        (tmp_path / name / "seed0/global.safetensors").read_bytes() for name in ("away", "liar")
    ]
    assert models[0] == models[1]
    assert run_dir.load(tmp_path / "liar").sites_left_out.keys() == {"1"}
