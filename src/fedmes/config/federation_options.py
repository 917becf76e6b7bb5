"""Options of the federation: who takes part in a round, and what is sent."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedmes.common import keyed_random
from fedmes.config.section import Positive, Role, Section, Share, option

NotNegative = Annotated[float, Field(ge=0)]
AboveZero = Annotated[float, Field(gt=0)]


class Server(Section):
    """The server's part of a round."""

    role: ClassVar[Role] = "federation"

    fraction: Annotated[float, Field(gt=0, le=1)] = option(
        1.0, "share of the clients with a task that takes part in a round"
    )
    cohort: Positive | None = option(
        None,
        "number of clients that take part in a round, drawn from those with a task, or from the "
        "real sites that can be reached. All of them, where there are fewer.",
        unset="by `server.fraction`",
    )
    min_clients: Positive = option(
        1,
        "minimum number of valid updates per round. With fewer, the server keeps its state; a "
        "round of real sites waits until as many are connected.",
    )
    patience: NotNegative = option(
        0.0,
        "seconds for which real sites are asked for new tasks once all are learned. Then the run "
        "ends.",
    )
    timeout: AboveZero = option(
        3600.0,
        "seconds that a round waits for its answers (Flower). A site that has missed it is not "
        "waited for again until it answers.",
    )
    robust: (
        Literal["none", "clip", "median", "trimmed-mean", "multi-krum", "geometric-median"] | None
    ) = option(
        None,
        "none, clip, median, trimmed-mean, multi-krum or geometric-median: how the server averages "
        "updates of which some may be malicious. `clip` scales every update down to the round's "
        "median norm ([what helps against what](attacks.md)).",
        unset="`clip` for real sites if the method's server takes a mean, else `none`",
    )
    dishonest: Annotated[float, Field(ge=0, lt=0.5)] = option(
        0.3,
        "share of the updates that `trimmed-mean` cuts off at each end and `multi-krum` leaves "
        "out, rounded down",
    )

    @model_validator(mode="after")
    def _one_number(self) -> Server:
        if self.cohort is not None and self.fraction != 1:
            raise ValueError("cohort and fraction both say how many clients take part; give one")
        return self


class Faults(Section):
    """Simulated faults, for experiments."""

    role: ClassVar[Role] = "federation"

    drop: Annotated[float, Field(ge=0, lt=1)] = option(
        0.0, "probability that a client does not answer in a round"
    )
    nan: Share = option(0.0, "probability that a client's update is not a number and is rejected")
    attackers: Annotated[float, Field(ge=0, lt=1)] = option(
        0.0,
        "share of the clients that attack the others in every round, rounded down. Their own "
        "accuracy is not recorded ([attacks.md](attacks.md)).",
    )
    attack: Literal["sign-flip", "scale", "label-flip", "free-ride"] = option(
        "sign-flip",
        "sign-flip, scale, label-flip or free-ride. Attackers send their update times "
        "-`faults.factor`, times `faults.factor`, learned from wrong labels, or none.",
    )
    factor: AboveZero = option(10.0, "what `sign-flip` and `scale` multiply an update by")

    def attacking(self, clients: int, seed: int) -> list[int]:
        """The clients that attack, in a simulation of so many."""
        count = int(self.attackers * clients + 1e-9)
        order = keyed_random.permutation(clients, seed, "attackers")
        return sorted(order[:count].tolist())

    @property
    def update_factor(self) -> float:
        """What attackers multiply their updates by."""
        factors = {"sign-flip": -self.factor, "scale": self.factor, "free-ride": 0.0}
        return factors.get(self.attack, 1.0)


