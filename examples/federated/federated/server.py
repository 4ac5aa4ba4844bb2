"""The server."""

from __future__ import annotations

from flwr.serverapp.strategy import FedAvg
from ortrain.flower import server_app

from federated import task

# A round continues with three of the four clients, so that one may be away.
app = server_app(
    task.folder() / "artifacts",
    FedAvg(min_available_nodes=3, min_train_nodes=3, min_evaluate_nodes=3),
    rounds=task.ROUNDS,
    out=task.folder() / "results",
    test=task.digits()[1],
    metrics=["accuracy"],
    local_epochs=task.LOCAL_EPOCHS,
    learning_rate=task.LEARNING_RATE,
    timeout=600,
)
