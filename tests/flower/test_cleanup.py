"""The processes of the federated example end with all that they have started."""

from __future__ import annotations

import importlib.util
import os
import sys
import time

import pytest
from languages import ROOT


@pytest.fixture
def example(monkeypatch):
    """The module run.py of the example."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    spec = importlib.util.spec_from_file_location("federated_run", ROOT / "examples/federated/run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_nothing_is_left(example, tmp_path):
    child = "import time; time.sleep(300)"
    parent = (
        f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(300)"
    )
    deployment = example.Deployment(tmp_path, tmp_path / "home")
    for name in ("one", "two"):
        deployment.start(name, os.path.basename(sys.executable), "-c", parent)
    every = []
    for _ in range(600):
        every = [pid for each in deployment.running.values() for pid in example.with_descendants(each.pid)]
        if len(every) == 4:
            break
        time.sleep(0.05)
    assert len(every) == 4
    deployment.end()
    assert deployment.ever == set(every)
    assert deployment.left() == []
    assert not deployment.running
