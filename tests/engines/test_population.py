"""Many clients, of which a few take part: made when they do, kept on the host meanwhile."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedmes
from fedmes import config
from fedmes.common import limits
from fedmes.engines import client_data, loop, server
from fedmes.engines.loop import LoopEngine
from fedmes.engines.stacked import store
from fedmes.engines.stacked.engine import StackedEngine
from fedmes.engines.stacked.seats import Seats
from fedmes.engines.stacked.store import ClientStore
from fedmes.experiment.prepare import prepare
from fedmes.results import growing_states
from fedmes.results.growing_states import GrowingStates
from fedmes.scenario import partition, plans, population
from fedmes.scenario.plans import Bounds
from fedmes.scenario.stream import Stream
from helpers.engine_runs import AWKWARD, assert_equal_runs

FEW_OF_MANY = AWKWARD | {"clients": 9, "memory": 6, "tasks": 2, "rounds": 3, "server.cohort": 3,
                         "engine": "stacked"}  # fmt: skip


def five_are_many(monkeypatch):
    for module in (population, partition, plans, client_data, loop, server):
        monkeypatch.setattr(module, "MANY", 5)
    monkeypatch.setattr("fedmes.engines.stacked.rota.MANY", 2)
    monkeypatch.setattr("fedmes.engines.stacked.rota.FEW", 2)


@pytest.fixture
def many(monkeypatch):
    five_are_many(monkeypatch)


def test_a_cohort_is_exactly_that_many():
    prepared = prepare(config.load(None, FEW_OF_MANY))
    for federation in prepared.federations:
        assert (federation.stream.takes_part.sum(axis=1) == 3).all()
    all_of_them = prepare(config.load(None, FEW_OF_MANY | {"server.cohort": 99}))
    assert all_of_them.federations[0].stream.takes_part.all()
    with pytest.raises(fedmes.UserError, match="cohort and fraction"):
        config.load(None, FEW_OF_MANY | {"server.fraction": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize("method", ["flwf", "fedweit"])
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
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_whole_run_of_a_population_and_its_resume(many, engine, tmp_path, monkeypatch):
    """Ended in the middle of a round, while clients come and go, and resumed, it ends with the same
    files; only who took part is scored and has a directory."""
    options = {"clients": 9, "tasks": 2, "rounds": 2, "epochs": 1, "server": {"cohort": 2},
               "model": {"name": "mlp", "width": 4}, "method": "fedrep", "memory": 4,
               "checkpoint": {"every": "round"}, "engine": engine}  # fmt: skip
    whole = fedmes.run(**options, out=tmp_path / "whole")
    kind, name = (Seats, "keep") if engine == "stacked" else (LoopEngine, "_untrained")
    real = getattr(kind, name)
    calls = []

    def interrupted(self, *arguments):
        calls.append(name)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(kind, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fedmes.run(**options, out=tmp_path / "parts")
    there = {path.name[:6] for path in (tmp_path / "parts/checkpoint").iterdir()}
    assert there >= {"loop": {"round-"}, "stacked": {"round-", "client"}}[engine]
    monkeypatch.undo()
    five_are_many(monkeypatch)
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


@pytest.mark.parametrize("writers", [1, 3])
@pytest.mark.parametrize("room", [10**12, 0], ids=["memory", "file"])
def test_rows_come_back_as_they_were(monkeypatch, room, writers):
    monkeypatch.setattr(limits, "free_memory", lambda: room)
    monkeypatch.setattr(store, "WRITERS", writers)
    monkeypatch.setattr(store, "SLAB", 300)
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    keys = [(0, 7), (1, 7), (0, 3), (0, 99_999)]
    for some in (keys[:2], keys[2:]):
        kept.write(some, kept.packing.pack(entries(*(k for _, k in some))))
    kept.write(keys[:1], kept.packing.pack(entries(1)))
    kept.write([keys[3], (2, 5), keys[1], keys[2]], kept.packing.pack(entries(4, 5, 6, 8)))
    keys.append((2, 5))
    assert kept.keys() == sorted(keys) and (0, 4) not in kept
    assert [kept.changes(key) for key in (*keys, (0, 4))] == [2, 2, 2, 2, 1, 0]
    for name, t in kept.packing.unpack(kept.rows(keys)).items():
        assert torch.equal(t, entries(1, 6, 8, 4, 5)[name])


@pytest.mark.parametrize("left", [0, 500])
def test_what_the_engine_works_in_is_left_to_it(monkeypatch, left):
    monkeypatch.setattr(limits, "free_memory", lambda: store.RESERVED + 500)
    monkeypatch.setattr(store, "SLAB", 300)
    opened = []
    make = store.tempfile.NamedTemporaryFile
    noted = lambda **options: opened.append(options) or make(**options)  # noqa: E731
    monkeypatch.setattr(store.tempfile, "NamedTemporaryFile", noted)
    kept = ClientStore({name: t[0] for name, t in entries(0).items()}, left=left)
    kept.write([(0, 0)], kept.packing.pack(entries(1)))
    assert bool(opened) == (left > 0)


def test_who_reads_or_writes_waits_for_rows_on_their_way(monkeypatch):
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    kept.write([(0, 0)], kept.packing.pack(entries(1)))
    kept.rows([(0, 0)])
    order, row = [], kept._row
    monkeypatch.setattr(kept, "_row", lambda number: order.append("row") or row(number))
    on_its_way = SimpleNamespace(result=lambda: order.append("there"))
    kept._on_the_way = [on_its_way]
    kept.rows([(0, 0)])
    assert order == ["there", "row"]
    kept.write([(0, 0)], kept.packing.pack(entries(2)))
    assert torch.equal(kept.packing.unpack(kept.rows([(0, 0)]))["w"], entries(2)["w"])
    assert order[2:] == ["there", "row"]


def test_a_full_disk_is_said_before_anything_is_lost(monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 0)
    monkeypatch.setattr(store, "SLAB", 300)
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    kept.write([(0, 0)], kept.packing.pack(entries(0)))

    def full(**options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.tempfile, "NamedTemporaryFile", full)
    with pytest.raises(fedmes.UserError, match=r"No space left on device.*TMPDIR"):
        for k in range(1, 9):
            kept.write([(0, k)], kept.packing.pack(entries(k)))
    assert torch.equal(kept.packing.unpack(kept.rows([(0, 0)]))["w"], entries(0)["w"])


# --- its file in a checkpoint ---------------------------------------------------------------------


def stored(numbers):
    """A store in which client k has the entries of numbers[k]."""
    kept = ClientStore({name: t[0] for name, t in entries(0).items()})
    for k, number in numbers.items():
        kept.write([(0, k)], kept.packing.pack(entries(number)))
    return kept


def assert_read(folder, about, numbers):
    found = growing_states.read(folder, about)
    assert found.pop("kept_clients").tolist() == [[0, k] for k in sorted(numbers)]
    for name, t in entries(*(numbers[k] for k in sorted(numbers))).items():
        assert torch.equal(found[f"kept.{name}"], t)


def test_a_checkpoint_adds_who_has_changed(tmp_path):
    """Earlier checkpoints stay readable; a file that is mostly of the past is left for a new one."""
    file, kept = GrowingStates(tmp_path), stored({3: 1, 8: 2})
    first = file.update(kept, 1)
    kept.write([(0, 8)], kept.packing.pack(entries(5)))
    second = file.update(kept, 2)
    kept.write([(0, 9)], kept.packing.pack(entries(6)))
    third = file.update(kept, 3)
    assert [about["records"] for about in (first, second, third)] == [2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["clients-000001.bin"]
    assert_read(tmp_path, first, {3: 1, 8: 2})
    assert_read(tmp_path, second, {3: 1, 8: 5})
    assert_read(tmp_path, third, {3: 1, 8: 5, 9: 6})
    for k in (3, 8, 9):
        kept.write([(0, k)], kept.packing.pack(entries(k)))
    fourth = file.update(kept, 4)
    assert (fourth["file"], fourth["records"]) == ("clients-000004.bin", 3)
    assert_read(tmp_path, fourth, {3: 3, 8: 8, 9: 9})
    assert_read(tmp_path, third, {3: 1, 8: 5, 9: 6})


def test_a_file_that_is_cut_short_is_noticed_and_a_full_disk_survived(tmp_path, monkeypatch):
    file, kept = GrowingStates(tmp_path), stored({3: 1, 8: 2})
    first = file.update(kept, 1)
    kept.write([(0, 8)], kept.packing.pack(entries(5)))

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken, pytest.raises(OSError, match="No space"):
        broken.setattr(growing_states.os, "fsync", full)
        file.update(kept, 2)
    assert_read(tmp_path, first, {3: 1, 8: 2})
    second = file.update(kept, 2)
    assert_read(tmp_path, second, {3: 1, 8: 5})
    path = tmp_path / second["file"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="does not fit"):
        growing_states.read(tmp_path, second)
    assert_read(tmp_path, first, {3: 1, 8: 2})
    with pytest.raises(ValueError, match="its layout is none"):
        growing_states.read(tmp_path, first | {"layout": [["w", "float31", [2]]]})


@pytest.mark.slow
def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path):
    """Its last states are cut off: the run resumes from a round earlier, and ends as it would."""
    options = {"clients": 5, "tasks": 1, "rounds": 4, "epochs": 1, "server": {"cohort": 2},
               "model": {"name": "mlp", "width": 4}, "method": "fedrep", "engine": "stacked",
               "checkpoint": {"every": "round"}}  # fmt: skip
    whole = fedmes.run(**options, out=tmp_path / "whole")

    def stop(now):
        if now.rounds_done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedmes.run(**options, out=tmp_path / "parts", on_progress=stop)
    file = max((tmp_path / "parts/checkpoint").glob("clients-*.bin"))
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.warns(RuntimeWarning, match="the checkpoint before it is used"):
        parts = fedmes.resume(tmp_path / "parts")
    np.testing.assert_array_equal(parts.acc, whole.acc)
