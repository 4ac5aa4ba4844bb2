"""TensorFlow and ortrain in one process: both have a protobuf, of different versions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from languages import ROOT

PROGRAM = """
import {first}
import {second}
from ortrain import artifacts
artifacts.generate_artifacts({model!r}, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory={folder!r})
"""


@pytest.mark.parametrize(("first", "second"), [("tensorflow", "ortrain"), ("ortrain", "tensorflow")])
def test_the_order_of_imports_does_not_matter(first, second, tmp_path):
    model = ROOT / "tests/data/fixtures/mlp_adamw/model.onnx"
    program = PROGRAM.format(first=first, second=second, model=str(model), folder=str(tmp_path))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert (tmp_path / "training_model.onnx").exists()
