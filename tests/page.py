"""Runs a page of the documentation from top to bottom: its commands, and its blocks of Python of one kind."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

BLOCK = re.compile(r"^```(\w+ \w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SESSION = re.compile(r"^```pycon\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run_session(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the ``pycon`` blocks of a page as one session, and compare what it prints with the page."""
    monkeypatch.chdir(folder)
    text = "\n".join(SESSION.findall(page.read_text("utf-8")))
    session = doctest.DocTestParser().get_doctest(text, {}, page.stem, None, 0)
    found: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(session, out=found.append)
    assert result.attempted > 30
    assert result.failed == 0, "".join(found)


def run_page(page: Path, kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the blocks ``python <kind>`` and ``bash test`` of a page in a folder that has ``train.npz``; return the names."""
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(80, 64)).astype(np.float32)
    np.savez(folder / "train.npz", input=images, labels=rng.integers(0, 10, 80))
    names: dict[str, Any] = {"__name__": "page"}
    text = page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        if block[1] == f"python {kind}":
            line = text.count("\n", 0, block.start(2)) + 1
            exec(compile("\n" * (line - 1) + block[2], str(page), "exec"), names)
        elif block[1] == "bash test":
            for command in block[2].splitlines():
                assert command.startswith("ortrain "), command
                arguments = [sys.executable, "-m", *shlex.split(command)]
                ran = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=600)
                assert ran.returncode == 0, ran.stdout + ran.stderr
    return names
