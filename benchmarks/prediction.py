"""Images a second that a client predicts on the CPU, beside a plain PyTorch forward pass of the
same network.

python benchmarks/prediction.py [--images 4096] [--repeats 5] [--threads 1]

`cnn2` on 28x28 images with 150 stored samples, weights as initialised: what is timed does not
depend on them. The ways are timed in turn, and the best of the repeats counts; on a busy machine,
look at the seconds of cores. "files" is `fedmes predict` on a folder of PNG files, without starting
the program.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.models import networks
from fedmes.prediction.client import load_client, predict_files
from fedmes.results import client_dir
from fedmes.tensors import put

BATCH = 512
OPTIONS = {
    "benchmark": "synthetic", "clients": 1, "tasks": 2, "model": "cnn2", "memory": 150, "synthetic.train": 200,
    "data.image_size": 28, "engine": "loop",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as place:
        measure(Path(place), given.images, given.repeats)


def measure(place: Path, count: int, repeats: int) -> None:
    prepared = prepare(config.load(None, OPTIONS))
    federation, dataset = prepared.federations[0], prepared.source.dataset
    predictor = put("w", federation.initial) | {"theta": torch.tensor(0.5)}
    parts = (prepared.config, dataset, federation.normalisation, federation.plans[0], predictor)
    client_dir.save_client(place / "client", *parts)
    client = load_client(place / "client")
    print(
        f"cnn2, samples {client.shape}, {len(client.tasks)} stored, {torch.get_num_threads()} threads, {count} images"
    )

    images = dataset.x[np.arange(count) % len(dataset.x)]
    folder = place / "images"
    folder.mkdir()
    for i, image in enumerate(images):
        Image.fromarray(image[..., 0]).save(folder / f"{i:06}.png")
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    network = networks.build(networks.CNN2, "cnn2", client.shape, len(client.class_names), 0).eval()

    def plain() -> None:
        with torch.no_grad():
            for part in x.split(BATCH):
                network.head(network.features(part))  # type: ignore[operator]

    ways: dict[str, Callable[[], object]] = {
        "plain forward pass": plain,
        "client.predict": lambda: client.predict(images),
        "files": lambda: list(predict_files(client, [folder])),
    }
    # seconds, and seconds of all cores together
    best = {name: (float("inf"), float("inf")) for name in ways}
    for repeat in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter(), time.process_time()
            way()
            took = time.perf_counter() - start[0], time.process_time() - start[1]
            if repeat:  # the first one warms up
                best[name] = min(best[name][0], took[0]), min(best[name][1], took[1])
    base = best["plain forward pass"]
    for name, (wall, cores) in best.items():
        print(
            f"{name:<20} {count / wall:7,.0f} images/s ({base[0] / wall:.2f} of plain), "
            f"{count / cores:7,.0f} a second of one core ({base[1] / cores:.2f})"
        )


if __name__ == "__main__":
    main()
