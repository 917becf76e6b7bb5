"""One client's mathematics as pure tensor functions, one file per method.

Authors of methods import from here: `from fedmes.methods import FedAvg, Method, pick, put`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmes.methods.base import Method
    from fedmes.methods.door import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; the names of the methods should not wait for it
    door = importlib.import_module("fedmes.methods.door")
    if name not in door.__all__:
        raise AttributeError(f"module 'fedmes.methods' has no attribute '{name}'")
    return getattr(door, name)


SUMMARY = {
    "fedavg": "one averaged model, no memory (McMahan et al., 2017)",
    "fedprox": "FedAvg with steps pulled towards the received model (Li et al., 2020)",
    "ditto": "a personal model next to the averaged one, pulled towards it (Li et al., 2021)",
    "fedrep": "an averaged body under a personal head, trained in turn (Collins et al., 2021)",
    "fedagem": "FedAvg with A-GEM's gradient projection on a small memory (Chaudhry et al., 2019)",
    "fedweit": "weights composed per task: a shared base, own parts, others' (Yoon et al., 2021)",
    "fedmes": "a small memory corrects gradients and votes in prediction (Xie, Zhu and Li, 2024)",
    "fedmes-plus": "proposed here: unbiased replay, a teacher, augmented images; needs no task id",
    "fedstats": "proposed here: sums of features once per task, a head in closed form",
    "knn-per": "FedAvg, and each client's stored samples vote in prediction (Marfoq et al., 2022)",
    "flwf": "FedAvg with the client's past model as a teacher (Usmanova et al., 2021)",
    "flwf-2t": "FLwF with a second teacher, the received model (Usmanova et al., 2021)",
    "er": "FedAvg with experience replay of a small memory (Chaudhry et al., 2019)",
    "er-ace": "ER; new samples compete with no old class (Caccia et al., 2022)",
    "der++": "ER; stored samples keep the logits they had, too (Buzzega et al., 2020)",
    "ewc": "FedAvg; weights that earlier tasks need are held (Kirkpatrick et al., 2017)",
    "mas": "as EWC, by how much a weight moves the output (Aljundi et al., 2018)",
    "icarl": "FedAvg with exemplars, a teacher and the nearest mean (Rebuffi et al., 2017)",
    "glfc": "exemplars and a teacher; hard samples count more (Dong et al., 2022; clients' half)",
    "fedproto": "FedAvg; features drawn to their class's mean of all clients (Tan et al., 2022)",
    "ccvr": "FedAvg; its head calibrated on features drawn per class (Luo et al., 2021)",
    "regmean": "FedAvg; linear layers merged in closed form, adapters as LoRM (Jin et al., 2023)",
    "lfedcon2": "an ensemble of the clients' best light classifiers (Casado et al., 2020)",
    "local": "each client alone, task after task",
    "local-er": "each client alone, replaying a small memory",
    "joint": "each client alone on all its data so far: what no forgetting looks like",
}

_CLASSES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "ditto": "Ditto",
    "fedrep": "FedRep",
    "fedagem": "FedAGEM",
    "fedweit": "FedWeIT",
    "fedmes": "FedMeS",
    "fedmes-plus": "FedMeSPlus",
    "fedstats": "make_fedstats",  # which of the two depends on an option
    "knn-per": "KNNPer",
    "flwf": "FLwF",
    "flwf-2t": "FLwF2T",
    "er": "ER",
    "er-ace": "ERACE",
    "der++": "DERPP",
    "ewc": "EWC",
    "mas": "MAS",
    "icarl": "ICaRL",
    "glfc": "GLFC",
    "fedproto": "FedProto",
    "ccvr": "CCVR",
    "regmean": "RegMean",
    "lfedcon2": "LFedCon2",
    "local": "Local",
    "local-er": "LocalER",
    "joint": "Joint",
}


def _maker(class_name: str) -> Callable[..., Any]:
    """A function that makes a method; torch is imported only when it is called."""

    def make(*arguments: Any) -> Method:
        return __getattr__(class_name)(*arguments)

    return make


METHODS: dict[str, Callable[..., Any]] = {
    name: _maker(class_name) for name, class_name in _CLASSES.items()
}
