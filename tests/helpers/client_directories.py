"""Client directories: that they predict what a run has scored, and how one is changed by hand."""

import json

import numpy as np
import torch

import fedmes
from fedmes import config
from fedmes.experiment.prepare import prepare
from fedmes.prediction.export import as_input


def assert_predicts_what_was_scored(result, **options):
    """Each client of seed 0, on the test images of each of its tasks: the last row of every
    accuracy."""
    prepared = prepare(config.load(result.directory / "config.toml", {}))
    data = prepared.source.dataset
    for k, plan in enumerate(prepared.federations[0].plans):
        client = fedmes.load_client(result.directory / f"seed0/client{k}", **options)
        for i, rows in enumerate(plan.test):
            for suffix, task in (("", None), ("_masked", i)):
                said = client.predict(data.x[rows], task=task)
                if task is None:
                    assert_stands_alone(client, data.x[rows], said)
                found = {"acc": said.ids}
                if "acc_nolip" in result.accuracy:
                    found["acc_nolip"] = said.network.argmax(-1)
                for name, ids in found.items():
                    kind = name.replace("acc", f"acc{suffix}")
                    assert (ids == data.y[rows]).mean() == result.accuracy[kind][
                        0, k, plan.tasks - 1, i
                    ], kind


def assert_stands_alone(client, x, said):
    """What is exported, before it becomes a file."""
    with torch.no_grad():
        alone = client.standalone()(as_input(x, client)).numpy()
    np.testing.assert_allclose(alone, said.probabilities, rtol=0, atol=1e-6)


def edit(directory, change):
    path = directory / "client.json"
    about = json.loads(path.read_text())
    change(about)
    path.write_text(json.dumps(about))
