"""The blocks ``python flower`` of docs/tutorial-federated.md work: each makes a client and a server, which then train."""

from __future__ import annotations

import json
import re
import sys

import pytest
from languages import ROOT

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
from flwr.app import Context, RecordDict
from local_grid import Local, identity  # noqa: F401

sys.path.insert(0, str(ROOT / "examples/federated"))
from federated import task

PAGE = ROOT / "docs/tutorial-federated.md"
BLOCKS = re.findall(r"^```python flower\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_blocks_train(tmp_path, monkeypatch):
    task.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    names = {"shards": [task.shard(number) for number in range(task.CLIENTS)], "held_out": task.digits()[1]}
    assert len(BLOCKS) == 3
    for source in BLOCKS:
        exec(compile(source, str(PAGE), "exec"), names)
        names["server"](Local([names["client"]] * task.CLIENTS), Context(1, 0, {}, RecordDict(), {}))
        rounds = [json.loads(line) for line in (tmp_path / "federated/rounds.jsonl").read_text().splitlines()]
        assert [entry["failures"] for entry in rounds] == [[]] * len(rounds)
        losses = [
            sum(reports["evaluate"]["loss"] for reports in entry["clients"].values()) for entry in rounds[1:]
        ]
        assert losses[-1] < losses[0]
        assert (tmp_path / "federated/global.onnx").exists()
        (tmp_path / "federated/global.onnx").unlink()
