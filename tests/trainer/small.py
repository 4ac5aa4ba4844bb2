"""A small network with dropout and batch normalization, and data for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

TRAINED = ["w1", "scale", "bias", "w2"]
FROZEN = ["mean", "var"]


def model() -> onnx.ModelProto:
    """From ``x``, float32 ``[batch, 8]``, to ``scores``, float32 ``[batch, 3]``."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(8, 16)) / 3,
        "scale": np.ones(16),
        "bias": np.zeros(16),
        "mean": np.zeros(16),
        "var": np.ones(16),
        "w2": rng.normal(size=(16, 3)) / 4,
    }
    initializers = [
        numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()
    ]
    initializers += [
        numpy_helper.from_array(np.float32(0.3), "ratio"),
        numpy_helper.from_array(np.array(True), "training"),
    ]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["hidden"]),
            helper.make_node(
                "BatchNormalization",
                ["hidden", "scale", "bias", "mean", "var"],
                ["normal", "new_mean", "new_var"],
                training_mode=1,
            ),
            helper.make_node("Relu", ["normal"], ["active"]),
            helper.make_node("Dropout", ["active", "ratio", "training"], ["kept"]),
            helper.make_node("MatMul", ["kept", "w2"], ["scores"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_artifacts(folder: Path, outputs: tuple[str, ...] = ("scores",)) -> Path:
    artifacts.generate_artifacts(
        model(),
        requires_grad=TRAINED,
        frozen_params=FROZEN,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=list(outputs),
    )
    return folder


def rows(count: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose class is the largest of their first three values."""
    x = np.random.default_rng(7).normal(size=(count, 8)).astype(np.float32)
    return x, x[:, :3].argmax(axis=1).astype(np.int64)
