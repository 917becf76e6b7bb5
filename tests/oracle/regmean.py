"""RegMean a second time: sample by sample, and the merge by numpy on what all clients have."""

import numpy as np
import torch
from torch.nn import functional as F

from oracle.methods import FedAvg


class RegMean(FedAvg):
    def begin_round(self, client, state, work):
        super().begin_round(client, state, work)
        state.products = {}
        with torch.no_grad():
            for row in work.samples:
                for name, h in self.entering(self.server, self.scenario.x[[row]]).items():
                    product = np.outer(h[0], h[0])
                    state.products[name] = state.products.get(name, 0) + product

    def entering(self, w, x):
        """What each linear layer is given, by its weight."""
        if self.network.name == "linear":
            return {"head.weight": x.flatten(1)}
        given = {"head.weight": self.network.features(w, x)[0]}
        if self.network.name == "mlp":
            first = x.flatten(1)
            hidden = F.relu(F.linear(first, w["body.0.weight"], w["body.0.bias"]))
            return given | {"body.0.weight": first, "body.3.weight": hidden}
        for place in ("conv.0", "conv.4"):
            maps = F.conv2d(x, w[f"{place}.weight"], w[f"{place}.bias"], padding=2)
            x = F.max_pool2d(F.relu(maps), 2)
        return given | {"fc.0.weight": x.flatten(1)}

    def aggregate(self, arrived):
        before = self.server
        super().aggregate(arrived)
        alpha = self.options("regmean").alpha
        for name in self.states[arrived[0][0].column].products:
            matrix, right = 0, 0
            for client, upload, _ in arrived:
                g = self.states[client.column].products[name]
                own = np.diag(np.diag(g))
                g = alpha * (g - own) + own + 1e-6 * np.trace(g) / len(g) * np.eye(len(g))
                matrix = matrix + g
                right = right + (upload[name] - before[name]).numpy() @ g
            moved = np.linalg.solve(matrix, right.T).T
            self.server[name] = before[name] + torch.from_numpy(moved)
