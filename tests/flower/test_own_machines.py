"""The section "On your own machines" of docs/tutorial-federated.md: its files and commands, on loopback, train a model.

Changed are what differs from machine to machine: folders, the name of the server, ports; and the number of rounds. The second
client has another port because it is on the same machine.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnxruntime
import ortrain
import pytest
from languages import ROOT

pytest.importorskip("flwr", reason="needs flwr: make test-integrations")
sys.path.insert(0, str(ROOT / "examples/federated"))
from processes import Processes, free_ports, listens

PAGE = ROOT / "docs/tutorial-federated.md"
SECTION = PAGE.read_text("utf-8").split("\n## On your own machines\n")[1].split("\n## ")[0]
BLOCKS = [
    (kind, textwrap.dedent(text))
    for kind, text in re.findall(r"^ *```(\w+)\n(.*?)^ *```", SECTION, re.MULTILINE | re.DOTALL)
]


def test_the_files_and_commands_train(tmp_path):
    served, app = tmp_path / "srv", tmp_path / "app"
    port, *node_ports = free_ports(3)
    changes = {
        "/srv/digits": str(served),
        "/home/me/ca.crt": str(tmp_path / "ca.crt"),
        "server.example": "localhost",
        "0.0.0.0": "127.0.0.1",
        "9092": str(port),
        "rounds=8": "rounds=2",
    }
    files, commands = {}, []
    for kind, text in BLOCKS:
        for old, new in changes.items():
            text = text.replace(old, new)
        if kind == "text":
            commands += [shlex.split(line) for line in text.replace("\\\n", "").splitlines()]
        elif text.startswith("# "):
            files[re.split("[ ,]", text.splitlines()[0][2:])[0]] = text
    assert list(files) == ["pyproject.toml", "digits/client.py", "digits/server.py", "~/.flwr/config.toml"]
    assert [command[0] for command in commands] == [
        *("openssl" for _ in range(3)), "ortrain", "flower-superlink", "flower-supernode", "flwr"
    ]  # fmt: skip

    (app / "digits").mkdir(parents=True)
    (app / "digits/__init__.py").touch()
    (tmp_path / "flwr").mkdir()
    for name, text in files.items():
        place = tmp_path / "flwr/config.toml" if name.startswith("~") else app / name
        place.write_text(text, "utf-8")
    served.mkdir()
    with np.load(Path(ortrain.__file__).parent / "demo_data/digits.npz") as data:
        x, y = data["pixels"].reshape(-1, 64).astype(np.float32) / 15, data["labels"].astype(np.int64)
    for number, name in enumerate(("mine", "other")):
        rows = slice(number, None, 2)
        parts = {"x": x[rows][:500], "y": y[rows][:500], "x_test": x[rows][500:], "y_test": y[rows][500:]}
        np.savez(served / f"{name}.npz", **parts)
    (tmp_path / "model.onnx").write_bytes(ortrain.models.mlp(64, 10).SerializeToString())

    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    *certificates, artifacts, superlink, supernode, run = commands
    for command in [*certificates, [sys.executable, "-m", *artifacts]]:
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    here = Path.cwd()
    os.chdir(tmp_path)  # where the certificates are
    try:
        with Processes(tmp_path, environment, 900) as processes:
            processes.start("superlink", *superlink)
            processes.wait("the SuperLink", lambda: listens(port))
            for name, node_port in zip(("mine", "other"), node_ports, strict=True):
                command = [word.replace("mine.npz", f"{name}.npz") for word in supernode]
                processes.start(name, *command, "--port", str(node_port))
            os.chdir(app)
            processes.start("run", *run)
            result = served / "results/global.onnx"
            processes.wait("the model", lambda: result.exists(), "run")
    finally:
        os.chdir(here)
    rounds = [json.loads(line) for line in (served / "results/rounds.jsonl").read_text().splitlines()]
    assert [len(entry["clients"]) for entry in rounds] == [0, 2, 2]
    session = onnxruntime.InferenceSession(result)
    (scores,) = session.run(None, {session.get_inputs()[0].name: x[1000:]})
    assert (scores.argmax(axis=1) == y[1000:]).mean() > 0.5
