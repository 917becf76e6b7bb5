"""FedMeS+: replay in one softmax, a teacher, a pull, and moved images."""

import torch

from oracle.mathematics import (
    cross_entropy,
    distillation,
    gradient,
    mean,
)
from oracle.methods import FedAvg
from oracle.scenario import hashed


class FedMeSPlus(FedAvg):
    """The memory replayed in one balanced softmax, the model received as the task began as a
    teacher, and a pull towards the one received in the round."""

    weighted = False
    judged = "halfway"
    keeps = True

    def join(self, state, initial):
        state.known = torch.zeros(self.scenario.classes, dtype=torch.bool)  # when the task began

    def begin_task(self, client, state, work):
        state.teacher = self.server

    def end_task(self, client, state, position):
        state.known = client.seen(position)

    def direction(self, client, state, work, step):
        options, current = self.options("fedmesplus"), client.own(work.position)
        earlier = int((client.seen(work.position) & ~current).sum())
        # Half of what a step sees is shared by the task's classes, half by the earlier ones; all
        # others count as these.
        frequency = torch.full((self.scenario.classes,), 0.5 / max(1, earlier), dtype=torch.float64)
        frequency[current] = 0.5 / int(current.sum())
        prior = options.balance * frequency.log()
        batch = self.shown(self.scenario.x[step.batch], step.key + (1 << 52))
        memory = self.shown(self.scenario.x[step.memory], step.key + (1 << 53))
        taught = self.network.logits(state.teacher, batch)

        def loss(w):
            now, then = self.network.logits(w, batch, step.key), self.network.logits(w, memory)
            return (
                cross_entropy(
                    now + prior,
                    self.scenario.y[step.batch],
                    client.trained_among(work.position, step.batch),
                )
                + cross_entropy(
                    then + prior,
                    self.scenario.y[step.memory],
                    client.trained_among(work.position, step.memory),
                )
                + options.teach * distillation(taught, now, state.known, 2.0)
            )

        g, value = gradient(loss, state.w)
        far = {name: state.w[name] - self.server[name] for name in g}
        return {name: g[name] + options.pull * far[name] for name in g}, value

    def shown(self, x, key):
        """Images move by up to an eighth of their size, edges go on; and are mirrored or not."""
        augment = self.config["fedmesplus"].get("augment", "none")
        if x.ndim != 4 or augment == "none" or not len(x):
            return x
        height, width = x.shape[-2:]
        shown = []

        def moved(size, number):
            by = int(number * (2 * (size // 8) + 1)) - size // 8
            return [min(max(i + by, 0), size - 1) for i in range(size)]

        for image, (down, right, mirror) in zip(x, hashed(key, len(x), 3).tolist(), strict=True):
            if augment == "flip" and mirror < 0.5:
                image = image.flip(-1)
            shown.append(image[:, moved(height, down)][:, :, moved(width, right)])
        return torch.stack(shown)

    def model(self, client):
        state = self.states[client.column]
        if self.judged == "halfway":
            return mean([state.w, self.server], [1, 1])
        return super().model(client)
