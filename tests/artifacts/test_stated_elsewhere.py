"""Models whose weights are not initializers of the main graph, and whose shapes are stated wrongly or not at all."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.artifacts import LossType, OptimType
from training import Training

Array = NDArray[Any]
RNG = np.random.default_rng(8)
W, B = RNG.normal(size=(3, 2)).astype(np.float32), RNG.normal(size=2).astype(np.float32)
X, TARGET = RNG.normal(size=(4, 3)).astype(np.float32), RNG.normal(size=(4, 2)).astype(np.float32)


def constant(name: str, value: Array) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


def model_of(
    nodes: list[onnx.NodeProto], initializers: dict[str, Array] | None = None, shape: Any = ("n", 2)
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(value, name) for name, value in (initializers or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def gradients(model: onnx.ModelProto, folder: Path, **settings: Any) -> dict[str, Array]:
    settings |= {"loss": LossType.MSELoss, "optimizer": OptimType.SGD, "artifact_directory": folder}
    report = artifacts.generate_artifacts(model, **settings)
    training = Training(folder)
    training.module.train()
    training.module(X, TARGET)
    return {name: np.array(training.state.parameters[name].grad) for name in report.trained}


LAYER = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])]
EXPECTED = 2 * (X @ W + B - TARGET) / TARGET.size


def test_weights_in_constant_nodes_are_trained(tmp_path: Path) -> None:
    model = model_of([constant("w", W), constant("b", B), *LAYER])
    before = model.SerializeToString()
    found = gradients(model, tmp_path)
    assert model.SerializeToString() == before
    assert list(found) == ["w", "b"]
    np.testing.assert_allclose(found["w"], X.T @ EXPECTED, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["b"], EXPECTED.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_constant_nodes_beside_initializers_are_trained_if_they_are_named(tmp_path: Path) -> None:
    model = model_of([constant("b", B), *LAYER], {"w": W})
    assert list(gradients(model, tmp_path / "chosen")) == ["w"]
    assert list(gradients(model, tmp_path / "named", requires_grad=["b"])) == ["b"]
    found = gradients(model, tmp_path / "both", requires_grad=["w", "b"])
    np.testing.assert_allclose(found["b"], EXPECTED.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_weights_in_branches_are_trained(tmp_path: Path) -> None:
    def branch(sign: float) -> onnx.GraphProto:
        nodes = [constant("w", np.float32(sign) * W), helper.make_node("MatMul", ["x", "w"], ["out"])]
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("out", 1, None)])

    choice = helper.make_node(
        "If", ["taken"], ["y"], name="choice", then_branch=branch(1), else_branch=branch(-1)
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["taken"], to=TensorProto.BOOL),
        choice,
    ]
    found = gradients(model_of(nodes), tmp_path)
    taken = [gradient for gradient in found.values() if gradient.any()]
    assert len(found) == 2
    np.testing.assert_allclose(taken, [X.T @ (2 * (X @ W - TARGET) / TARGET.size)], rtol=1e-5, atol=1e-6)


def test_running_statistics_in_constant_nodes_are_updated(tmp_path: Path) -> None:
    nodes = [
        *(
            constant(name, np.full(2, value, np.float32))
            for name, value in zip("sbmv", (1, 0, 0, 1), strict=True)
        ),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *"sbmv"], ["y", "new_m", "new_v"], training_mode=1),
    ]
    gradients(model_of(nodes, {"w": W}), tmp_path, requires_grad=["w"])
    training = Training(tmp_path)
    training = Training(tmp_path)
    training.module.train()
    training.module(X, TARGET)
    np.testing.assert_allclose(
        training.state.parameters["m"].data, 0.1 * (X @ W).mean(axis=0), rtol=1e-5, atol=1e-6
    )


def test_a_wrong_shape_of_the_output_does_not_reach_the_target(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of(LAYER, {"w": W, "b": B}, shape=(1, "n", 7))
    with caplog.at_level(logging.WARNING):
        found = gradients(model, tmp_path)
    np.testing.assert_allclose(found["w"], X.T @ EXPECTED, rtol=1e-5, atol=1e-6)
    assert "output y is declared with the shape [1, n, 7], but the nodes compute [n, 2]" in caplog.text


def test_the_length_of_a_computed_shape_is_a_rank(tmp_path: Path) -> None:
    """The gradient of Softmax before opset 13 depends on the rank, which ONNX does not infer here."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Shape", ["h"], ["dims_of_h"]),
        helper.make_node("NonZero", ["dims_of_h"], ["where"]),  # not followed by shape inference
        helper.make_node("Gather", ["dims_of_h", "first"], ["rows"]),
        helper.make_node("ReduceSum", ["where"], ["one"], keepdims=0),
        helper.make_node("Reshape", ["one", "first_axis"], ["one_again"]),
        helper.make_node("Mul", ["rows", "one_again"], ["scaled"]),
        helper.make_node("Concat", ["scaled", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["h", "shape"], ["g"]),
        helper.make_node("ReduceMean", ["g"], ["mean"], axes=[1], keepdims=1),
        helper.make_node("Sub", ["g", "mean"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"], axis=1),
    ]
    model = model_of(
        nodes,
        {
            "w": W,
            "first": np.array([0]),
            "first_axis": np.array([1]),
            "rest": np.array([2]),
        },
    )
    model.opset_import[0].version = 12
    assert gradients(model, tmp_path)["w"].shape == W.shape