class FederationOptions(Section):
    """What real sites must agree on; a simulation has it from its data."""

    role: ClassVar[Role] = "federation"

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = option(
        "client",
        "real sites: folder inside the site's folder with its state. Two federations of the same "
        "sites need two names.",
    )
    sites: list[str] = option(
        [],
        "real sites: their names, in the order of clients ([deployment.md](deployment.md))",
        unset="none",
    )
    keys: list[Annotated[str, Field(pattern=r"^(SHA256:[A-Za-z0-9+/]{43})?$")]] = option(
        [],
        "real sites: the fingerprint of each site's key, in the order of `federation.sites`, as "
        "`fedmes site init` and `ssh-keygen -lf key.pub` print it; clients of one node have the "
        "same. A node with another key is refused under that name; an empty one leaves a name to "
        "whoever comes first.",
        unset="none",
    )
    former: list[str] = option(
        [],
        "real sites: those that have left. They keep their number. The server writes it when a "
        "name is no longer among `federation.sites`.",
        unset="none",
    )
    classes: list[str] = option(
        [],
        "real sites: class names, in the order of their ids. Classes that sites bring later are "
        "added at the end.",
        unset="none",
    )
    earlier: list[Positive] = option(
        [],
        "real sites: the number of classes before each time that some were added, written by the "
        "server",
        unset="none",
    )
    shape: list[Positive] = option(
        [],
        "real sites: shape of a sample, as channels, height, width; or as one length",
        unset="none",
    )
    columns: list[str] = option(
        [],
        "real sites with tables: what each entry of a sample is. NAME: a column of numbers; "
        "NAME=VALUE: 1 where a column has this value; `text` alone: words of texts.",
        unset="none",
    )
    mean: list[float] = option(
        [],
        "real sites: mean per channel, of pixels between 0 and 1; of tables per column and of time "
        "series per channel, as they are. Without it, samples are not normalised.",
        unset="none",
    )
    std: list[AboveZero] = option([], "real sites: standard deviation, as the mean", unset="none")

    @property
    def class_counts(self) -> tuple[int, ...]:
        """The number of classes, each time that some were added, and now."""
        return (*self.earlier, len(self.classes))

    @property
    def members(self) -> list[str]:
        """The sites that have not left."""
        return [name for name in self.sites if name not in self.former]

    @property
    def key_of(self) -> dict[str, str]:
        """The fingerprints of the sites whose names are bound to a key."""
        bound = dict(zip(self.sites, self.keys, strict=False))
        return {name: key for name, key in bound.items() if key}

    @model_validator(mode="after")
    def _bound(self) -> FederationOptions:
        if self.keys and len(self.keys) != len(self.sites):
            raise ValueError(f"{len(self.keys)} keys for {len(self.sites)} sites")
        return self

    @model_validator(mode="after")
    def _whole(self) -> FederationOptions:
        if self.sites and not (self.classes and len(self.shape) in (1, 3)):
            raise ValueError(
                "sites need classes and a shape (channels, height, width; or one length)"
            )
        if len(set(self.sites)) < len(self.sites) or len(set(self.classes)) < len(self.classes):
            raise ValueError("a name is given twice")
        counts = [0, *self.class_counts]
        if self.earlier and counts != sorted(set(counts)):
            raise ValueError("earlier numbers of classes grow up to the present one")
        if not set(self.former) <= set(self.sites):
            raise ValueError("a site that has left was none")
        if len(self.mean) != len(self.std) or (self.mean and len(self.mean) != self.shape[0]):
            raise ValueError("mean and std need one number for each channel")
        if self.columns and self.columns != ["text"] and self.shape != [len(self.columns)]:
            raise ValueError("columns: shape is their number")
        return self


class Privacy(Section):
    """What hides a client's samples and updates ([privacy.md](privacy.md))."""

    role: ClassVar[Role] = "federation"

    clip: AboveZero | None = option(
        None,
        "maximum norm of an update that leaves a site (Flower; "
        "[what it protects](privacy.md#noise-on-updates))",
        unset="none",
    )
    epsilon: AboveZero | None = option(
        None,
        "local differential privacy per round: noise is added to the clipped update",
        unset="none",
    )
    sample_clip: AboveZero | None = option(
        None,
        "maximum norm of one sample's gradient: DP-SGD, in every engine "
        "([what it protects](privacy.md#noise-on-gradients))",
        unset="none",
    )
    noise_multiplier: NotNegative = option(
        0.0,
        "DP-SGD: standard deviation of the noise on a sum of gradients, in units of "
        "`privacy.sample_clip`. 0: gradients are clipped, and nothing is hidden.",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = option(
        1e-5, "second parameter of differential privacy"
    )
    budget: AboveZero | None = option(
        None,
        "maximum epsilon of all rounds and tasks together. Training ends before it is exceeded.",
        unset="none",
    )

    secure_aggregation: bool = option(
        False,
        "the server learns the sum of the sites' updates and no single one (Flower; "
        "[how](privacy.md#secure-aggregation))",
    )

    @property
    def promises(self) -> list[str]:
        """What a run keeps account of: samples, the updates of sites, or nothing."""
        kept = {"sample": self.noise_multiplier > 0, "site": self.epsilon is not None}
        return [kind for kind, noise in kept.items() if noise]

    @model_validator(mode="after")
    def _bounded(self) -> Privacy:
        if self.epsilon is not None and self.clip is None:
            raise ValueError("epsilon needs clip, which bounds what noise must hide")
        if self.noise_multiplier and self.sample_clip is None:
            raise ValueError(
                "noise_multiplier needs sample_clip, which bounds what noise must hide"
            )
        if self.budget is not None and not self.promises:
            raise ValueError("budget needs noise: noise_multiplier, or clip and epsilon")
        return self


class Comm(Section):
    """The communication model."""

    role: ClassVar[Role] = "output"

    mbps: AboveZero = option(
        40.0, "bandwidth of each client in Mbit/s, for the modelled communication time"
    )
