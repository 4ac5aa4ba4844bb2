"""A product of a value and its Sigmoid computes its derivative, and keeps the gradient that its steps have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

X = np.random.default_rng(0).normal(0, 3, (33, 65)).astype(np.float32)
DY = np.random.default_rng(1).normal(0, 1, X.shape).astype(np.float32)


def gradient_of_swish(*further: str, swapped: bool = False, output: str = "") -> onnx.ModelProto:
    """Return the steps of x sigmoid(x) and of its gradient, to which the values `further` are added."""
    terms = ["with_s", "with_x"]
    nodes = [
        helper.make_node("Neg", ["given"], ["x"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Mul", ["s", "x"] if swapped else ["x", "s"], ["y"]),
        helper.make_node("Mul", ["s", "dy"] if swapped else ["dy", "s"], ["with_s"]),
        helper.make_node("Mul", ["x", "dy"] if swapped else ["dy", "x"], ["ds"]),
        helper.make_node("SigmoidGrad", ["ds", "s"], ["with_x"], domain="com.microsoft"),
        helper.make_node("Sum", [*(terms[::-1] if swapped else terms), *further], ["dx"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 65]) for name in ("given", "dy")]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 65])
        for name in ("y", "dx", output)
        if name
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32], list[str]]:
    """Return the values, the gradient, and the operators that the session runs."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = ortrain.InferenceSession(model.SerializeToString(), options)
    y, dx, *_ = session.run(None, {"given": -X, "dy": DY})
    return y, dx, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def expected(added: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the values and the gradient in double precision."""
    x, dy = X.astype(np.float64), DY.astype(np.float64)
    s = 1 / (1 + np.exp(-x))
    return x * s, dy * (s + x * s * (1 - s)) + added * dy


@pytest.mark.parametrize("swapped", [False, True])
def test_one_product_has_the_gradient(swapped: bool, tmp_path: Path) -> None:
    y, dx, ran = run(gradient_of_swish(swapped=swapped), tmp_path)
    assert ran == ["Neg", "SwishAndDerivative", "Mul"]
    for found, wanted in zip((y, dx), expected(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("swapped", [False, True])
def test_further_terms_are_added(swapped: bool, tmp_path: Path) -> None:
    y, dx, ran = run(gradient_of_swish("dy", "dy", swapped=swapped), tmp_path)
    assert ran == ["Neg", "SwishAndDerivative", "Mul", "Sum"]
    for found, wanted in zip((y, dx), expected(2), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("output", ["s", "with_s", "ds", "with_x"])
def test_values_that_something_else_reads_are_kept(output: str, tmp_path: Path) -> None:
    y, dx, ran = run(gradient_of_swish(output=output), tmp_path)
    assert "SwishAndDerivative" not in ran
    for found, wanted in zip((y, dx), expected(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)
