"""A site does not do what its owner does not allow, whatever the server asks for."""

import json
import tomllib

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from flwr.app import Context, Message, RecordDict

from fedmes.deployment import app, audit
from fedmes.deployment.policy import Policy
from fedmes.deployment.server import serve
from fedmes.engines.flower import messages
from fedmes.errors import UserError
from helpers import growing, inprocess

pytestmark = pytest.mark.flower


@pytest.fixture
def place(tmp_path):
    """A site of ten samples, five of each class, with a policy of defaults."""
    labels = np.repeat(["c0", "c1"], 6)
    x = np.random.RandomState(0).randn(12, growing.WIDTH).astype(np.float32)
    split = np.arange(12) % 6 == 0
    zeros = np.zeros(12, int)
    np.savez(tmp_path / "own.npz", x=x, y=labels, client=zeros, task=zeros, split=split.astype(int))
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


def describe(folder, policy=""):
    data = json.dumps(str(folder.parent / "own.npz"))
    text = f'name = "berlin"\ndata = {data}\n[policy]\n{policy}\n'
    (folder / "site.toml").write_text(text)


def asked(folder, kind="query", change=None, tensors=None, **order):
    """What the site answers: its words, and whether it refuses."""
    inprocess.Grid(app.client, [])  # as in a process of Flower's
    known = growing.federation("fedavg", ["berlin"], ["c0", "c1"]).as_dict()
    for key, value in (change or {}).items():
        section, _, name = key.rpartition(".")
        (known[section] if section else known)[name] = value
    order = {"config": known, "seed": 0, "frozen": None, **order}
    content = messages.records(json.dumps(order), tensors or {})
    message = Message(content, message_type=kind, dst_node_id=100)
    message.metadata.__dict__["_message_id"] = "1"
    context = Context(1, 100, {"site": str(folder)}, RecordDict(), {})
    text, refused = messages.text_of(app.client(message, context))
    return json.loads(text), refused


def refused(folder, **order):
    answer, was_refused = asked(folder, **order)
    assert was_refused, answer
    assert [path for path in folder.iterdir() if path.is_dir()] == []  # nothing was done
    return answer["error"]


def test_what_the_defaults_allow(place):
    describe(place)
    answer, was_refused = asked(place)
    assert (answer["samples"], was_refused) == (10, False)


@pytest.mark.parametrize(
    ("line", "change", "says"),
    [
        ("", {"epochs": 101}, "max_epochs = 100: epochs in a round: 101"),
        ("", {"rounds": 1001}, "max_rounds = 1000: rounds of a task: 1001"),
        ("", {"batch": 1}, "min_batch = 2: mini-batches: 1"),
        ('methods = ["fedmes"]', {}, 'methods = ["fedmes"]: fedavg is asked for'),
        ('networks = ["cnn2"]', {"model.name": "mlp"}, 'networks = ["cnn2"]: mlp is asked for'),
        ("max_clip = 1.0", {}, "max_clip = 1.0: privacy.clip is off"),
        ("max_clip = 1.0", {"privacy.clip": 2.0}, "max_clip = 1.0: privacy.clip is 2.0"),
        (
            "max_epsilon = 4.0",
            {"privacy.clip": 1.0, "privacy.epsilon": 8.0},
            "max_epsilon = 4.0: privacy.epsilon is 8.0",
        ),
        (
            "max_epsilon = 4.0",
            {"privacy.clip": 1.0, "privacy.epsilon": 4.0, "privacy.delta": 0.5},
            "max_delta = 1e-05: privacy.delta: 0.5",
        ),
        (
            "secure_aggregation = true",
            {},
            "secure_aggregation = true: privacy.secure_aggregation is off",
        ),
        ("min_samples = 11", {}, "min_samples = 11: task 1: training samples: 10"),
        ("min_per_class = 6", {}, "min_per_class = 6: task 1: training samples of a class: 5"),
    ],
)
def test_a_refusal_names_the_line_of_the_policy(line, change, says, place):
    describe(place, line)
    assert refused(place, change=change) == f"policy of the site, {says}"


