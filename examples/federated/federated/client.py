"""The client."""

from __future__ import annotations

from typing import Any

from flwr.app import Context
from ortrain.flower import client_app

from federated import task


def data(context: Context) -> tuple[Any, Any]:
    """Return what the node trains on, and what it evaluates on."""
    return task.shard(int(context.node_config["partition-id"])), task.digits()[1]


app = client_app(task.folder() / "artifacts", data, metrics=["accuracy"])
