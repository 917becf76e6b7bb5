"""Many clients, of which a few take part: made when they do, kept on the host meanwhile."""

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.common import limits
from fedmes.engines.stacked import store
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.engines.stacked.store import ClientStore
from fedmes.experiment.prepare import prepare
from fedmes.scenario import partition, plan, population
from fedmes.scenario.plan import Bounds
from fedmes.scenario.stream import Stream
from helpers.engine_runs import AWKWARD, assert_equal_runs

FEW_OF_MANY = AWKWARD | {"clients": 9, "memory": 6, "tasks": 2, "rounds": 3, "server.cohort": 3,
                         "engine": "stacked"}  # fmt: skip


@pytest.fixture
def many(monkeypatch):
    """Five clients are many."""
    for module in (population, partition, plan):
        monkeypatch.setattr(module, "MANY", 5)
    monkeypatch.setattr("fedmes.engines.client_data.MANY", 5)
    monkeypatch.setattr("fedmes.engines.stacked.rota.MANY", 2)
    monkeypatch.setattr("fedmes.engines.stacked.rota.FEW", 2)


def test_a_cohort_is_exactly_that_many():
    prepared = prepare(config.load(None, FEW_OF_MANY))
    for federation in prepared.federations:
        assert (federation.stream.takes_part.sum(axis=1) == 3).all()
    all_of_them = prepare(config.load(None, FEW_OF_MANY | {"server.cohort": 99}))
    assert all_of_them.federations[0].stream.takes_part.all()
    with pytest.raises(fedmes.UserError, match="cohort and fraction"):
        config.load(None, FEW_OF_MANY | {"server.fraction": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedmes", "flwf", "fedweit", "fedstats"])
def test_who_comes_and_goes_changes_nothing(method):
    """Three of nine clients are on the device, or one at a time; some drop out, and some updates
    are no numbers."""
    faults = {"faults.drop": 0.2, "faults.nan": 0.2, "server.cohort": 4}
    prepared = prepare(config.load(None, FEW_OF_MANY | faults | {"method": method}))
    whole, single = (StackedEngine(prepared.method, prepared.federations, prepared.samples, n, False)
                     for n in (1000, 2))  # fmt: skip
    assert (whole.rota.seats, single.rota.seats, whole.rota.clients) == (4, 1, 9)
    assert_equal_runs(prepared, stacks=(1000, 2))


@pytest.mark.slow
def test_a_population_is_made_on_demand_and_the_same_in_every_engine(many):
    """Nobody who never takes part is made; bounds hold for all who do."""
    prepared = prepare(config.load(None, FEW_OF_MANY))
    streams = [f.stream for f in prepared.federations]
    assert all(isinstance(stream.clients, population.Population) for stream in streams)
    made = [stream.clients._client.cache_info().currsize for stream in streams]
    assert max(made) <= 3  # to look at a few
    assert_equal_runs(prepared, stacks=(1000, 4))
    for federation in prepared.federations:
        assert 0 < len(federation.stream.participants) < 9
        there = federation.stream.clients._client.cache_info().currsize
        assert there <= len(federation.stream.participants) + 1  # an empty seat borrows the first's
        found, bound = Bounds.of(federation.plans), federation.plans.bounds()
        assert all(mine <= most for mine, most in zip(found, bound, strict=True))


def test_a_client_of_a_population_has_what_a_late_one_of_a_list_has(many, tmp_path):
    """Once a class has no images left, each further client draws from all of them."""
    small = FEW_OF_MANY | {"stream.frac": 60, "seeds": [0]}
    lazy = prepare(config.load(None, small)).federations[0].stream
    listed = lazy.listed()
    assert [client.name for client in listed.clients] == [str(k) for k in lazy.participants]
    for k, client in zip(lazy.participants, listed.clients, strict=True):
        for mine, again in zip(client.tasks, lazy.clients[k].tasks, strict=True):
            assert mine.classes == again.classes
            # all images of its classes
            assert len(mine.train) == 60 * len(mine.classes)
    lazy.save(tmp_path / "split.json")
    read = Stream.load(tmp_path / "split.json")
    assert read.sha256() == lazy.sha256()
    assert read.takes_part.any(axis=0).all() and len(read.clients) < 9


@pytest.mark.slow
def test_a_whole_run_of_a_population_and_its_resume(many, tmp_path):
    """Stopped after a round and resumed, it ends with the same files; only who took part is scored
    and has a directory."""
    options = {"clients": 9, "tasks": 2, "rounds": 2, "epochs": 1, "server": {"cohort": 2},
               "model": {"name": "mlp", "width": 4}, "method": "fedrep", "memory": 4}  # fmt: skip
    whole = fedmes.run(**options, out=tmp_path / "whole")
    told = []

    def stop(now):
        told.append(now.rounds_done)
        if now.rounds_done == 2 and len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmes.run(
            **options, out=tmp_path / "parts", checkpoint={"every": "round"}, on_progress=stop
        )
    parts = fedmes.resume(tmp_path / "parts")
    np.testing.assert_array_equal(parts.acc, whole.acc)
    there = sorted(path.name for path in (tmp_path / "whole/seed0").glob("client*"))
    scored = np.flatnonzero(~np.isnan(whole.acc[0]).all(axis=(1, 2)))
    assert set(there) >= {f"client{k}" for k in scored} and len(there) < 9
    for name in there:
        same = [(tmp_path / run / "seed0" / name / "model.safetensors").read_bytes()
                for run in ("whole", "parts")]  # fmt: skip
        assert same[0] == same[1]


# --- the store ------------------------------------------------------------------------------------


def entries(*seeds):
    """Of clients, in several types."""
    made = []
    for seed in seeds:
        torch.manual_seed(seed)
        made.append({"w": torch.randn(3, 2), "n": torch.tensor(seed), "seen": torch.rand(5) < 0.5,
                     "sums": torch.randn(2, dtype=torch.float64), "none": torch.zeros(0)})  # fmt: skip
    return {name: torch.stack([each[name] for each in made]) for name in made[0]}


@pytest.mark.parametrize("room", [10**12, 0], ids=["memory", "file"])
def test_rows_come_back_as_they_were(monkeypatch, room):
    monkeypatch.setattr(limits, "free_memory", lambda: room)
    monkeypatch.setattr(store, "SLAB", 300)
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    keys = [(0, 7), (1, 7), (0, 3), (0, 99_999)]
    for some in (keys[:2], keys[2:]):
        kept.write(some, kept.packed(entries(*(k for _, k in some))))
    kept.write(keys[:1], kept.packed(entries(1)))
    assert kept.keys() == sorted(keys) and (0, 4) not in kept
    assert [kept.changes(key) for key in (*keys, (0, 4))] == [2, 1, 1, 1, 0]
    for name, t in kept.unpacked(kept.rows(keys)).items():
        assert torch.equal(t, entries(1, 7, 3, 99_999)[name])


def test_a_full_disk_is_said_before_anything_is_lost(monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 0)
    monkeypatch.setattr(store, "SLAB", 300)
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    kept.write([(0, 0)], kept.packed(entries(0)))

    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.tempfile, "NamedTemporaryFile", full)
    with pytest.raises(fedmes.UserError, match=r"No space left on device.*TMPDIR"):
        for k in range(1, 9):
            kept.write([(0, k)], kept.packed(entries(k)))
    assert torch.equal(kept.unpacked(kept.rows([(0, 0)]))["w"], entries(0)["w"])
