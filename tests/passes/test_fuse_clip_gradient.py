"""The gradient of Clip is one node, with the gradient that its steps have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
X = np.array([[-np.inf, -1, 0, 1e-30, 3, 6, 6.5, np.inf, np.nan]], np.float32)
DY = np.arange(1, 10, dtype=np.float32)[None]
INSIDE = {
    (0, 6): [0, 0, 1, 1, 1, 1, 0, 0, 0],
    (0, None): [0, 0, 1, 1, 1, 1, 1, 1, 0],
    (None, 6): [1, 1, 1, 1, 1, 1, 0, 0, 0],
}


def gradient_of_clip(low: float | None, high: float | None, elements: int = FLOAT) -> onnx.ModelProto:
    """Return the steps that a gradient graph has for Clip, with bounds that are constants."""
    dtype = helper.tensor_dtype_to_np_dtype(elements)
    nodes, masks, constants = [], [], []
    for name, kind, bound in (("low", "GreaterOrEqual", low), ("high", "LessOrEqual", high)):
        if bound is not None:
            nodes.append(helper.make_node(kind, ["x", name], [f"{name}_mask"]))
            masks.append(f"{name}_mask")
            constants.append(numpy_helper.from_array(np.asarray(bound, dtype), name))
    if len(masks) == 2:
        nodes.append(helper.make_node("And", masks, ["inside"]))
        masks = ["inside"]
    nodes.append(helper.make_node("Cast", masks, ["factor"], to=elements))
    nodes.append(helper.make_node("Mul", ["dy", "factor"], ["dx"]))
    inputs = [helper.make_tensor_value_info(name, elements, ["n", 9]) for name in ("x", "dy")]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("dx", elements, ["n", 9])], constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, folder: Path, **inputs: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return the gradient, and the operators that the session runs."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = ortrain.InferenceSession(model.SerializeToString(), options)
    (dx,) = session.run(None, inputs)
    return dx, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


@pytest.mark.parametrize(("low", "high"), INSIDE)
def test_one_node_has_the_gradient(low: float | None, high: float | None, tmp_path: Path) -> None:
    dx, ran = run(gradient_of_clip(low, high), tmp_path, x=X, dy=DY)
    assert ran == ["ClipGrad"]
    np.testing.assert_array_equal(dx, DY * np.array(INSIDE[low, high]))


def test_many_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(3, 4, (1001, 9)).astype(np.float32)
    dx, _ = run(gradient_of_clip(0, 6), tmp_path, x=x, dy=x)
    np.testing.assert_array_equal(dx, np.where((x >= 0) & (x <= 6), x, 0))


def test_bounds_of_double_stay_exact(tmp_path: Path) -> None:
    """Attributes are floats, which do not hold 0.1."""
    x = np.full((1, 9), 0.1)
    dx, ran = run(gradient_of_clip(0.1, 0.2, TensorProto.DOUBLE), tmp_path, x=x, dy=x)
    assert "ClipGrad" not in ran
    np.testing.assert_array_equal(dx, x)


def test_a_mask_that_something_else_reads_is_kept(tmp_path: Path) -> None:
    model = gradient_of_clip(0, 6)
    model.graph.output.append(helper.make_tensor_value_info("inside", TensorProto.BOOL, ["n", 9]))
    options = ortrain.SessionOptions()
    dx, inside = ortrain.InferenceSession(model.SerializeToString(), options).run(None, {"x": X, "dy": DY})
    np.testing.assert_array_equal(inside, np.array(INSIDE[0, 6], bool)[None])
    np.testing.assert_array_equal(dx, DY * inside)


@pytest.mark.parametrize("shape", [(), (1,), (9,), (2, 1), (3, 2, 9)])
def test_a_factor_of_another_shape_broadcasts(shape: tuple[int, ...]) -> None:
    """A model that masks a weight has these nodes too."""
    model = gradient_of_clip(None, 6)
    model.graph.input[1].CopyFrom(helper.make_tensor_value_info("dy", FLOAT, shape))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("dx", FLOAT, None))
    x = np.arange(18, dtype=np.float32).reshape(2, 9)
    dy = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    (found,) = ortrain.InferenceSession(model.SerializeToString()).run(None, {"x": x, "dy": dy})
    np.testing.assert_array_equal(found, dy * (x <= 6))


def test_a_mask_that_becomes_a_double(tmp_path: Path) -> None:
    model = gradient_of_clip(0, 6)
    next(node for node in model.graph.node if node.op_type == "Cast").attribute[0].i = TensorProto.DOUBLE
    for value in (model.graph.input[1], model.graph.output[0]):
        value.type.tensor_type.elem_type = TensorProto.DOUBLE
    dx, _ = run(model, tmp_path, x=X, dy=DY.astype(np.float64))
    np.testing.assert_array_equal(dx, DY * np.array(INSIDE[0, 6], np.float64))
