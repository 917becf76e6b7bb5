"""How clients are evaluated. One training can be evaluated under several protocols."""

from __future__ import annotations

from dataclasses import dataclass

from fedmes.common.keyed_random import Ints
from fedmes.config.options import Config
from fedmes.methods.base import Method
from fedmes.scenario.plan import Bools, Plan


@dataclass(frozen=True)
class EvalProtocol:
    """Which model predicts, with which vote of the memory, among which classes.

    Only a method knows what `eval.model` and the options of the vote (`knn.*`) mean to it, so a
    protocol has a method that was made for it. It never trains: an engine calls its
    `build_predictor`, `tune`, `apply_tuning` and `predict`.
    """

    config: Config  # as the protocol's result file has it
    method: Method

    @classmethod
    def of(cls, method: Method) -> EvalProtocol:
        """The protocol that a method was configured with."""
        return cls(method.config, method)

    def candidates(self, plan: Plan) -> Bools:
        """[T, C] the classes to choose from in each task when the task id is given."""
        return plan.classes_given_task(self.config.eval.task_classes)

    def memory(self, plan: Plan, task: int) -> Ints:
        """The samples that vote after a task, in the plan's numbering."""
        if self.config.knn.memory == "before":
            return plan.memory[task]
        return plan.memory_after[task]

    def prediction(self) -> str:
        """Equal for protocols that differ in nothing but the candidates."""
        return repr(self.method.config.options() | {"eval.task_classes": None})
