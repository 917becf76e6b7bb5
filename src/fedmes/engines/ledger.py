"""The account of differential privacy: how much a client's training has revealed so far.

Every step with a noised gradient, and every noised update, is a Gaussian mechanism. A sample's
entry is the sum of the squared shifts (common/gaussian_mechanism.py) of all steps that it was in,
as a sample of a task or of the memory; the site's is that of all updates that have left it.
Random batches hide nothing: whoever knows the seed knows them, so every use of a sample counts in
full.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fedmes.common.gaussian_mechanism import epsilon_of, noise_for
from fedmes.config.federation_options import Privacy
from fedmes.methods.base import Method
from fedmes.scenario.plan import Plan, Round
from fedmes.tensors import Tensors, grown

Epsilons = dict[str, float]  # by what is protected: "sample", "site"


class Ledger:
    """One client's account."""

    def __init__(self, method: Method, plan: Plan, sends: bool) -> None:
        """`sends`: do its updates leave the process, with noise if that is asked for?"""
        self.privacy = method.config.privacy
        self.promises = list(self.privacy.promises)
        if not sends and "site" in self.promises:
            self.promises.remove("site")
        self.uses = method.sample_gradients or (0, 0)
        self.samples = np.zeros(plan.count)
        self.site = 0.0

    def train(self, work: Round) -> None:
        """A round's steps have been made."""
        self.samples = self._after(work)

    def send(self) -> None:
        """A noised update leaves the site."""
        self.site += update_cost(self.privacy)

    def epsilon(self) -> Epsilons:
        """What is promised to every sample, and to the site as a whole."""
        return self._epsilon(self.samples, self.site)

    def exceeded_by(self, work: Round | None) -> str:
        """Why another round is more than the budget allows; empty: it is not."""
        budget = self.privacy.budget
        if budget is None or work is None:
            return ""
        then = self._epsilon(self._after(work), self.site + update_cost(self.privacy))
        epsilon = max(then.values(), default=0.0)
        if epsilon <= budget:
            return ""
        return f"privacy.budget: {budget:g}, and another round would make it {epsilon:.4g}"

    def _after(self, work: Round) -> np.ndarray:
        if not self.privacy.noise_multiplier:
            return self.samples
        count = len(self.samples)
        uses = np.zeros(count)
        for numbers, gradients in zip((work.batch, work.memory), self.uses, strict=True):
            # views of a sample are the sample
            uses += gradients * np.bincount(numbers[numbers >= 0] % count, minlength=count)
        return self.samples + uses / self.privacy.noise_multiplier**2

    def _epsilon(self, samples: np.ndarray, site: float) -> Epsilons:
        spent = {"sample": float(samples.max(initial=0.0)), "site": site}
        delta = self.privacy.delta
        return {kind: epsilon_of(spent[kind], delta) for kind in self.promises}

    def save(self) -> Tensors:
        return {
            "samples": torch.from_numpy(self.samples),
            "site": torch.tensor([self.site]).double(),
        }

    def restore(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Samples of further tasks may have been added."""
        if stored:
            fresh = torch.zeros(len(self.samples), dtype=torch.float64)
            self.samples = grown(stored["samples"], fresh).numpy()
            self.site = float(stored["site"])


def update_cost(privacy: Privacy) -> float:
    """The squared shift of one noised update; 0 without noise."""
    if privacy.epsilon is None:
        return 0.0
    return noise_for(privacy.epsilon, privacy.delta) ** -2
