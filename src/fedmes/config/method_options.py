"""Options of the built-in methods, a section per method.

A method names its section as `Options` (docs/own-method.md). They are declared here, not beside the
methods, since methods import torch: reading a configuration must not wait for it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedmes.config.section import Role, Section, Share, option

NotNegative = Annotated[float, Field(ge=0)]
Temperature = Annotated[float, Field(gt=0)]


class MethodOptions(Section):
    """Options that one method has. The section is named after the method's class, in lower case."""

    role: ClassVar[Role] = "method"


class FedproxOptions(MethodOptions):
    """FedProx."""

    mu: NotNegative = option(0.1, "weight of the proximal term towards the received model")


class DittoOptions(MethodOptions):
    """Ditto."""

    lam: NotNegative = option(
        0.1, "weight of the personal model's proximal term towards the received model"
    )


class FedmesOptions(MethodOptions):
    """FedMeS."""

    start: Literal["global", "continue"] = option(
        "global",
        "model at the start of a round. `global`: the received one; `continue`: the client's own.",
    )
    lambda_: Literal["paper", "rescaled"] | NotNegative = option(
        "paper",
        "pull towards the received model. `paper`: 2·sigmoid(1/L); `rescaled`: 2·tanh(1/(2L)); or "
        "a number.",
        alias="lambda",
    )
    correction: Literal["agem", "agem_margin", "replay"] = option(
        "agem",
        "correction of a step that conflicts with the memory's gradient gm. `agem` removes the "
        "component along gm (rule 2); `agem_margin` also adds 0.5·gm, so that the memory's loss "
        "falls; `replay` corrects nothing: every step follows batch gradient + gm, with the pull.",
    )


class KnnperOptions(MethodOptions):
    """kNN-Per."""

    store: Literal["memory", "all"] = option(
        "memory",
        "samples that vote. `memory`: those in the memory; `all`: all training samples of the "
        "tasks so far, an upper bound (`config.toml` then has the memory options this implies).",
    )


class FedmesplusOptions(MethodOptions):
    """FedMeS+."""

    balance: NotNegative | None = option(
        None,
        "how much the softmax compensates for class frequencies. `0`: not at all, plain replay; "
        "above 1, earlier classes are preferred. Default: 3 for networks from scratch that learn a "
        "task for 100 epochs or more, which learn the memory by heart; else 2.",
        unset="by training",
    )
    teach: NotNegative = option(
        1.0,
        "weight of distillation from the teacher, the model received when the task began",
    )
    pull: NotNegative | None = option(
        None,
        "strength of the pull towards the received model, as FedMeS's lambda and FedProx's mu. "
        "Default: 0.01 where `balance` is 3 by default; else 0.",
        unset="by training",
    )
    augment: Literal["none", "shift", "flip"] | None = option(
        None,
        "augmentation of training images. `none`; `shift`: by up to an eighth of their size; "
        "`flip`: shifted, and mirrored or not. Default: `flip` for colour images, `shift` for "
        "others, `none` below 14 pixels per side. Where left and right differ in meaning, use "
        "`shift`.",
        unset="by data",
    )


class FlwfOptions(MethodOptions):
    """FLwF."""

    alpha: NotNegative = option(0.1, "weight of distillation from the past model")
    temp: Temperature = option(2.0, "temperature of distillation")


class Flwf2tOptions(MethodOptions):
    """FLwF-2T."""

    alpha: Share = option(0.5, "weight of the labels")
    beta: Share = option(
        0.3,
        "weight of the past model (0 in the first task, which has none). The received model has "
        "the rest to 1.",
    )
    temp: Temperature = option(2.0, "temperature of distillation")

    @model_validator(mode="after")
    def _shares(self) -> Flwf2tOptions:
        if self.alpha + self.beta > 1:
            raise ValueError(f"alpha {self.alpha} and beta {self.beta} are more than 1 together")
        return self


class DerppOptions(MethodOptions):
    """DER++."""

    alpha: NotNegative = option(
        0.3, "weight of the squared distance between a stored sample's logits now and then"
    )
    beta: NotNegative = option(0.5, "weight of the stored samples' labels")


class EwcOptions(MethodOptions):
    """EWC."""

    lam: NotNegative = option(
        1000.0,
        "lambda of the penalty lambda/2 · F · (w - w*)², which holds weights near those of the "
        "earlier tasks by their Fisher information F",
    )
    gamma: Share = option(
        1.0, "how much of the earlier tasks' importance is left when a task ends. `1`: all of it."
    )


