"""MegatronF and MegatronG: one process in the place of two that have the same part of a layer."""

from __future__ import annotations

import numpy as np
import onnx
import ortrain
import pytest
from differences import central_differences
from onnx import TensorProto, helper, numpy_helper
from ortrain import GradientGraphBuilder, _ortrain

SPECIAL_POINTS = {"linear": ["com.microsoft.MegatronF", "com.microsoft.MegatronG"]}

Array = np.ndarray


def border(kind: str, x: str, y: str, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(kind, [x], [y], domain="com.microsoft", **attributes)


def layer(group: int = 1) -> bytes:
    """Return the loss of two products between the two operators, which two processes have alike."""
    rng = np.random.default_rng(0)
    weights = {"v": rng.normal(size=(4, 5)), "w": rng.normal(size=(5, 3)), "c": rng.normal(size=(2, 3))}
    nodes = [
        border("MegatronF", "x", "entering", group_type=group),
        helper.make_node("MatMul", ["entering", "v"], ["h"]),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["part"]),
        border("MegatronG", "part", "y", group_type=group),
        helper.make_node("Sin", ["y"], ["s"]),
        helper.make_node("Mul", ["s", "c"], ["products"]),
        helper.make_node("ReduceSum", ["products"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2, 4])],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def with_gradient(model: bytes) -> bytes:
    builder = GradientGraphBuilder(model, {"loss"}, {"x"}, "loss")
    builder.build()
    return builder.get_model()


def doubled(array: Array, name: str) -> None:
    array *= 2


def run(model: bytes, x: Array, function: object = doubled) -> dict[str, Array]:
    session = ortrain.InferenceSession(model)
    options = ortrain.RunOptions()
    summing = _ortrain.RankSum(options._handle, function)
    try:
        values = session.run(None, {"x": x}, options)
    finally:
        summing.check()
    return dict(zip([o.name for o in session.get_outputs()], values, strict=True))


def test_the_gradient_is_that_of_both_processes_together() -> None:
    x = np.random.default_rng(1).normal(size=(2, 4))
    model = layer()
    backward = with_gradient(model)
    found = run(backward, x)["x_grad"]
    expected = central_differences(lambda moved: float(run(model, moved)["loss"]), x, 1e-5)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)
    assert not np.allclose(found, run(with_gradient(layer(group=0)), x)["x_grad"])


def test_what_is_added_up() -> None:
    seen: list[tuple[tuple[int, ...], np.dtype]] = []
    names: list[str] = []

    def see(array: Array, name: str) -> None:
        names.append(name)
        seen.append((array.shape, array.dtype))

    model = with_gradient(layer())
    run(model, np.ones((2, 4)), see)
    assert seen == [((6,), np.dtype(np.float64)), ((8,), np.dtype(np.float64))]
    outputs = [n.output[0] for n in onnx.load_from_string(model).graph.node if n.op_type == "MegatronG"]
    assert names == outputs


def test_without_a_function_the_run_says_so() -> None:
    session = ortrain.InferenceSession(layer())
    with pytest.raises(ValueError, match=r"MegatronG.*the run options have no function"):
        session.run(None, {"x": np.ones((2, 4))})


def test_what_the_function_raises_ends_the_run() -> None:
    def fail(array: Array, name: str) -> None:
        raise ZeroDivisionError("in the function")

    with pytest.raises(ZeroDivisionError, match="in the function"):
        run(layer(), np.ones((2, 4)), fail)
    session, options = ortrain.InferenceSession(layer()), ortrain.RunOptions()
    for function in (fail, doubled):  # the same options work afterwards
        summing = _ortrain.RankSum(options._handle, function)
        try:
            session.run(None, {"x": np.ones((2, 4))}, options)
        except ortrain.OrtrainError:
            assert function is fail
        del summing
