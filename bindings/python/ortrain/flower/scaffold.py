"""SCAFFOLD (Karimireddy et al. 2020), a strategy that Flower does not have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from ortrain.flower.records import CONTROL, Array, array


class Scaffold(FedAvg):  # type: ignore[misc]
    """SCAFFOLD: clients correct their gradients by how they differ from those of all clients.

    Each client keeps its control variate in its state on the node. A client that has lost it starts again from zero.

    Parameters
    ----------
    **options
        As for ``flwr.serverapp.strategy.FedAvg``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._control: Array | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the control variate with the parameters."""
        if self._control is None:
            size = int(config["trained-elements"])
            self._control = np.zeros(size, next(iter(arrays.values())).numpy().dtype)
        self._nodes = len(list(grid.get_node_ids()))
        both = ArrayRecord({**arrays, CONTROL: array(self._control)})
        sent: Iterable[Message] = super().configure_train(server_round, both, config, grid)
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the parameters by rows, and add the mean change of the control variates."""
        replies = list(replies)
        changes = []
        for reply in replies:
            if reply.has_content() and CONTROL in reply.content["arrays"]:
                changes.append(reply.content["arrays"].pop(CONTROL).numpy())
        arrays, metrics = super().aggregate_train(server_round, replies)
        if changes and self._control is not None:
            self._control = self._control + np.sum(changes, axis=0) / max(self._nodes, len(changes))
            self._control = self._control.astype(changes[0].dtype)
        return arrays, metrics
