"""What the Python tests share: the recorded runs of onnxruntime-training 1.19.2."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from recorded import CASES, Fixture


@pytest.fixture(params=CASES)
def recorded(request: pytest.FixtureRequest) -> Fixture:
    """Each recorded run in turn."""
    return Fixture(request.param)


@pytest.fixture
def mlp() -> Fixture:
    """The smallest recorded run."""
    return Fixture("mlp_adamw")


@pytest.fixture(scope="session")
def ort_training_python() -> str:
    """An interpreter that has onnxruntime-training 1.19.2; skips, saying so, when there is none."""
    given = os.environ.get("ORTRAIN_ORT_PYTHON", ".venv-peers/ort/bin/python")
    python = shutil.which(given)
    if python is None:
        pytest.skip(
            f"SKIPPED LOUDLY: no interpreter with onnxruntime-training 1.19.2 at {given!r}; `make bench-peers` makes one"
        )
    found = subprocess.run(
        [python, "-c", "import onnxruntime, onnxruntime.training.api; print(onnxruntime.__version__)"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.stdout.strip() != "1.19.2":
        pytest.skip(
            f"SKIPPED LOUDLY: {given!r} has no onnxruntime-training 1.19.2: {found.stdout}{found.stderr[-300:]}"
        )
    return python
