"""FedWeIT in whole runs: what each part may and may not touch."""

import warnings

import pytest
import torch

import fedmes
from fedmes import config
from fedmes.engines.loop import LoopEngine
from fedmes.experiment.prepare import prepare
from fedmes.methods.fedweit import FedWeIT, heaviest
from fedmes.tensors import pick, put
from helpers.engine_runs import assert_equal_runs, engines, prepared_with
from helpers.runs_of_methods import TINY

pytestmark = pytest.mark.usefixtures("unrehearsed")


class Trail:
    """A run in float64: every client's and the server's whole state after each round, before and
    after scoring."""

    def __init__(self, options, method=FedWeIT):
        prepared = prepare(config.load(None, TINY | options), {"method": method})
        self.engine = LoopEngine(prepared.method, prepared.federations, prepared.samples)
        self.method, self.rounds = prepared.method, prepared.config.rounds
        self.rows, self.scores, self.trained, self.ended = [], [], [], []
        self.servers = [self.engine.servers[0]]  # before the first round; then after each
        for g in range(len(prepared.federations[0].stream.position)):
            self.rows.append(self.engine.round(g))
            self.trained.append([dict(state) for state in self.engine.clients[0]])
            self.servers.append(self.engine.servers[0])
            self.scores.append(self.engine.evaluate(g))
            self.ended.append([dict(state) for state in self.engine.clients[0]])


@pytest.fixture(scope="module")
def trails():
    """A run with three tasks of two rounds each, made when it is first asked for; l1 so that it
    hides some parts."""
    made = {}

    def get(**options):
        key = tuple(options.items())
        if key not in made:
            given = {f"fedweit.{name}": value for name, value in options.items()}
            made[key] = Trail({"fedweit.l1": 0.01} | given)
        return made[key]

    return get


LAYERS = ["body.0.weight", "body.3.weight"]


@pytest.mark.slow
def test_what_is_decomposed(trails):
    """Hidden weights; not the head, not the biases. The server knows nothing else."""
    trail = trails()
    assert trail.method.layers == LAYERS
    expected = {f"{part}.{name}" for part in ("w", "kb") for name in LAYERS} | {"delivered"}
    assert all(set(server) == expected for server in trail.servers)


def test_property_7_the_knowledge_base_contributes_nothing_in_the_first_task(trails):
    """Alphas are exactly 0 and stay there, and so is the base itself while the task is trained;
    later neither is."""
    trail = trails()
    l1 = trail.method.options.l1

    def contribution(state, name, position):
        a = state[f"w.A.{name}"]
        return state[f"past.added.{name}"][position] - torch.where(a.abs() > l1, a, 0)

    for name in LAYERS:
        for g in (0, 1):
            assert not trail.servers[g][f"kb.{name}"].any()  # what round g began with
            for state in trail.trained[g]:
                assert not state[f"w.alpha.{name}"].any()
                assert not contribution(state, name, 0).any()
        for k in range(3):
            early, late = (trail.trained[g][k][f"w.alpha.{name}"] for g in (2, 3))
            assert (early != 0).all() and (early != late).all()
            given = contribution(trail.trained[3][k], name, 1)
            added = trail.trained[3][k][f"past.added.{name}"]
            assert given.any() and not added[2].any()
            assert torch.equal(added[0], trail.trained[1][k][f"past.added.{name}"][0])
            base = trail.servers[3][f"kb.{name}"][0]
            torch.testing.assert_close(
                given, torch.einsum("j,jab->ab", late, base), rtol=1e-12, atol=1e-15
            )


@pytest.mark.slow
@pytest.mark.parametrize(("kb", "l1"), [("previous", 0.01), ("all_previous", 1e-3)])
def test_property_7_old_tasks_change_through_b_alone(kb, l1, trails):
    """With the B of before put back, the weights and answers for the first task are what they were,
    bit for bit."""
    trail = trails(kb=kb, l1=l1)
    for k, site in enumerate(trail.engine.client_data[0]):
        then = trail.ended[1][k]
        first = trail.method.build_predictor(then, trail.servers[2], None)
        (x, _), *_ = site.test_chunks(0)
        for g in (3, 5):  # after the second and the third task
            now = trail.ended[g][k]
            later = trail.method.build_predictor(now, trail.servers[g + 1], None)
            same_b = trail.method.build_predictor(
                now | put("w.B", pick(then, "w.B")), trail.servers[g + 1], None
            )
            for name, value in pick(first, "w").items():
                assert torch.equal(pick(same_b, "w")[name][0], value[0])
                assert torch.equal(later[f"w.{name}"][0], value[0]) == (name not in LAYERS)
            was, again, moved = (
                trail.method.predict(predictor, x, site.blocks[0], torch.tensor(0), site.ctx())[
                    "acc"
                ]
                for predictor in (first, same_b, later)
            )
            assert torch.equal(was, again) and not torch.equal(was, moved)


