"""Clients shared out over several engines, here of one process, which exchange what a server needs.
Real processes are in tests/experiment/test_several_devices.py."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from fedmes.engines.loop import LoopEngine
from fedmes.engines.peers import Peers, Share
from fedmes.engines.stacked.engine import StackedEngine
from helpers.engine_runs import assert_equal_rows, assert_equal_scores, prepared_with


class Threads(Peers):
    """Peers that are threads; they count what each sends."""

    def __init__(self, share, table, barrier):
        super().__init__(share)
        self.table, self.barrier, self.sent = table, barrier, 0

    def gathered(self, mine):
        self.sent += mine.nbytes
        self.table[self.share.rank] = mine
        self.barrier.wait(60)
        found = [self.table[share.rank].clone() for share in self.shares]
        self.barrier.wait(60)
        return found


@pytest.fixture
def one_thread_each():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def two_engines(options, stack):
    table, barrier = {}, Barrier(2)
    engines = []
    for rank in range(2):
        own = prepared_with(options)  # a network serves one thread at a time
        parts = (own.method, own.federations, own.samples)
        peers = Threads(Share(rank, 2), table, barrier)
        engines.append(StackedEngine(*parts, stack, False, peers=peers))
    return engines


def both(crew, engines, what, *arguments):
    """What two engines answer together, in the order of seeds and clients."""
    futures = [crew.submit(getattr(engine, what), *arguments) for engine in engines]
    found = [future.result(60) for future in futures]
    return sorted(found[0] + found[1], key=lambda row: (row.seed, row.client))


# five clients do not divide by two; all stay, or come and go in waves of two
@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "stack", "options"),
    [
        ("fedmes", 1000, {"faults.nan": 0.2}),
        ("fedweit", 1000, {}),
        ("fedweit", 2, {"server.cohort": 3}),
        ("fedstats", 2, {}),
        ("fedavg", 2, {"server.cohort": 3, "faults.nan": 0.2}),
        ("fedavg", 1000, {"server.robust": "median"}),
    ],
    ids=["nan", "each", "each-in-waves", "sums-in-waves", "mean-in-waves", "median"],
)
def test_shares_of_clients_are_as_all_of_them(method, stack, options, one_thread_each):
    options = {"method": method, "clients": 5, "memory": 6, "tasks": 2, "epochs": 1, **options}
    prepared = prepared_with(options)
    loop = LoopEngine(prepared.method, prepared.federations, prepared.samples)
    engines = two_engines(options, stack)
    rounds = len(prepared.federations[0].stream.position)
    with ThreadPoolExecutor(2) as crew:
        for g in range(rounds):
            assert_equal_rows(both(crew, engines, "round", g), loop.round(g))
            assert_equal_scores(both(crew, engines, "evaluate", g), loop.evaluate(g))
    first, second = engines
    for s, server in enumerate(loop.servers):
        for name, value in server.items():
            assert first.server[name][s].equal(second.server[name][s])  # to the last bit
            torch.testing.assert_close(first.server[name][s], value, rtol=1e-8, atol=1e-8)
        for k, state in loop.clients[s].there():
            mine = engines[k % 2].seats.state_of(s, k)
            for name in first.seats.lasting:
                torch.testing.assert_close(mine[name], state[name], rtol=1e-8, atol=1e-8)


def test_who_needs_a_mean_sends_one_model(one_thread_each):
    """And a few numbers of each client; a server that compares updates is sent all of them."""
    sent = {}
    for rule in ("none", "median"):
        engines = two_engines({"server.robust": rule, "seeds": [0], "epochs": 1}, 1000)
        with ThreadPoolExecutor(2) as crew:
            both(crew, engines, "round", 0)
        model = sum(t.nbytes for t in engines[0].server.values())
        sent[rule] = [engine.rota.peers.sent for engine in engines]
    # of each of two clients: there or not, samples, and finite, squared distance, own norm
    assert sent["none"] == [model + 2 * (1 + 8 + 1 + 8 + 4)] * 2
    # the update; there or not, samples, number
    assert sent["median"] == [2 * (model + 1 + 8 + 8)] * 2
