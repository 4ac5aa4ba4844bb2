"""Shared by the tests of the command: it runs in this process, and in a separate process where that matters."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from ortrain.cli import main


@dataclass
class Ran:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys):
    """Run the command in this process."""

    def call(*arguments: object, status: int = 0) -> Ran:
        capsys.readouterr()
        found = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert found == status, captured.out + captured.err
        return Ran(found, captured.out, captured.err)

    return call


def network() -> onnx.ModelProto:
    """From ``image``, float32 ``[batch, 1, 4, 4]``, to ``scores``, float32 ``[batch, 3]``."""
    rng = np.random.default_rng(3)
    make = onnx.helper
    weights = {"w": rng.normal(size=(16, 3)) / 4, "b": np.zeros(3)}
    return make.make_model(
        make.make_graph(
            [
                make.make_node("Flatten", ["image"], ["flat"]),
                make.make_node("Gemm", ["flat", "w", "b"], ["scores"], name="classify"),
            ],
            "network",
            [make.make_tensor_value_info("image", onnx.TensorProto.FLOAT, ["batch", 1, 4, 4])],
            [make.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["batch", 3])],
            [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
        ),
        opset_imports=[make.make_opsetid("", 17)],
        ir_version=8,
    )


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Images of whole numbers from 0 to 255 whose class is the brightest of three pixels, and their classes."""
    images = np.random.default_rng(1).integers(0, 256, (120, 1, 4, 4))
    return images, images.reshape(120, 16)[:, :3].argmax(axis=1)


@pytest.fixture
def artifacts(tmp_path, run):
    """A folder of artifacts that the command has made, beside ``model.onnx`` and ``train.npz``."""
    return _artifacts(tmp_path, run)


def _artifacts(tmp_path, run):
    onnx.save(network(), tmp_path / "model.onnx")
    run("artifacts", tmp_path / "model.onnx", "--loss", "cross_entropy", "--out", tmp_path / "artifacts")
    return tmp_path / "artifacts"


@pytest.fixture
def train_npz(tmp_path, rows):
    images, classes = rows
    np.savez(tmp_path / "train.npz", image=images.astype(np.float32) / 255, labels=classes)
    return tmp_path / "train.npz"
