"""A view of a weight that is not trained leaves the weight as it is."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from training import Training


def gradient_of(reads_a_view: bool, folder: pathlib.Path) -> np.ndarray:
    """The gradient of a convolution below a convolution with constant kernels, whose largest element is a factor."""
    rng = np.random.default_rng(0)
    tensors = {
        "first.weight": rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
        "kernels": rng.normal(size=(8, 4, 3, 3)).astype(np.float32),
        "shape": np.array([8, 36]),
    }
    read = "view" if reads_a_view else "kernels"
    nodes = [
        helper.make_node("Conv", ["x", "first.weight"], ["h"]),
        helper.make_node("Conv", ["h", "kernels"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Reshape", ["kernels", "shape"], ["view"]),
        helper.make_node("ReduceMax", [read], ["largest"], keepdims=0),
        helper.make_node("Mul", ["c", "largest"], ["scaled"]),
        helper.make_node("GlobalAveragePool", ["scaled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes if reads_a_view else [node for node in nodes if node.op_type != "Reshape"],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 1, 1])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["first.weight"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    training = Training(folder)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 4, 4, 4), (2, 8, 1, 1)))
    training.loss(x, y)
    found: np.ndarray = training.gradients()["first.weight"]
    return found


def test_gradients_do_not_depend_on_a_view_of_the_kernels(tmp_path: pathlib.Path) -> None:
    expected = gradient_of(False, tmp_path / "a")
    assert gradient_of(True, tmp_path / "b") == pytest.approx(expected, rel=1e-5, abs=1e-6)
