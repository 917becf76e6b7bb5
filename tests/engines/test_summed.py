"""A sum over clients instead of single updates: which methods' servers need no more."""

from pathlib import Path

import pytest
import torch

from fedmes import config
from fedmes.engines.summed import aggregate_sum, check_aggregation, share, weight_of
from fedmes.errors import UserError
from fedmes.experiment.prepare import prepare
from fedmes.methods import METHODS
from fedmes.methods.base import ClientContext
from fedmes.methods.fedavg import FedAvg
from fedmes.tensors import stacked

TINY = {
    "benchmark": "synthetic", "clients": 4, "tasks": 2, "rounds": 1, "epochs": 1, "model.name": "mlp", "model.width": 4,
    "synthetic.classes": 2, "synthetic.train": 8, "synthetic.test": 4, "data.image_size": 3,
}  # fmt: skip
SAMPLES = [3, 0, 11, 40]


def of(name):
    """A method, its server's state and an upload, in float64."""
    prepared = prepare(config.load(None, TINY | {"method": name}))
    method = prepared.method
    params = {n: p.double() for n, p in prepared.federations[0].initial.items()}
    seen = torch.zeros(4, dtype=torch.bool)
    blocks = seen.expand(2, -1)
    ctx = ClientContext.outside_rounds(blocks, blocks, seen, torch.float64)
    return method, method.server(params), method.upload(method.init(params, ctx), ctx)


def drawn(upload, k):
    draw = torch.Generator().manual_seed(k)

    def entry(name, t):
        if not t.is_floating_point():
            return torch.rand(t.shape, generator=draw) < 0.5
        noise = torch.randn(t.shape, generator=draw, dtype=torch.float64)
        mask = upload.get(f"{name}#mask")
        return (noise if mask is None else noise.round()).to(t.dtype)

    found = {name: entry(name, t) for name, t in upload.items()}
    for name in found:  # what is not sent does not count, and a site has zeros there
        if f"{name}#mask" in found:
            found[name] = torch.where(found[f"{name}#mask"], found[name], 0)
    return found


@pytest.mark.parametrize("name", METHODS)
def test_a_sum_leads_where_single_updates_lead(name):
    method, server, upload = of(name)
    if method.aggregation == "individual":
        with pytest.raises(UserError, match=f"the server of {name} needs each site's update"):
            check_aggregation(method, server, upload)
        return
    check_aggregation(method, server, upload)
    uploads = [drawn(upload, k) for k in range(4)]
    present = torch.tensor([True, True, False, True])
    want = {}
    if upload:
        samples = torch.tensor(SAMPLES, dtype=torch.float64)
        want = method.aggregate(server, stacked(uploads), present, samples)
    total, weight = {}, 0
    for k in (0, 1, 3):
        counts = weight_of(method, SAMPLES[k])
        weight += counts
        for entry, t in share(method, server, uploads[k]).items():
            total[entry] = total.get(entry, 0) + counts * t
    assert (
        weight
        == {"samples": 43, "uniform": 3, "sum": 3}[
            "sum" if method.aggregation == "sum" else method.average
        ]
    )
    got = aggregate_sum(method, server, total, weight, upload)
    assert got.keys() == want.keys()
    for entry, t in want.items():
        torch.testing.assert_close(got[entry], t, rtol=0, atol=1e-6)
    assert bool(got) == (name not in ("local", "local-er", "joint"))


def test_a_method_that_says_mean_and_takes_another_is_found_out():
    method, server, upload = of("fedavg")

    class Median(FedAvg):
        def aggregate(self, server, uploads, present, samples):
            return {name: t.median(0).values for name, t in uploads.items()}

    median = Median(method.net, method.config)
    assert median.aggregation == "mean"
    with pytest.raises(UserError, match="needs each site's update, not only their sum"):
        check_aggregation(median, server, upload)


def test_which_methods_need_each_update():
    found = {name: of(name)[0].aggregation for name in METHODS}
    assert [name for name, how in found.items() if how == "individual"] == ["fedweit", "lfedcon2"]
    assert [name for name, how in found.items() if how == "sum"] == ["fedstats", "regmean"]


def test_the_table_in_the_docs():
    text = (Path(__file__).parents[2] / "docs/privacy.md").read_text()
    _, table = text.split("| method | what the server needs |\n|---|---|\n")
    listed = {}
    for line in table.split("\n\n")[0].splitlines():
        names, what = line.strip("| ").split(" | ")
        listed |= dict.fromkeys(names.replace("`", "").split(", "), what)
    assert listed.keys() == METHODS.keys()
    for name, what in listed.items():
        method, _, upload = of(name)
        needs = method.aggregation
        if needs == "mean":
            needs += {"samples": ", weighted by samples", "uniform": ", uniform"}[method.average]
        if not upload:
            needs = "nothing"
        assert what.startswith(needs.replace("individual", "each update")), name