def test_a_task_starts_from_initial_values():
    """A third of the initial B, the initial biases and head, and masks drawn anew."""
    begun = {}

    class Watched(FedWeIT):
        def begin_round(self, state, broadcast, sums, ctx):
            if bool(ctx.first):
                begun[int(ctx.client), int(ctx.position)] = state
            return super().begin_round(state, broadcast, sums, ctx)

    trail = Trail({"rounds": 1}, Watched)
    initial = {name: p.double() for name, p in trail.engine.method.net.initial.items()}
    for k in range(3):
        for position in range(3):
            state = begun[k, position]
            for name in LAYERS:
                assert torch.equal(state[f"w.A.{name}"], initial[name] / 3)
                width = float(state[f"w.m.{name}"].abs().max())
                assert 0 < width <= (3 / 8) ** 0.5
            for name in ("body.0.bias", "body.3.bias", "head.weight", "head.bias"):
                assert torch.equal(state[f"w.own.{name}"], initial[name])
                assert not torch.equal(
                    trail.trained[position][k][f"w.own.{name}"], state[f"w.own.{name}"]
                )
    masks = torch.stack([state["w.m.body.0.weight"] for state in begun.values()])
    assert len(masks) == 9 and len(masks.unique(dim=0)) == 9


def test_before_is_b_as_it_was_before_the_broadcast(trails):
    """In both rounds of a task the client's own B of the task before holds it, not the server's of
    any time."""
    trail = trails()
    for name in LAYERS:
        for k in range(3):
            own = trail.ended[1][k][f"w.B.{name}"]
            for g in (2, 3):
                assert torch.equal(trail.trained[g][k][f"before.B.{name}"], own)
            for g in (2, 3, 4):
                assert not torch.equal(trail.servers[g][f"w.{name}"], own)
            assert torch.equal(
                trail.trained[4][k][f"before.B.{name}"], trail.ended[3][k][f"w.B.{name}"]
            )


def sparse(state, name, l1):
    return torch.where(state[f"w.A.{name}"].abs() > l1, state[f"w.A.{name}"], 0)


def test_the_knowledge_base_holds_everybodys_last_part(trails):
    """kb=previous: after a task's last round the thresholded A of each client, its own included;
    else as it was."""
    trail = trails()
    for name in LAYERS:
        for g in range(6):
            kb = trail.servers[g + 1][f"kb.{name}"]
            assert kb.shape[:2] == (1, 3)
            if g % 2 == 0:
                assert torch.equal(kb, trail.servers[g][f"kb.{name}"])
                continue
            for k in range(3):
                part = sparse(trail.trained[g][k], name, 0.01)
                assert 0 < int((part == 0).sum()) < part.numel()
                assert torch.equal(kb[0, k], part)


