"""`[policy]` in `site.toml`: what the owner of a site lets a federation's server ask for."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedmes.common.keyed_random import Ints
from fedmes.config.options import Config
from fedmes.errors import UserError
from fedmes.methods import METHODS
from fedmes.models.networks import MODELS
from fedmes.models.timm_networks import PREFIX
from fedmes.results import checkpoint
from fedmes.scenario.plan import Plan

BUILT_IN = "built-in"
CLIENTS = "clients"  # the folder of a federation's clients, where a site holds several
MOST = 10**9
MEGABYTE = 10**6

Number = Annotated[int, Field(ge=1, le=MOST)]
AboveZero = Annotated[float, Field(gt=0)]


def line(default: Any, description: str) -> Any:
    return Field(default, description=description)


class Policy(BaseModel):
    """The limits of a site. Every field is a line of the file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    methods: list[str] = line(
        [BUILT_IN], "methods that may run; one in a Python file, /path/file.py:Name, by this name"
    )
    networks: list[str] = line(
        [BUILT_IN], "networks that may be trained; one in a Python file likewise"
    )
    min_batch: Number = line(2, "samples in a mini-batch, at least")
    min_samples: Number = line(8, "training samples of a task, at least")
    min_per_class: Number = line(2, "training samples of each class of a task, at least")
    max_epochs: Number = line(100, "epochs in a round, at most")
    max_rounds: Number = line(1000, "rounds of a task, at most")
    max_clip: AboveZero | None = line(
        None, "norm of an update, at most: privacy.clip must be set, and not be larger"
    )
    max_epsilon: AboveZero | None = line(
        None, "privacy.epsilon must be set, and not be larger: noise on every update"
    )
    max_delta: AboveZero = line(1e-5, "privacy.delta must not be larger, where max_epsilon is set")
    secure_aggregation: bool = line(
        False, "true: updates leave only inside sums (privacy.secure_aggregation)"
    )
    max_federations: Number = line(
        1, "values of federation.name: under each new one, the same data is learned from again"
    )
    max_message_mb: Number = line(1024, "size of a message to this site, in MB, at most")
    max_disk_mb: Number = line(50_000, "size of this folder, in MB, at most")
    max_growth: AboveZero = line(
        1000.0,
        "norm of the server's model, as a multiple of the last good one, at most. What FedStats "
        "sends are sums, which grow with the samples of all",
    )

    @classmethod
    def of(cls, about: Mapping[str, Any], path: Path) -> Policy:
        """From the content of `site.toml`; what it does not say has its default."""
        try:
            return cls.model_validate(about.get("policy", {}))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, ("policy", *first["loc"])))
            raise UserError(f"{path}: {place}: {first['msg']}") from None

    @classmethod
    def of_trial(cls, config: Config) -> Policy:
        """Of a site that the same person has asked for what it will be asked for."""
        return cls(
            methods=[config.method],
            networks=[config.model.name],
            min_batch=1,
            min_samples=1,
            min_per_class=1,
            max_epochs=MOST,
            max_rounds=MOST,
        )

    def text(self) -> str:
        """The section of the file, with a comment for each line."""
        lines = ["[policy]"]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            lines.append(f"# {field.description}")
            if value is None:
                lines.append(f"# {name} = 1.0")
            else:
                lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        return "\n".join(lines) + "\n"

    def check(self, config: Config) -> None:
        """Refuse what the server's configuration asks for, if the owner does not allow it."""
        self._allowed("methods", config.method, METHODS)
        self._allowed("networks", config.model.name, MODELS)
        self._at_least("min_batch", config.batch, "mini-batches")
        self._at_most("max_epochs", config.epochs, "epochs in a round")
        self._at_most("max_rounds", config.rounds, "rounds of a task")
        privacy = config.privacy
        self._required("max_clip", privacy.clip, "privacy.clip")
        self._required("max_epsilon", privacy.epsilon, "privacy.epsilon")
        if self.max_epsilon is not None:
            self._at_most("max_delta", privacy.delta, "privacy.delta")
        if self.secure_aggregation and not privacy.secure_aggregation:
            raise self.refusal("secure_aggregation", "privacy.secure_aggregation is off")

    def check_samples(self, plan: Plan, labels: Ints) -> None:
        """Refuse tasks that are so small that what leaves tells of single samples."""
        for position in range(len(plan.test)):
            # the samples themselves; their views come behind them
            numbers = np.flatnonzero(plan.task[: plan.count] == position)
            classes = labels[plan.rows[numbers]]
            task = f"task {position + 1}"
            self._at_least("min_samples", len(classes), f"{task}: training samples")
            fewest = int(np.unique(classes, return_counts=True)[1].min())
            self._at_least("min_per_class", fewest, f"{task}: training samples of a class")

    def check_place(self, folder: Path, federation: str, message: int) -> None:
        """Refuse a message that is too large, a full folder, and a federation too many."""
        self._at_most("max_message_mb", message / MEGABYTE, "MB in a message")
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        self._at_most("max_disk_mb", (used + message) / MEGABYTE, "MB in this folder")
        known = {path.parent.name for path in folder.glob(f"*/{checkpoint.FOLDER}")}
        known |= {path.parent.name for path in folder.glob(f"*/{CLIENTS}")}
        if federation not in known:
            self._at_most("max_federations", len(known) + 1, "federations, with this one")

    def check_growth(self, norm: float, last: float) -> None:
        if last > 0:
            self._at_most("max_growth", norm / last, "times the norm of the last good broadcast")

    def refusal(self, name: str, why: str) -> UserError:
        value = json.dumps(getattr(self, name), ensure_ascii=False)
        return UserError(f"policy of the site, {name} = {value}: {why}")

    def _allowed(self, name: str, asked: str, built_in: Collection[str]) -> None:
        listed = getattr(self, name)
        ours = asked in built_in or (name == "networks" and asked.startswith(PREFIX))
        if asked not in listed and not (ours and BUILT_IN in listed):
            raise self.refusal(name, f"{asked} is asked for")

    def _at_least(self, name: str, value: int, what: str) -> None:
        if value < getattr(self, name):
            raise self.refusal(name, f"{what}: {value}")

    def _at_most(self, name: str, value: float, what: str) -> None:
        if not value <= getattr(self, name):
            raise self.refusal(name, f"{what}: {value:.6g}")

    def _required(self, name: str, value: float | None, option: str) -> None:
        limit = getattr(self, name)
        if limit is not None and (value is None or value > limit):
            raise self.refusal(name, f"{option} is {value or 'off'}")
