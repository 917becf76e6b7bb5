"""The cache of a data set that has been read: used while its files stay as they are, never half."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedmes.data import cache, catalog
from fedmes.errors import UserError
from fedmes.scenario.source import Source
from helpers.published_layouts import cifar


def test_the_cache_is_used_and_follows_the_files(tmp_path, monkeypatch):
    cifar(tmp_path)
    first = catalog.load("cifar100", root=tmp_path)
    entry = catalog.CATALOG["cifar100"]
    monkeypatch.setitem(catalog.CATALOG, "cifar100", replace(entry, read=None))
    again = catalog.load("cifar100", root=tmp_path)  # nothing is read
    np.testing.assert_array_equal(again.x, first.x)
    assert isinstance(again.x, np.memmap)
    again.x[0] = 0  # in memory only
    np.testing.assert_array_equal(catalog.load("cifar100", root=tmp_path).x, first.x)
    os.utime(tmp_path / "cifar-100-python/train", (1, 1))
    with pytest.raises(TypeError):  # another file, another cache
        catalog.load("cifar100", root=tmp_path)


def test_statistics_are_kept(tmp_path, monkeypatch):
    cifar(tmp_path)
    data = catalog.load("cifar100", root=tmp_path)
    pixels = np.array(data.x[:300], np.float64).reshape(-1, 3) / 255
    monkeypatch.setattr("fedmes.scenario.source.statistics", None)  # nothing is computed again
    kept = Source(catalog.load("cifar100", root=tmp_path), None).normalisation(None)
    np.testing.assert_allclose(kept.mean, [pixels.mean(0)], rtol=1e-12)
    np.testing.assert_allclose(kept.std, [pixels.std(0)], rtol=1e-9)


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no /dev/full, the disk that is always full"
)
@pytest.mark.parametrize("file", ["x.npy", "labels.npz", "about.json"])
def test_no_space_is_left(tmp_path, monkeypatch, file):
    cifar(tmp_path)

    def folder_on_a_full_disk(prefix, dir):
        made = Path(dir) / f"{prefix}x"
        made.mkdir()
        (made / file).symlink_to("/dev/full")
        return str(made)

    with (
        monkeypatch.context() as patch,
        pytest.raises(UserError, match="no space is left for the decoded images, 1 MB"),
    ):
        patch.setattr(cache.tempfile, "mkdtemp", folder_on_a_full_disk)
        catalog.load("cifar100", root=tmp_path)
    assert list((tmp_path / ".fedmes-cache").iterdir()) == []
    assert len(catalog.load("cifar100", root=tmp_path).y) == 400


def test_a_cache_that_was_not_finished_is_never_used(tmp_path):
    """The process dies with everything written but the name."""
    made = cifar(tmp_path)
    dying = (
        "import os, pathlib, sys; from fedmes.data import cache, catalog; cache.os.replace = lambda *_: os._exit(9); "
        "catalog.load('cifar100', root=pathlib.Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", dying, str(tmp_path)]).returncode == 9
    (left,) = (tmp_path / ".fedmes-cache").iterdir()
    assert (left / "x.npy").stat().st_size > 1_000_000
    (left / "x.npy").write_bytes(b"")
    np.testing.assert_array_equal(
        catalog.load("cifar100", root=tmp_path).x[:300].transpose(0, 3, 1, 2), made["train"]
    )


@pytest.mark.parametrize("file", ["x.npy", "labels.npz", "about.json"])
@pytest.mark.parametrize("length", [None, 0, 200])
def test_a_cache_that_was_damaged_is_rebuilt(tmp_path, file, length):
    cifar(tmp_path)
    first = np.array(catalog.load("cifar100", root=tmp_path).x)
    (folder,) = (tmp_path / ".fedmes-cache").iterdir()
    if length is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes((folder / file).read_bytes()[:length])
    np.testing.assert_array_equal(catalog.load("cifar100", root=tmp_path).x, first)
    assert (folder / file).stat().st_size > 200
    assert len(list((tmp_path / ".fedmes-cache").iterdir())) == 1


def test_a_folder_that_cannot_be_written_to(tmp_path):
    made = cifar(tmp_path)
    (tmp_path / ".fedmes-cache").write_text("in the way")
    data = catalog.load("cifar100", root=tmp_path)
    np.testing.assert_array_equal(data.x[:300].transpose(0, 3, 1, 2), made["train"])
    assert data.statistics is not None