def test_sizes_and_further_federations(place):
    describe(place, "max_message_mb = 1")
    large = {"w": torch.zeros(300_000)}
    says = "policy of the site, max_message_mb = 1: MB in a message: 1.2"
    assert refused(place, tensors=large).startswith(says)
    describe(place, "max_disk_mb = 1")
    (place / "note").write_bytes(bytes(2_000_000))
    assert "max_disk_mb = 1: MB in this folder: 2.0" in refused(place)
    (place / "note").unlink()
    describe(place)
    (place / "first" / "checkpoint").mkdir(parents=True)
    answer, was_refused = asked(place, change={"federation.name": "second"})
    assert was_refused and "max_federations = 1: federations, with this one: 2" in answer["error"]
    assert not asked(place, change={"federation.name": "first"})[1]


@pytest.mark.usefixtures("unrehearsed")
def test_the_server_cannot_load_code(place, tmp_path):
    ran = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(ran)!r}, 'w')\nfrom fedmes.methods.fedavg import FedAvg as X\n")
    describe(place)
    for kind in ("method", "model.name"):
        assert "is asked for" in refused(place, change={kind: f"{evil}:X"})
    assert not ran.exists()
    describe(place, f'methods = ["{evil}:X"]')
    assert not asked(place, change={"method": f"{evil}:X"})[1]
    assert ran.exists()


def test_the_server_cannot_choose_files_or_folders(place, tmp_path):
    describe(place)
    for name in ("../other", "/tmp/other", ".."):
        says = "the server's configuration is not one of this version"
        assert refused(place, change={"federation.name": name}) == says
    assert "names files of this site" in refused(place, change={"data.path": str(tmp_path)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own.npz", "site"]


@pytest.mark.usefixtures("clock")
@pytest.mark.slow
def test_a_broadcast_that_is_not_finite_or_far_off_is_refused(place):
    """And the last good predictor is kept."""
    describe(place, "max_growth = 10.0")
    agreed = growing.federation("fedavg", ["berlin"], ["c0", "c1"])
    grid = inprocess.at_sites([place])
    orders = []
    grid.away = lambda k, message: orders.append(message)
    serve(grid, agreed, place.parent / "server")
    predictor = (place / "client" / "model.safetensors").read_bytes()
    state = (place / "client" / "checkpoint").stat().st_mtime_ns
    (last,) = [m for m in orders if m.metadata.message_type == "evaluate"]
    order, tensors = messages.order_of(last), messages.tensors_of(last)
    for factor, says in (
        (float("nan"), "a broadcast that is not finite; the last good predictor is kept"),
        (float("inf"), "a broadcast that is not finite; the last good predictor is kept"),
        (11.0, "policy of the site, max_growth = 10.0: times the norm of the last good"),
    ):
        sent = {name: t * factor for name, t in tensors.items()}
        for kind in ("train", "evaluate"):
            later = order | {"round": order["round"] + 1}
            answer, was_refused = asked(place, kind, tensors=sent, **later)
            assert was_refused and answer["error"].startswith(says)
    assert (place / "client" / "model.safetensors").read_bytes() == predictor
    assert (place / "client" / "checkpoint").stat().st_mtime_ns == state
    sent = {name: t * 1.5 for name, t in tensors.items()}
    assert not asked(place, "evaluate", tensors=sent, **order)[1]
    reasons = [entry.get("reason", "") for entry in audit.read(place).entries]
    assert sum("not finite" in reason for reason in reasons) == 4


def test_a_policy_in_a_file():
    text = Policy(max_clip=2.0, methods=["fedavg"]).text()
    assert Policy.of(tomllib.loads(text), "site.toml") == Policy(max_clip=2.0, methods=["fedavg"])
    lines = text.splitlines()
    assert lines[:3] == [
        "[policy]",
        "# methods that may run; one in a Python file, /path/file.py:Name, by this name",
        'methods = ["fedavg"]',
    ]
    assert sum(line.startswith("# ") for line in lines) >= len(Policy.model_fields)
    for wrong, says in (
        ({"max_epoch": 3}, r"site.toml: policy.max_epoch: Extra inputs"),
        ({"max_epochs": 0}, r"site.toml: policy.max_epochs: Input should be greater"),
        ({"methods": "fedavg"}, r"site.toml: policy.methods: Input should be a valid list"),
    ):
        with pytest.raises(UserError, match=says):
            Policy.of({"policy": wrong}, "site.toml")
