"""Small data sets in the layouts in which the real ones are published."""

import gzip
import pickle
import struct

import numpy as np
from PIL import Image


def picture(path, value, size=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), value, np.uint8)).save(path)


def cifar(root, per_class=3):
    folder = root / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)
    made = {}
    for part, count in (("train", per_class), ("test", 1)):
        y = np.repeat(np.arange(100), count)
        made[part] = rng.integers(0, 256, (len(y), 3, 32, 32), dtype=np.uint8)
        content = {
            b"data": made[part].reshape(len(y), -1),
            b"fine_labels": y.tolist(),
            b"filenames": [b"a"] * len(y),
        }
        (folder / part).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "meta").write_bytes(
        pickle.dumps({b"fine_label_names": [f"c{i}".encode() for i in range(100)]})
    )
    return made


def idx(path, values):
    path.parent.mkdir(exist_ok=True)
    header = struct.pack(f">{values.ndim + 1}I", 0x800 + values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.tobytes()))


def emnist(root, kind, labels):
    x = (np.arange(len(labels) * 784) % 251).astype(np.uint8).reshape(-1, 28, 28)
    for part in ("train", "test"):
        idx(root / "gzip" / f"emnist-{kind}-{part}-images-idx3-ubyte.gz", x.transpose(0, 2, 1))
        idx(root / "gzip" / f"emnist-{kind}-{part}-labels-idx1-ubyte.gz", labels.astype(np.uint8))
    return x
