"""The methods by name. Modules are imported only when a method is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmes.contract import Method

SUMMARY = {
    "fedavg": "one averaged model, no memory (McMahan et al., 2017)",
    "fedprox": "FedAvg whose steps are drawn towards the received model (Li et al., 2020)",
    "ditto": "a personal model beside the averaged one, drawn towards it (Li et al., 2021)",
    "fedrep": "an averaged body under a personal head, trained in turn (Collins et al., 2021)",
    "fedagem": "FedAvg whose steps may not raise the loss on a small memory (A-GEM; Chaudhry et al., 2019)",
    "fedweit": "weights composed per task from a sparse shared base, own parts and others' (Yoon et al., 2021)",
    "fedmes": "a small local memory corrects gradients and votes at prediction (Xie, Zhu and Li, 2024)",
    "fedmes-plus": "our own: the memory replayed without bias, a teacher, images that move; holds without a task id",
    "knn-per": "FedAvg, and each client's stored samples vote at prediction (Marfoq et al., 2022)",
    "flwf": "FedAvg with the client's past model as a teacher (Usmanova et al., 2021)",
    "flwf-2t": "FLwF with a second teacher, the received model (Usmanova et al., 2021)",
    "local": "each client alone, task after task",
    "local-er": "each client alone, replaying a small memory",
    "joint": "each client alone on all its data so far: what no forgetting looks like",
}

_CLASSES = {
    "fedavg": "fedmes.methods.fedavg:FedAvg",
    "fedprox": "fedmes.methods.fedprox:FedProx",
    "ditto": "fedmes.methods.ditto:Ditto",
    "fedrep": "fedmes.methods.fedrep:FedRep",
    "fedagem": "fedmes.methods.fedagem:FedAGEM",
    "fedweit": "fedmes.methods.fedweit:FedWeIT",
    "fedmes": "fedmes.methods.fedmes:FedMeS",
    "fedmes-plus": "fedmes.methods.fedmes_plus:FedMeSPlus",
    "knn-per": "fedmes.methods.knnper:KNNPer",
    "flwf": "fedmes.methods.flwf:FLwF",
    "flwf-2t": "fedmes.methods.flwf:FLwF2T",
    "local": "fedmes.methods.local:Local",
    "local-er": "fedmes.methods.local:LocalER",
    "joint": "fedmes.methods.local:Joint",
}


def _lazy(target: str) -> Callable[..., Any]:
    def make(*arguments: Any) -> Method:
        module, _, name = target.partition(":")
        return getattr(importlib.import_module(module), name)(*arguments)

    return make


METHODS: dict[str, Callable[..., Any]] = {name: _lazy(target) for name, target in _CLASSES.items()}
