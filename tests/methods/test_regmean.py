"""RegMean's merge by worked examples, and LoRM's turns. The oracle has whole runs of the first."""

import pytest
import torch
from torch import nn

from fedmes import config
from fedmes.engines import wire
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.engines.summed import sums_are_enough
from fedmes.experiment.prepare import prepare
from fedmes.models.adapters import LowRank
from fedmes.models.functional import Net
from fedmes.models.gram import grams
from fedmes.models.network import Network
from fedmes.tensors import pick, put, stacked, symmetric, upper
from helpers.runs_of_methods import TINY, Run, assert_same, moved

pytestmark = pytest.mark.usefixtures("unrehearsed")


def test_a_client_alone_is_merged_to_its_own_weights():
    run = Run({"method": "regmean", "clients": 1, "tasks": 1, "stream.frac": 30})
    assert moved(run) > 0.01
    for server, (client,) in zip(run.servers, run.clients, strict=True):
        assert_same(server, client, 1e-10)


def merged(weights, inputs, alpha, start=0.0):
    """The layer [C, D] on the server after clients with these weights and inputs have sent; without
    a bias it is all there is to learn."""
    chosen = TINY | {"method": "regmean", "model": "linear", "regmean.alpha": alpha}
    del chosen["model.width"]
    method = prepare(config.load(None, chosen)).method
    layer = method.net.initial["head.weight"].double()
    whole = torch.full_like(layer, start)
    broadcast = put("w", {"head.weight": whole, "head.bias": layer[:, 0]})
    ctx = type("", (), {"samples": torch.tensor(1.0, dtype=torch.float64)})
    uploads = []
    for w, x in zip(weights, inputs, strict=True):
        own = whole.clone()
        own[:2, : x.shape[1]] = w
        wide = nn.functional.pad(x, (0, layer.shape[1] - x.shape[1]))
        state = put("w", {"head.weight": own, "head.bias": layer[:, 0]})
        state["gram.head.weight"] = upper(method.scaled(wide.T @ wide))
        uploads.append(method.upload(state | method.end_round(state, broadcast, ctx), ctx))
    present = torch.ones(len(uploads), dtype=torch.bool)
    new = method.aggregate(broadcast, stacked(uploads), present, present.double())
    assert torch.equal(new["w.head.bias"], layer[:, 0])
    return new["w.head.weight"]


@pytest.fixture
def regressions():
    """Inputs and answers of three clients, each of which sees the inputs in another light."""
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [drawn(20 + 9 * k, 5) @ drawn(5, 5) for k in range(3)], [
        drawn(20 + 9 * k, 2) for k in range(3)
    ]


def test_of_linear_regressions_it_is_the_one_on_all_samples(regressions):
    inputs, answers = regressions
    apart = [torch.linalg.lstsq(x, y).solution.T for x, y in zip(*regressions, strict=True)]
    joint = torch.linalg.lstsq(torch.cat(inputs), torch.cat(answers)).solution.T
    found = merged(apart, inputs, alpha=1.0, start=0.3)[:2, :5]
    torch.testing.assert_close(found, joint, rtol=1e-4, atol=1e-5)
    assert float((sum(apart) / 3 - joint).abs().max()) > 0.1  # the mean is another
    assert float((merged(apart, inputs, alpha=0.5)[:2, :5] - joint).abs().max()) > 0.01


def test_clients_who_agree_are_not_changed(regressions):
    w = torch.arange(10, dtype=torch.float64).reshape(2, 5)
    for alpha in (0.0, 0.9, 1.0):
        found = merged([w] * 3, regressions[0], alpha, start=-1.0)
        torch.testing.assert_close(found[:2, :5], w, rtol=0, atol=1e-6)
        # what nobody has an input for stays, here, as it was
        assert (found[2:] == -1).all() and (found[:, 5:] == -1).all()


def test_without_products_each_input_counts_by_its_squares():
    weights = [torch.tensor([[1.0, 4.0], [0, 0]]).double(), torch.tensor([[2.0, 8.0], [0, 0]])]
    inputs = [torch.tensor([[1.0, 1.0], [0, 1]]).double(), torch.tensor([[3.0, 1.0]]).double()]
    found = merged(weights, inputs, alpha=0.0)[0, :2]
    # squares of the first input: 1 and 9; of the second: 2 and 1
    expected = torch.tensor([(1 + 9 * 2) / 10, (2 * 4 + 8) / 3]).double()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


# --- LoRM -----------------------------------------------------------------------------------------


