"""Constant, ConstantOfShape, EyeLike, Identity and Range, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from onnx import helper, numpy_helper
from tensor_cases import X, check_onnx_case, ints, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Identity"]}

SHAPE_INPUTS = {"ConstantOfShape": (0,), "Range": (0, 1, 2)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize(
    "case",
    onnx_cases("Constant", "ConstantOfShape", "EyeLike", "Identity", "Range"),
    ids=lambda case: case.name,
)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("EyeLike", uniform(3, 4), k=1),
    pair("EyeLike", uniform(3, 4), k=-2, dtype=onnx.TensorProto.INT32),
    pair("EyeLike", uniform(3, 4), k=9),
    pair("Identity", X),
    (Op("Range"), [np.array(1.5), np.array(-2.0), np.array(-0.75)], (0, 1, 2)),
    (Op("Range"), [np.array(3), np.array(3), np.array(2)], (0, 1, 2)),
    (Op("Range"), [np.array(0, np.int32), np.array(9, np.int32), np.array(2, np.int32)], (0, 1, 2)),
    (Op("Range"), [np.array(0), np.array(9), np.array(-2)], (0, 1, 2)),
    (Op("Constant", {"value_ints": [1, 2, 3]}), [], ()),
    (Op("Constant", {"value_int": 4}), [], ()),
    (Op("Constant", {"value_float": 0.5}), [], ()),
    (Op("Constant", {"value_floats": [0.5, 1.5]}), [], ()),
    (Op("Constant", {"value": numpy_helper.from_array(uniform(2, 2))}), [], ()),
    (Op("ConstantOfShape"), [ints(2, 3)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(ints(7))}), [ints(2, 0)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(np.array([True]))}), [ints(3)], (0,)),
    (Op("ConstantOfShape", {"value": numpy_helper.from_array(np.array([2.5]))}), [ints()], (0,)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if op.type == "EyeLike" and x is not None:
        dtype = helper.tensor_dtype_to_np_dtype(
            op.attributes.get("dtype", helper.np_dtype_to_tensor_dtype(x.dtype))
        )
        return [np.eye(x.shape[0], x.shape[1], k=op.attributes["k"], dtype=dtype)]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


GRADIENTS = [
    pair("Identity", uniform(2, 3)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


REJECTED = [
    ((Op("Range"), [np.array(0.0), np.array(1.0), np.array(0.0)], (0, 1, 2)), "must not be 0"),
    ((Op("Range"), [np.array(0.0), np.array(np.nan), np.array(1.0)], (0, 1, 2)), "no finite number"),
    ((Op("ConstantOfShape"), [ints(2, -1)], (0,)), "negative"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
