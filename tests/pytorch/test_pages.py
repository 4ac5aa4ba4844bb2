"""The code in the pages about PyTorch works.

The ``python torch`` blocks of a page are run in order, with the checkpoint that the device of the tutorial writes. The ``pycon``
blocks of the session print what the page shows.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from page import run_session

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python torch\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / "tutorial-pytorch.md").read_text("utf-8"))
    assert len(blocks) == 5
    for block in blocks:
        if "device.ckpt" in block:
            shutil.copy("artifacts/checkpoint", "device.ckpt")
        exec(compile(block, "tutorial-pytorch.md", "exec"), names)
    assert "exported by torch.export: input -> output" in capsys.readouterr().out


def test_the_blocks_in_the_reference_of_artifacts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import torch

    names: dict[str, object] = {"network": torch.nn.Linear(64, 10), "example": torch.zeros(2, 64)}
    blocks = BLOCK.findall((DOCS / "artifacts.md").read_text("utf-8"))
    assert blocks
    for block in blocks:
        exec(compile(block, "artifacts.md", "exec"), names)


@pytest.mark.filterwarnings("ignore")
def test_the_session_prints_what_the_page_shows(tmp_path, monkeypatch):
    run_session(DOCS / "first-session-pytorch.md", tmp_path, monkeypatch)
