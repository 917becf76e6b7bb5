"""Random numbers from torch's own generator, in a program with several threads."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

from fedmes.common.seeded import seeded


def test_threads_do_not_draw_from_each_others_seeds():
    together = Barrier(4)

    def draw(seed):
        together.wait()
        with seeded(seed):
            return [torch.rand(1).item() for _ in range(500)]

    expected = [draw_alone(seed) for seed in range(4)]
    state = torch.get_rng_state()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(draw, range(4))) == expected
    assert torch.equal(torch.get_rng_state(), state)


def draw_alone(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(1, generator=generator).item() for _ in range(500)]