def test_the_knowledge_base_may_hold_all_parts(trails):
    """kb=all_previous: slot [task, client], written once; the slots of tasks to come are empty."""
    trail = trails(kb="all_previous", l1=1e-3)
    for name in LAYERS:
        expected = torch.zeros_like(trail.servers[0][f"kb.{name}"])
        assert expected.shape[:2] == (3, 3)
        for g in range(6):
            if g % 2 == 1:
                for k in range(3):
                    expected[g // 2, k] = sparse(trail.trained[g][k], name, 1e-3)
            assert torch.equal(trail.servers[g + 1][f"kb.{name}"], expected)
        assert all(slot.any() for slot in expected.flatten(0, 1))
        alpha = trail.trained[5][0][f"w.alpha.{name}"]
        assert alpha.shape == (9,)
        assert (alpha[:6] != 0).all()  # a weight for each part of each earlier task


def test_a_task_leaves_its_weights_once(trails):
    """A and the sum over others' parts are one tensor, since neither changes any more: with many
    tasks, that is most of what a client holds."""
    state = trails().trained[5][0]
    left = {name.split(".")[1] for name in state if name.startswith("past.")}
    assert left == {"m", "added", "own", "done"}
    parameters = sum(state[f"w.B.{name}"].numel() for name in LAYERS)
    assert sum(t.numel() for t in pick(state, "past.added").values()) == 3 * parameters


@pytest.mark.slow
@pytest.mark.parametrize("retroactive", [False, True])
def test_earlier_masks_and_parts_move_only_if_asked(retroactive, trails):
    trail = trails(retroactive=retroactive)
    left = ("w.past.m", "w.past.A") if retroactive else ("past.m", "past.added")
    for name in LAYERS:
        for entry in (f"{part}.{name}" for part in left):
            for k in range(3):
                then, now = trail.ended[1][k][entry], trail.ended[3][k][entry]
                assert torch.equal(then[0], now[0]) != retroactive
                assert then[0].any() and now[1].any()
                # tasks to come stay empty, whatever Adam does
                assert not then[1:].any() and not now[2:].any()


class Diverged(FedWeIT):
    """All that client 1 trains becomes NaN in its second task: what it would send, and the masks
    that choose it."""

    def step(self, state, broadcast, batch, mem, ctx):
        new = super().step(state, broadcast, batch, mem, ctx)
        bad = (ctx.client == 1) & (ctx.position == 1)
        return {name: torch.where(bad, torch.nan, t) for name, t in new.items()}


class Spoiled(FedWeIT):
    """Client 1's B arrives as NaN in its second task; its masks and its A are fine."""

    def upload(self, state, ctx):
        bad = (ctx.client == 1) & (ctx.position == 1)
        up = super().upload(state, ctx)
        return up | {
            n: torch.where(bad, torch.nan, t)
            for n, t in up.items()
            if n.startswith("w.") and "#" not in n
        }


@pytest.mark.parametrize("broken", [Diverged, Spoiled])
def test_who_sends_nan_is_left_out(broken):
    """Named in the books; B is the mean of the others, and the knowledge base keeps what the client
    gave before."""
    trail = Trail({"tasks": 2, "rounds": 1}, broken)
    assert [[row.left_out for row in rows] for rows in trail.rows] == [
        [False] * 3,
        [False, True, False],
    ]
    before, after = trail.servers[1:]
    assert after["delivered"].tolist() == [2, 1, 2]
    for name in LAYERS:
        assert torch.equal(after[f"kb.{name}"][0, 1], before[f"kb.{name}"][0, 1])
        for k in (0, 2):
            assert torch.equal(after[f"kb.{name}"][0, k], sparse(trail.trained[1][k], name, 1e-3))
        total, count = torch.zeros_like(after[f"w.{name}"]), torch.zeros(8, 1)
        for k in (0, 2):
            state = trail.trained[1][k]
            kept = heaviest(state[f"w.m.{name}"], 0.3)[:, None]
            total, count = total + torch.where(kept, state[f"w.B.{name}"], 0), count + kept
        assert count.sum() == 10  # five of eight channels each
        torch.testing.assert_close(
            after[f"w.{name}"], total / count.clamp(min=1), rtol=1e-12, atol=0
        )


@pytest.mark.parametrize("broken", [Diverged, Spoiled])
def test_who_sends_nan_is_left_out_of_a_stack_too(broken):
    """Both engines leave out the same uploads and end with the same server."""
    small = {"seeds": [0], "epochs": 1, "model.width": 4, "tasks": 2, "rounds": 1}
    loop, stacked = engines(prepared_with(small, own={"method": broken}))
    for g in range(2):
        mine, theirs = (
            [(r.client, r.left_out, r.up_bytes, r.down_bytes) for r in e.round(g)]
            for e in (stacked, loop)
        )
        assert mine == theirs
        assert [left_out for _, left_out, *_ in mine] == [False, g == 1, False, False]
        loop.evaluate(g), stacked.evaluate(g)
    for name, value in loop.servers[0].items():
        torch.testing.assert_close(stacked.server_state(0)[name], value, rtol=1e-8, atol=1e-8)
    assert loop.servers[0]["delivered"].tolist() == [2, 1, 2, 2]


def test_there_must_be_a_hidden_layer():
    with pytest.raises(fedmes.UserError) as refused:
        prepare(config.load(None, {"method": "fedweit", "model": "linear"}))
    assert str(refused.value) == "method fedweit: model linear has no hidden layer to decompose"


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"kb": "all_previous"}, {"retroactive": True}], ids=str)
def test_options_are_equal_in_both_engines(options):
    """Whole staggered runs in float64: one client without a first round, one that misses a task."""
    small = {
        "method": "fedweit",
        "seeds": [0],
        "epochs": 1,
        "stream.frac": 5,
        "model.width": 5,
        "fedweit.l1": 0.02,
    }
    given = {f"fedweit.{name}": value for name, value in options.items()}
    assert_equal_runs(prepared_with(small | given, staggered=True))


@pytest.mark.parametrize(
    ("method", "scope", "said"),
    [("fedweit", "all", 1), ("fedweit", "seen", 0), ("fedavg", "all", 0)],
)
def test_an_option_that_changes_nothing_is_said(method, scope, said):
    """A head of FedWeIT is about its task's block, whatever the softmax of others is about."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        prepare(
            config.load(None, {"method": method, "train.scope": scope, "benchmark": "synthetic"})
        )
    texts = [str(warning.message) for warning in caught]
    assert texts == ["train.scope: method fedweit ignores it, so all changes nothing"] * said
