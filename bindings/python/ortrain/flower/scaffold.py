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
    """SCAFFOLD: clients correct the difference between their gradients and those of all clients.

    Each client keeps its control variate in Flower's state of the node, which is lost when its SuperNode ends. It then takes
    zero for one round, and has a new one after it. The server keeps the variates of the nodes that are connected, as many
    elements for each as there are trained parameters; that of all clients is their mean, so a node that is gone, or that has
    come back under another number, leaves nothing behind in it.

    Parameters
    ----------
    **options
        As for ``flwr.serverapp.strategy.FedAvg``.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._controls: dict[int, Array] = {}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the control variate with the parameters."""
        nodes = set(grid.get_node_ids())
        self._controls = {node: control for node, control in self._controls.items() if node in nodes}
        mean = np.zeros(int(config["trained-elements"]), np.float64)
        for control in self._controls.values():
            mean += control / len(nodes)
        both = ArrayRecord({**arrays, CONTROL: array(mean.astype(next(iter(arrays.values())).numpy().dtype))})
        sent: Iterable[Message] = super().configure_train(server_round, both, config, grid)
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the parameters by rows, and keep the control variates."""
        replies = list(replies)
        for reply in replies:
            if reply.has_content() and CONTROL in reply.content["arrays"]:
                self._controls[reply.metadata.src_node_id] = reply.content["arrays"].pop(CONTROL).numpy()
        averaged: tuple[ArrayRecord | None, MetricRecord | None] = super().aggregate_train(
            server_round, replies
        )
        return averaged
