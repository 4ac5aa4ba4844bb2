"""Federated learning on Flower: clients that train artifacts, and the server that combines their results.

Needs flwr 1.41: ``pip install 'ortrain[flower]'``.
"""

try:
    import flwr  # noqa: F401
except ImportError as error:
    raise ImportError("ortrain.flower needs flwr: pip install 'ortrain[flower]'") from error

from ortrain.flower.client import client_app
from ortrain.flower.external import external_client_app
from ortrain.flower.scaffold import Scaffold
from ortrain.flower.server import server_app

__all__ = ["Scaffold", "client_app", "external_client_app", "server_app"]
