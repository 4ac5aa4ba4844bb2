"""Reshape, Flatten, Squeeze and Unsqueeze, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, run_model, uniform
from onnx import helper, numpy_helper
from tensor_cases import X, check_named_dimensions, check_onnx_case, ints, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Flatten", "Reshape", "Squeeze", "Unsqueeze"]}

SHAPE_INPUTS = {"Reshape": (1,), "Squeeze": (1,), "Unsqueeze": (1,)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize(
    "case", onnx_cases("Reshape", "Flatten", "Squeeze", "Unsqueeze"), ids=lambda case: case.name
)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("Reshape", X, ints(0, -1, 10)),
    pair("Reshape", X, ints(120)),
    pair("Reshape", uniform(0, 4), ints(0, 2, 2)),
    pair("Reshape", uniform(0, 4), ints(3, 0), allowzero=1),
    pair("Reshape", uniform(1), ints()),
    pair("Flatten", X, axis=2),
    pair("Flatten", X, axis=-1),
    pair("Flatten", X, axis=0),
    pair("Flatten", X, axis=4),
    pair("Flatten", uniform(0, 3)),
    pair("Squeeze", uniform(1, 3, 1, 2), opset=12, axes=[0, -2]),
    pair("Squeeze", uniform(1, 3, 1, 2), opset=12),
    pair("Squeeze", uniform(1, 3, 1, 2), ints(-2)),
    pair("Squeeze", uniform(1, 1)),
    pair("Unsqueeze", uniform(3, 2), opset=12, axes=[0, 3]),
    pair("Unsqueeze", uniform(3, 2), ints(-1, 0, 2)),
    pair("Unsqueeze", np.array(2.0), ints(0)),
    pair("Unsqueeze", uniform(1, 0), ints(1)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if op.type == "Flatten" and x is not None and x.size == 0:
        axis = op.attributes.get("axis", 1)
        return [x.reshape(int(np.prod(x.shape[:axis])), int(np.prod(x.shape[axis:])))]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


GRADIENTS = [
    pair("Reshape", uniform(2, 6), ints(3, -1)),
    pair("Reshape", uniform(0, 3), ints(3, 0), allowzero=1),
    pair("Reshape", uniform(2, 3), ints(6), opset=12),
    pair("Flatten", uniform(2, 3, 2), axis=-1),
    pair("Squeeze", uniform(1, 3, 1), ints(0)),
    pair("Squeeze", uniform(1, 1)),
    pair("Squeeze", uniform(1, 3, 1), opset=12, axes=[2]),
    pair("Unsqueeze", uniform(3), ints(0, -1)),
    pair("Unsqueeze", uniform(3), opset=12, axes=[1]),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (*pair("Flatten", uniform(2, 3, 2)), {"Reshape"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


def test_shapes_computed_in_the_graph_are_known_when_it_is_compiled() -> None:
    """Shape → Gather → Unsqueeze → Concat → Reshape, as exporters write them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["batch1"]),
        helper.make_node("Concat", ["batch1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {"zero": np.array(0), "axis": ints(0), "rest": ints(-1, 2)}
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 6])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = uniform(5, 6, dtype=np.float32)
    np.testing.assert_array_equal(run_model(model.SerializeToString(), {"x": x})["y"], x.reshape(5, 3, 2))


REJECTED = [
    (pair("Reshape", X, ints(7, -1)), "cannot be reshaped"),
    (pair("Reshape", X, ints(-1, -1)), "more than one -1"),
    (pair("Reshape", X, ints(119)), "cannot be reshaped"),
    (pair("Reshape", X, ints(-2, 60)), "below -1"),
    (pair("Reshape", X, ints(2, 3, 4, 5, 0)), "does not have"),
    (pair("Reshape", X, np.array([120.0])), "int64 or int32"),
    (pair("Flatten", X, axis=5), "axis 5 is outside"),
    (pair("Squeeze", X, ints(1)), "size is not 1"),
    (pair("Squeeze", X, ints(7)), "axis 7 is outside"),
    (pair("Unsqueeze", X, ints(0, 0)), "twice"),
    (pair("Unsqueeze", X), "axes"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