class Adapted(Network):
    """A frozen layer and its adapter; the front, the layer and the head are linear."""

    def __init__(self, shape, classes):
        super().__init__()
        self.layer = LowRank(nn.Linear(shape[0] * shape[1] * shape[2], 6), 2)
        self.head = nn.Linear(6, classes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # what is frozen must not depend on the seed
            self.layer.layer.reset_parameters()

    def features(self, x):
        return self.layer(x.flatten(1)).tanh()


UP, DOWN = "layer.up.weight", "layer.down.weight"


@pytest.fixture(scope="module")
def adapted():
    options = {"method": "regmean", "model": "own", "regmean.alpha": 1.0, "tasks": 1, "rounds": 3}
    options = {name: value for name, value in (TINY | options).items() if name != "model.width"}
    return prepare(config.load(None, options), {"model": Adapted})


def test_factors_are_trained_and_merged_in_turn(adapted):
    """In each round one of them moves, and the adapted layer becomes the one that answers, in all,
    as the clients' layers do: by numpy's least squares."""
    engine = LoopEngine(adapted.method, adapted.federations, adapted.samples)
    for g, (still, moving) in enumerate([(DOWN, UP), (UP, DOWN), (DOWN, UP)]):
        before = pick(engine.servers[0], "w")
        engine.round(g)
        after = pick(engine.servers[0], "w")
        assert torch.equal(before[still], after[still])
        assert not torch.equal(before[moving], after[moving])
        rows, answers = [], []
        for data, state in zip(engine.client_data[0], engine.clients[0], strict=True):
            assert torch.equal(state[f"w.{still}"], before[still])
            x = torch.cat([chunk.x for chunk in data.chunks(data.plan.round(g).samples, 0)])
            given = x.flatten(1) @ (
                before[DOWN].T if moving == UP else torch.eye(x[0].numel()).double()
            )
            rows.append(given)
            answers.append(given @ state[f"w.{moving}"].T)
        joint = torch.linalg.lstsq(torch.cat(rows), torch.cat(answers), driver="gelsd").solution.T
        fitted = torch.cat(rows) @ after[moving].T
        torch.testing.assert_close(fitted, torch.cat(rows) @ joint.T, rtol=1e-4, atol=1e-5)


def test_only_the_factor_that_was_trained_is_sent(adapted):
    engine = LoopEngine(adapted.method, adapted.federations, adapted.samples)
    net = adapted.method.net
    for g, (factor, inputs) in enumerate([(UP, 2), (DOWN, net.initial[DOWN].shape[1])]):
        row = engine.round(g)[0]
        others = sum(p.numel() for n, p in net.initial.items() if n not in (UP, DOWN))
        values = others + 6 * 7 // 2 + 1 + net.initial[factor].numel() + inputs * (inputs + 1) // 2
        assert row.up_bytes == 8 * values + 4  # a bit for each part of each factor, in bytes
        assert row.down_bytes == 8 * net.parameter_count + 8
    upload = adapted.method.upload(engine.clients[0][0], engine.client_data[0][0].ctx())
    assert int(wire.size(upload)) == row.up_bytes
    assert sums_are_enough(adapted.method, engine.servers[0], upload)


def test_both_engines_take_the_same_turns(adapted):
    loop = LoopEngine(adapted.method, adapted.federations, adapted.samples)
    together = StackedEngine(adapted.method, adapted.federations, adapted.samples, 99, False)
    for g in range(3):
        loop.round(g)
        together.round(g)
    assert_same(together.server_state(0), loop.servers[0], 1e-10)


def test_what_enters_each_layer_of_a_convolutional_network():
    """A layer that is applied at each pixel has an input there; a wider convolution has no entry,
    what it leads to has."""

    class Wide(Network):
        def __init__(self):
            super().__init__()
            self.one = LowRank(nn.Conv2d(3, 4, 1), 2)
            self.three = LowRank(nn.Conv2d(4, 5, 3), 2)
            self.head = nn.Linear(5, 2)

        def features(self, x):
            return self.three(self.one(x)).mean((2, 3))

    module = Wide().double()
    for layer in (module.one, module.three):
        nn.init.normal_(layer.up.weight)
    net = Net(module, (3, 4, 4), 2, torch.randn(3, 3, 4, 4, dtype=torch.float64))
    x, mask = torch.randn(5, 3, 4, 4).double(), torch.tensor([1, 1, 0, 1, 1]).double()
    found = grams(net, net.initial, x, mask)
    kept = x[mask > 0]
    with torch.no_grad():
        between = module.one(kept)
        entering = {
            "one.down.weight": kept.movedim(1, -1),
            "one.up.weight": module.one.down(kept.movedim(1, -1)),
            "three.up.weight": module.three.down(between).movedim(1, -1),
            "head.weight": module.three(between).mean((2, 3)),
        }
    assert found.keys() == entering.keys()
    for name, rows in entering.items():
        rows = rows.reshape(-1, rows.shape[-1])
        torch.testing.assert_close(found[name], rows.T @ rows, rtol=1e-9, atol=1e-9)
    assert torch.equal(symmetric(upper(found["head.weight"])), found["head.weight"])
