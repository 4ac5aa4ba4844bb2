"""Values that a loop returns unchanged: against onnxruntime, and against the loop as it was written."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime")

FLOAT = TensorProto.FLOAT
Array = NDArray[Any]


def loop(nested: bool = False) -> onnx.ModelProto:
    """Multiply a state by weights, which the loop carries, `n` times; the weights are also stacked."""

    def info(name: str, shape: list[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    product = helper.make_node("MatMul", ["state", "carried_w"], ["product"])
    if nested:
        branch = helper.make_graph(
            [helper.make_node("MatMul", ["state", "carried_w"], ["inner"])],
            "branch",
            [],
            [info("inner", None)],
        )
        product = helper.make_node("If", ["condition"], ["product"], then_branch=branch, else_branch=branch)
    body = helper.make_graph(
        [
            product,
            helper.make_node("Add", ["product", "carried_b"], ["next"]),
            helper.make_node("Identity", ["carried_b"], ["b_again"]),
            helper.make_node("Identity", ["condition"], ["goes_on"]),
            helper.make_node("Identity", ["carried_w"], ["slice"]),
        ],
        "body",
        [
            info("i", [], TensorProto.INT64),
            info("condition", [], TensorProto.BOOL),
            info("carried_w", [3, 3]),
            info("state", [2, 3]),
            info("carried_b", [3]),
        ],
        [
            info("goes_on", [], TensorProto.BOOL),
            info("carried_w", [3, 3]),
            info("next", [2, 3]),
            info("b_again", [3]),
            info("slice", [3, 3]),
        ],
    )
    weights = np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)
    graph = helper.make_graph(
        [
            helper.make_node("Loop", ["n", "", "w", "x", "b"], ["last_w", "y", "last_b", "stack"], body=body),
            helper.make_node("Mul", ["last_w", "last_w"], ["square"]),
        ],
        "loop",
        [info("n", [], TensorProto.INT64), info("x", [2, 3]), info("b", [3])],
        [info("y", [2, 3]), info("square", [3, 3]), info("stack", ["n", 3, 3])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def runs(session: Any) -> list[Array]:
    x, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([1, -2, 0.5], np.float32)
    return [
        np.asarray(value)
        for n in (4, 1, 0, 4)
        for value in session.run(None, {"n": np.array(n), "x": x, "b": b})
    ]


@pytest.mark.parametrize("nested", [False, True])
def test_loops_with_invariants_compute_the_same(nested: bool, tmp_path: pathlib.Path) -> None:
    model = loop(nested).SerializeToString()
    expected = runs(onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]))
    for off in ("0", "1"):
        options = ortrain.SessionOptions()
        options.add_session_config_entry("ortrain.disable_pass.hoist_invariants", off)
        options.add_session_config_entry("ortrain.dump_graph", str(tmp_path / off))
        found = runs(ortrain.InferenceSession(model, options))
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, wanted, 1e-6)
        last = onnx.load(str(max((tmp_path / off).iterdir())))
        (node,) = [n for n in last.graph.node if n.op_type == "Loop"]
        assert len(node.input) == (5 if off == "1" else 3), "w and b are not carried"