class MasOptions(MethodOptions):
    """MAS."""

    lam: NotNegative = option(
        2.0,
        "lambda of the penalty lambda/2 · O · (w - w*)², which holds weights near those of the "
        "earlier tasks by their importance O. Twice the paper's lambda.",
    )
    gamma: Share = option(
        1.0, "how much of the earlier tasks' importance is left when a task ends. `1`: all of it."
    )


class FedprotoOptions(MethodOptions):
    """FedProto."""

    ld: NotNegative = option(1.0, "weight of the distance between features and prototypes")


class CcvrOptions(MethodOptions):
    """CCVR."""

    samples: Annotated[int, Field(ge=1)] = option(50, "virtual features drawn of each class")
    steps: Annotated[int, Field(ge=0)] = option(
        50, "steps of gradient descent on all virtual features. `0`: the head stays as it is."
    )


class RegmeanOptions(MethodOptions):
    """RegMean."""

    alpha: Share = option(
        0.9,
        "how much products of two inputs of a layer count in its merge. `0`: not at all; each "
        "weight is averaged by the squares of its input. `1`: fully, which is less stable.",
    )


class Lfedcon2Options(MethodOptions):
    """LFedCon2."""

    members: Annotated[int, Field(ge=1)] = option(
        10, "classifiers in the server's ensemble, the best of all clients'"
    )
    local: Annotated[int, Field(ge=1)] = option(
        5, "classifiers that a client sets aside; the oldest one goes first"
    )
    drift: Share = option(
        0.5,
        "a client sets its classifier aside if, on new samples, the mean probability of the right "
        "class is below this share of the highest it has had. `0`: never.",
    )


class FedstatsOptions(MethodOptions):
    """FedStats."""

    head: Literal["lda", "ridge", "mean"] = option(
        "lda",
        "what is solved for. `lda`: linear discriminant analysis; `ridge`: ridge regression; "
        "`mean`: the nearest class mean.",
    )
    prior: Annotated[float, Field(gt=0)] = option(
        2000.0,
        "shrinks the matrix that is inverted towards a sphere, as if so many samples had been "
        "spread evenly in all directions",
    )
    own: Annotated[float, Field(ge=0, le=1)] | Literal["tuned"] = option(
        0.5,
        "the share of a client's own sums in those it solves from: 0 takes the sums of all, 1 its "
        "own alone. `tuned`: what does best on the client's memory, whose samples are taken out of "
        "the sums for it.",
    )
    frequency: NotNegative = option(
        0.0,
        "how much the logarithm of a class's frequency among the client's own samples adds to its "
        "score: 0 takes all classes as equally frequent. 1 is Bayes' rule, if new samples are as "
        "uneven; `lda` is too sure of itself, so more may be better.",
    )
    adapt: Annotated[int, Field(ge=0)] = option(
        0,
        "so many rounds at the start train the network and average it, before its body is fixed "
        "and sums are collected. For a pretrained one with `model.train=adapters`.",
    )


class FedweitOptions(MethodOptions):
    """FedWeIT."""

    l1: NotNegative = option(
        1e-3,
        "sparsity of the task-adaptive weights. Smaller weights are neither sent nor used to "
        "predict.",
    )
    l2: Annotated[float, Field(gt=0)] = option(
        100.0, "penalty on changes of the weights of earlier tasks"
    )
    wd: NotNegative = option(
        1e-4,
        "weight decay of masks and task-adaptive weights, in the first task also of the base",
    )
    sparsity: Annotated[float, Field(ge=0, lt=1)] = option(
        0.3, "share of the channels of a layer that is not sent"
    )
    kb: Literal["previous", "all_previous"] = option(
        "previous",
        "task-adaptive weights received from other clients. `previous`: those of their previous "
        "task; `all_previous`: of all their tasks (traffic grows with tasks).",
    )
    retroactive: bool = option(
        False,
        "also train masks and task-adaptive weights of earlier tasks. As in the papers; the "
        "released code does not.",
    )
    decompose_downsample: bool = option(
        True,
        "also decompose the 1x1 shortcut convolutions of `resnet18`. As in FedMeS's paper; "
        "`false`: each task has its own.",
    )
