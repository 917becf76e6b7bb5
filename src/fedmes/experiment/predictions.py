"""The answers of trained clients to their test samples, at the end of a run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmes.common.keyed_random import Ints
from fedmes.engines.base import Engine
from fedmes.engines.client_data import ClientData
from fedmes.engines.loop import client_predictions
from fedmes.engines.protocol import EvalProtocol
from fedmes.experiment.prepare import Prepared
from fedmes.experiment.recorder import Recorder
from fedmes.methods.losses import undefined
from fedmes.results.predicted import Predicted


@torch.no_grad()
def predict_test_samples(prepared: Prepared, engine: Engine, recorder: Recorder) -> Predicted:
    """Of all seeds and clients that have learned a task."""
    config = prepared.config
    protocol = EvalProtocol.of(prepared.method)
    parts: list[Ints] = []
    for s, federation in enumerate(prepared.federations):
        for k in federation.kept:
            position = recorder.learned(s, k)
            predictor = engine.predictor(s, k)
            if position < 0 or predictor is None:
                continue
            data = ClientData(k, federation, prepared.samples, config)
            ctx = data.ctx(data.plan.last_round(position))
            for task, y, p in client_predictions(protocol, predictor, position, data, ctx):
                place = np.tile([[config.seeds[s]], [k], [task]], len(y))
                parts.append(np.concatenate([place, y.cpu().numpy()[None], _answers(p["acc"])]))
    table = np.concatenate([np.zeros((6, 0), np.int64), *parts], axis=1)
    return Predicted(prepared.source.dataset.class_names, *table)


def _answers(p: Tensor) -> Ints:
    """[2, sample] the likeliest class; -1 where the probabilities are no numbers."""
    return p.argmax(-1).masked_fill(undefined(p), -1).cpu().numpy()
