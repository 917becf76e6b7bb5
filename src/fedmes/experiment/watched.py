"""Checks the rules for methods (docs/own-method.md) while the functions of a method are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmes.common.own_code import OwnCode, frames
from fedmes.errors import UserError
from fedmes.methods.base import Method
from fedmes.models import functional
from fedmes.results.rounds_csv import COUNTED, PLACE
from fedmes.tensors import Tensors

RULES = {
    "branch": "rule 1 of docs/own-method.md: "
    "torch.where instead of if, and masks instead of choosing samples",
    "random": "rule 2 of docs/own-method.md: "
    "fedmes.methods.hashed_uniforms(ctx.key, shape) makes random numbers",
    "entries": "rule 3 of docs/own-method.md: "
    "return entries that the state has had from the beginning",
    "shape": "rule 3 of docs/own-method.md: an entry keeps its shape and type",
    "in place": "rule 4 of docs/own-method.md: "
    "return new tensors, and leave those that were given as they are",
    "form": "rule 5 of docs/own-method.md: "
    "the functions of fedmes.methods.Method, what they take and return",
    "report": "rule 6 of docs/own-method.md: "
    "one number a name, under names that rounds.csv does not have yet",
}
CONTRACT = (
    "server", "aggregate", "sent_down", "init", "begin_task", "begin_round", "step", "end_round",
    "upload", "report", "end_task", "build_predictor", "embed_memory", "apply_tuning", "predict",
    "measure", "tune",
)  # fmt: skip
# functions that return changed entries of their first argument
CHANGES = ("begin_task", "begin_round", "step", "end_round", "end_task", "aggregate")

BRANCHES = ("branches on a tensor's value", "branch")
CHOOSES = ("makes a tensor whose size depends on values", "branch")
DRAWS = ("draws random numbers", "random")
IN_PLACE = ("works in place", "in place")
READ_VALUES = (
    "__bool__", "__float__", "__int__", "__index__", "__array__", "item", "tolist", "numpy",
    "equal", "allclose",
)  # fmt: skip
CHOOSE_SAMPLES = ("nonzero", "argwhere", "masked_select", "unique")
DRAW_NUMBERS = (
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "normal",
    "bernoulli", "multinomial", "poisson", "bernoulli_", "normal_", "uniform_", "random_",
    "exponential_", "dropout",
)  # fmt: skip
# functions of torch that no method may call: what is wrong with them, and by which rule
FORBIDDEN = {
    **dict.fromkeys(READ_VALUES, BRANCHES),
    **dict.fromkeys(CHOOSE_SAMPLES, CHOOSES),
    **dict.fromkeys(DRAW_NUMBERS, DRAWS),
}
# the words with which torch refuses to map a function over clients
VMAP = {
    "control flow": BRANCHES,
    ".item()": BRANCHES,
    "random": DRAWS,
    "inplace": IN_PLACE,
}


def watch(method: Method, own: OwnCode) -> Method:
    """The method, with its functions checked whenever an engine calls them."""
    watcher = _Watcher(own)
    for name in CONTRACT:
        if callable(function := getattr(method, name, None)):
            setattr(method, name, partial(watcher.call, name, function))
    return method


class _Watcher(TorchFunctionMode):
    """Sees what a function of a method asks of torch while it runs."""

    def __init__(self, own: OwnCode) -> None:
        super().__init__()
        self.own = own
        self.name = ""  # of the function that is running

    def call(self, name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if self.name:
            return function(*arguments, **named)  # called by another function of the method
        try:
            given = inspect.signature(function).bind(*arguments, **named).args
        except TypeError as error:
            raise self._wrong(f"is called in another way ({error})", "form", name) from None
        versions = [t._version for t in _tensors(given)]
        self.name = name
        try:
            with self:
                answer = function(*given)
                again = function(*given)
        except NotImplementedError as error:
            if self.own.line_of(error) is not None:
                raise
            raise self._wrong("is missing", "form", name) from error
        finally:
            self.name = ""
        if versions != [t._version for t in _tensors(given)]:
            raise self._wrong("changes a tensor that it was given", "in place", name)
        _check(partial(self._wrong, name=name), name, given, answer)
        if not _same(answer, again):
            raise self._wrong("answers differently when it is asked twice", "random", name)
        return answer

    def _wrong(self, what: str, rule: str, name: str) -> UserError:
        return self.own.mistake(f"{name}() {what}", self.own.defined(name), RULES[rule])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = getattr(func, "__name__", "")
        mask = called == "__getitem__" and _has_mask(args[1])
        if (mask or called in FORBIDDEN) and not _in_network():
            what, rule = FORBIDDEN.get(called, CHOOSES)
            raise self.own.mistake(f"{self.name}() {what}", self.own.line_now(), RULES[rule])
        return func(*args, **(kwargs or {}))


def _in_network() -> bool:
    """A network may read values, where it runs for one client at a time; `Net` checks its random
    numbers."""
    return any(frame.f_code.co_filename == functional.__file__ for frame in frames())


def _has_mask(index: Any) -> bool:
    if isinstance(index, tuple):
        return any(map(_has_mask, index))
    return isinstance(index, Tensor) and index.dtype == torch.bool


def explained(own: OwnCode, function: str, error: Exception) -> UserError:
    """An error as a mistake against a rule, where torch says which."""
    text = str(error)
    for words, (what, rule) in VMAP.items():
        if own.kind == "method" and "vmap" in text and words in text:
            return own.mistake(f"{function} {what}", own.line_of(error), RULES[rule])
    return own.failure(error, function)


# --- what a function returns ----------------------------------------------------------------------


Wrong = Callable[[str, str], UserError]  # what is wrong, and by which rule


def _check(wrong: Wrong, name: str, given: tuple[Any, ...], answer: Any) -> None:
    if name == "sent_down":
        pair = isinstance(answer, tuple) and len(answer) == 2
        if not pair or not all(map(_is_flat, answer)):
            raise wrong("must return two dictionaries of tensors", "form")
        return
    if name == "report":
        _check_report(wrong, answer)
    elif not _is_flat(answer):
        raise wrong(f"must return a dictionary of tensors by name, not {_said(answer)}", "form")
    if name in CHANGES:
        maker = {"aggregate": "server"}.get(name, "init")
        _check_changes(wrong, given[0], answer, maker)
    if name == "build_predictor" and not any(entry.startswith("w.") for entry in answer):
        raise wrong("returns no entry w.*, which predicts", "form")
    if name == "predict":
        needed = (len(given[1]), given[2].shape[-1])
        if "acc" not in answer or tuple(answer["acc"].shape) != needed:
            raise wrong(
                f'must return "acc", class probabilities of shape {needed}, not {_said(answer)}',
                "form",
            )


def _check_changes(wrong: Wrong, before: Tensors, new: Tensors, maker: str) -> None:
    for entry, value in new.items():
        if entry not in before:
            raise wrong(f"returns the entry {entry!r}, which {maker}() has not made", "entries")
        there = before[entry]
        if value.shape != there.shape or value.dtype != there.dtype:
            text = f"returns {entry!r} as {_kind(value)}, which is {_kind(there)} in the state"
            raise wrong(text, "shape")


def _kind(t: Tensor) -> str:
    return f"{str(t.dtype).removeprefix('torch.')} of shape {tuple(t.shape)}"


def _check_report(wrong: Wrong, answer: Any) -> None:
    if not isinstance(answer, dict) or not all(isinstance(entry, str) for entry in answer):
        raise wrong(f"must return a dictionary of numbers by name, not {_said(answer)}", "report")
    for entry, value in answer.items():
        if not isinstance(value, Tensor) or value.ndim or value.is_complex():
            raise wrong(
                f"returns {entry!r} as {_said(value)}; a number is a tensor without axes", "report"
            )
        if entry in (*PLACE, *COUNTED):
            raise wrong(f"returns {entry!r}, which is another column of rounds.csv", "report")


def _is_flat(answer: Any) -> bool:
    return isinstance(answer, dict) and all(
        isinstance(k, str) and isinstance(v, Tensor) for k, v in answer.items()
    )


def _said(answer: Any) -> str:
    if isinstance(answer, Tensor):
        return f"a tensor of shape {tuple(answer.shape)}"
    if isinstance(answer, dict):
        entries = [f"{key!r}: {_said(value)}" for key, value in list(answer.items())[:3]]
        return "{" + ", ".join(entries) + "}"
    if isinstance(answer, (int, float, str)):
        return f"{answer!r:.40}"
    if answer is None:
        return "nothing"
    return type(answer).__name__


def _same(one: Any, two: Any) -> bool:
    first = _tensors(one)
    second = _tensors(two)
    if any(map(torch._C._functorch.is_batchedtensor, first)):
        return True  # mapped over scopes, where values cannot be read
    return len(first) == len(second) and all(map(_equal, first, second))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())


def _tensors(given: Any) -> list[Tensor]:
    """All tensors in nested dictionaries and tuples."""
    if isinstance(given, Tensor):
        return [given]
    if isinstance(given, dict):
        given = tuple(given.values())
    if not isinstance(given, (tuple, list)):
        return []
    return list(chain.from_iterable(map(_tensors, given)))
