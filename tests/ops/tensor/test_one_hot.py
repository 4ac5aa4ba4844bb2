"""OneHot, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected
from tensor_cases import check_onnx_case, ints, onnx_cases

SPECIAL_POINTS = {"linear": ["OneHot"]}

SHAPE_INPUTS = {"OneHot": (1,)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("OneHot"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    (Op("OneHot"), [np.array([[0, 3, -1], [4, -4, 9]]), np.array(4), np.array([0.5, 2.0])], (1,)),
    (Op("OneHot", {"axis": 0}), [np.array([1, 2, 0]), np.array([3.0]), np.array([0, 1])], (1,)),
    (Op("OneHot", {"axis": 1}), [np.zeros((2, 0), np.int32), np.array(3), np.array([False, True])], (1,)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if x is not None:
        depth, (off, on) = int(np.ravel(inputs[1])[0]), np.asarray(inputs[2])  # type: ignore[arg-type]
        axis = op.attributes.get("axis", -1)
        hit = np.expand_dims(np.where(x < 0, x + depth, x), axis)
        places = np.arange(depth).reshape([-1 if i == axis % (x.ndim + 1) else 1 for i in range(x.ndim + 1)])
        return [np.where(hit == places, on, off).astype(np.asarray(inputs[2]).dtype)]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_values_of_one_hot_have_a_gradient(axis: int) -> None:
    inputs = [np.array([[0, 2, -1], [5, -9, 1]]), np.array(3), np.array([0.5, 2.0])]
    check_gradient(Op("OneHot", {"axis": axis}), inputs, constants={1})


REJECTED = [
    ((Op("OneHot"), [ints(1), np.array(-1), ints(0, 1)], (1,)), "must be in"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
