"""Views of images, and a memory of features, where every client is a site of its own."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed (pip install 'fedmes[flower]')")

from fedmes.common import plugins
from helpers.flower_runs import flower, loop
from helpers.frozen_front import TINY, WIDTH, Small

pytestmark = [pytest.mark.flower, pytest.mark.usefixtures("clock", "unrehearsed")]

OPTIONS = TINY | {
    "method": "fedmes-plus", "data.image_size": 16, "model.name": plugins.reference(Small), "model.views": 2,
    "memory.keep": "features", "seeds": [0],
}  # fmt: skip


def test_sites_draw_the_views_of_the_loop_and_store_no_image(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMES_DATA", str(tmp_path / "data"))
    want = loop(tmp_path / "loop", OPTIONS)
    got = flower(tmp_path / "flower", OPTIONS)
    for name, table in want.accuracy.items():
        np.testing.assert_array_equal(table, got.accuracy[name])
    for k in range(2):
        mine, theirs = (tmp_path / engine / f"seed0/client{k}" for engine in ("loop", "flower"))
        for name in ("model.safetensors", "memory.npz"):
            assert (mine / name).read_bytes() == (theirs / name).read_bytes()
        with np.load(theirs / "memory.npz") as memory:
            assert set(memory.files) == {"features", "y", "task"}
            assert memory["features"].shape[1:] == (WIDTH,)
        images = [
            path
            for path in theirs.rglob("*.npz")
            for x in np.load(path).values()
            if x.shape[-3:] == (16, 16, 3)
        ]
        assert images == []
