"""The loop: round after round, client after client."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import load_file

from oracle import fedmes_plus, methods, reference
from oracle.fedstats import FedStats
from oracle.fedweit import FedWeIT
from oracle.lfedcon2 import LFedCon2
from oracle.regmean import RegMean
from oracle.scenario import Scenario

METHODS = {
    "fedavg": methods.FedAvg, "fedprox": methods.FedProx, "ditto": methods.Ditto, "fedrep": methods.FedRep,
    "fedagem": methods.FedAGEM, "fedweit": FedWeIT, "fedmes": methods.FedMeS, "fedmes-plus": fedmes_plus.FedMeSPlus,
    "fedstats": FedStats,
    "knn-per": methods.KNNPer, "flwf": methods.FLwF, "flwf-2t": methods.FLwF2T,
    "er": reference.ER, "er-ace": reference.ERACE, "der++": reference.DERPP,
    "ewc": reference.EWC, "mas": reference.MAS,
    "icarl": reference.ICaRL, "glfc": reference.GLFC, "fedproto": reference.FedProto, "ccvr": reference.CCVR,
    "regmean": RegMean, "lfedcon2": LFedCon2,
    "local": methods.Local, "local-er": methods.LocalER, "joint": methods.Joint,
}  # fmt: skip


@dataclass
class Outcome:
    accuracy: dict  # by name of the table, [client, after task, of task]
    server: dict  # the server's weights at the end
    models: list  # of each client, the weights that predict
    remembered: list  # of each client, the labels in its memory after its last task
    thetas: list  # of each client, the memory's weight in a prediction; None: it has no vote
    losses: list  # of each round and client that took part, in order


def simulate(name, directory, seed, x, y, fitted=None, held_back=None):
    """What a run in this directory must come to."""
    kind = METHODS[name]
    scenario = Scenario(
        directory,
        seed,
        x,
        y,
        fitted=fitted,
        walks_all=kind.walks_all,
        keeps=kind.keeps,
        held_back=held_back,
    )
    initial = load_file(directory / f"seed{seed}" / "initial.safetensors")
    method = kind(scenario, {name: t.double() for name, t in initial.items()})
    tasks = scenario.config["tasks"]
    accuracy, losses = {}, []
    with torch.no_grad():
        for g in range(scenario.rounds):
            losses += one_round(method, scenario, g)
            for client in scenario.clients:
                if (position := client.finishes(g)) is None:
                    continue
                method.end_task(client, method.states[client.column], position)
                for table, row in scores(method, scenario, client, position).items():
                    shape = (len(scenario.clients), tasks, tasks)
                    accuracy.setdefault(table, np.full(shape, math.nan))[
                        client.column, position, : len(row)
                    ] = row
        ends = [
            max(client.learned(len(client.tasks) - 1), default=0) for client in scenario.clients
        ]
        people = list(zip(scenario.clients, ends, strict=True))
        return Outcome(
            accuracy,
            method.server,
            [method.model(client) for client in scenario.clients],
            [scenario.y[client.memory[end][1]].tolist() for client, end in people],
            [
                method.theta(client, end) if isinstance(method, methods.Voting) else None
                for client, end in people
            ],
            losses,
        )


def one_round(method, scenario, g):
    """Everybody with a part in it trains what it received; then the server takes the average of
    what came back."""
    arrived, lost, losses = [], [], []
    for client in scenario.clients:
        if (work := client.work(g)) is not None:
            with torch.enable_grad():
                losses.append(method.train(client, work))
            if work.broken:
                lost.append(client)
            else:
                arrived.append((client, method.upload(client, work), len(work.samples)))
    if len(arrived) >= scenario.config["server"]["min_clients"]:
        method.aggregate(arrived)
    else:
        lost += [client for client, *_ in arrived]
    for client in lost:
        method.lost(client)
    return losses


def scores(method, scenario, client, position):
    """The accuracy on each task so far, without being told the task and being told; NaN: never
    met."""
    rows = {}
    for task in client.learned(position):
        test = client.tasks[task]["test"]
        told = (
            client.own(task)
            if scenario.config["eval"]["task_classes"] == "own"
            else client.block(task)
        )
        for score, scope, known in (
            ("acc", client.seen(position), None),
            ("acc_masked", told, task),
        ):
            for kind, p in method.probabilities(client, position, test, scope, known).items():
                right = int((p.argmax(-1) == scenario.y[test]).sum())
                rows.setdefault(score + kind, [math.nan] * (position + 1))[task] = right / len(test)
    return rows
