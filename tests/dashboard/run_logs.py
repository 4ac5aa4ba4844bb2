"""Lines of logs, and a client that asks a server as a program other than a browser would."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

import pytest
from ortrain.dashboard import Server


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


class Client:
    """Asks a server as a program other than a browser would."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(self, path: str, method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=20)
        connection.putrequest(method, path, skip_host=bool(headers and "Host" in headers))
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        found = connection.getresponse()
        answer = Answer(found.status, dict(found.getheaders()), found.read())
        connection.close()
        return answer

    def runs(self) -> dict[str, Any]:
        """The runs by file."""
        found = self.ask("/api/runs")
        assert found.status == 200, found.body
        return {run["file"]: run for run in found.json["runs"]}


def begin(**more: Any) -> dict[str, Any]:
    return {
        "event": "begin",
        "step": 0,
        "epoch": 0,
        "elapsed": 0.0,
        "format": 1,
        "time": 1.7e9,
        "settings": {},
        **more,
    }


def step(number: int, loss: float | None = 1.0, **more: Any) -> dict[str, Any]:
    return {"event": "step", "step": number, "epoch": 0, "elapsed": number / 10, "loss": loss, **more}


def write(path, *entries: Any, end: str = "\n", mode: str = "w") -> None:
    """Write lines: objects as JSON, texts as they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [entry if isinstance(entry, str) else json.dumps(entry) for entry in entries]
    with path.open(mode, encoding="utf-8") as file:
        file.write("\n".join(lines) + end)
