"""Checkpoints with a second file, as the core writes them for a state above 2 GB, from a small state."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from ortrain.api import CheckpointState

SCHEMA = Path(__file__).parents[1] / "core/src/state/checkpoint.fbs"


def flatc(*arguments: object) -> None:
    if shutil.which("flatc") is None:
        pytest.skip("needs flatc")
    subprocess.run(["flatc", *map(str, arguments)], check=True, capture_output=True)


def tensors_of(root: dict[str, Any]) -> list[dict[str, Any]]:
    state = root["module_state"]
    found = [*state.get("requires_grad_params", []), *state.get("frozen_params", [])]
    for group in root.get("optimizer_groups", []):
        for parameter in group.get("optimizer_states", []):
            found += parameter.get("momentums", [])
    return found


def split(path: Path) -> None:
    """Move the elements of a checkpoint's tensors into a second file."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "checkpoint.json"
        (Path(folder) / "checkpoint.bin").write_bytes(path.read_bytes())
        flatc("--json", "--strict-json", "--raw-binary", "-o", folder, SCHEMA, "--", text.with_suffix(".bin"))
        root = json.loads(text.read_text())
        data = b""
        for tensor in tensors_of(root):
            tensor["external_data_offset"] = len(data)
            raw = bytes(tensor.pop("raw_data", b""))
            data += raw + bytes(-len(raw) % 64)
        digest = f"ortrain data id {hashlib.sha256(data).hexdigest()[:16]}"
        for tensor in tensors_of(root):
            tensor["doc_string"] = digest
        root["module_state"]["has_external_data"] = True
        text.write_text(json.dumps(root))
        flatc("--binary", "-o", folder, SCHEMA, text)
        path.with_name(f"{path.name}.data").write_bytes(data + digest.encode())
        path.write_bytes(text.with_suffix(".bin").read_bytes())


@pytest.fixture
def saved_in_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint that Python code saves has a second file."""
    save = CheckpointState.save_checkpoint

    def save_and_split(state: CheckpointState, path: Any, *options: Any, **named: Any) -> None:
        save(state, path, *options, **named)
        split(Path(path))

    monkeypatch.setattr(CheckpointState, "save_checkpoint", staticmethod(save_and_split))
