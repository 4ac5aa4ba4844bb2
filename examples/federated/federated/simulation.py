"""The simulation: ``python -m federated.simulation``."""

from __future__ import annotations

from flwr.simulation import run_simulation

from federated import task
from federated.client import app as client
from federated.server import app as server

if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=task.CLIENTS, backend_config=resources)
