"""A server for a folder."""

from __future__ import annotations

import threading

import pytest
from ortrain.dashboard import Server
from run_logs import Client


@pytest.fixture
def serve():
    """Serve a folder and return a client."""
    servers = []

    def start(folder):
        server = Server(folder)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        servers.append((server, thread))
        return Client(server)

    yield start
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join()
