"""A federation in one process: messages go through Flower's own ClientApp, ServerApp and strategies, not over a network."""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from ortrain.flower import server_app

QUIET = {"min_available_nodes": 1, "min_train_nodes": 1, "min_evaluate_nodes": 1}


class Local(Grid):
    """Hands messages to clients in this process. A node in ``down[round]`` does not answer in that round."""

    def __init__(self, apps, down: dict[int, list[int]] | None = None) -> None:
        self.apps, self.down = dict(enumerate(apps, start=1)), down or {}
        self.contexts = {
            node: Context(1, node, {"partition-id": node - 1}, RecordDict(), {}) for node in self.apps
        }
        self.exchanged: list[tuple[Message, Message]] = []

    def set_run(self, run) -> None: ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def push_messages(self, messages): ...

    def pull_messages(self, message_ids): ...

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex  # as Flower's grids do
            node = message.metadata.dst_node_id
            config = message.content.config_records.get("config", {})
            if node in self.down.get(int(config.get("server-round", 0)), []):
                replies.append(Message(error=Error(code=1, reason="gone"), reply_to=message))
                continue
            try:
                received = Message(metadata=message.metadata, content=copy.deepcopy(message.content))
                replies.append(self.apps[node](received, self.contexts[node]))
            except Exception as error:  # as a SuperNode does
                replies.append(Message(error=Error(code=2, reason=str(error)), reply_to=message))
            self.exchanged.append((message, replies[-1]))
        return replies


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    """Who makes messages in this process, which Flower says when it starts a server."""
    for name in ("task", "run", "node"):
        monkeypatch.setattr(TaskIdentity, f"_{name}_id", 1)


def serve(folder, strategy, out, apps, down=None, kind=Local, **options):
    """Run a federation; return its rounds and the grid."""
    grid = kind(apps, down)
    server_app(folder, strategy, out=out, **options)(grid, Context(1, 0, {}, RecordDict(), {}))
    lines = (Path(out) / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], grid
