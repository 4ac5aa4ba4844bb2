"""TopK, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, apart, check_forward, check_gradient, check_rejected, run, uniform
from tensor_cases import X, check_onnx_case, ints, onnx_cases, pair

SHAPE_INPUTS = {"TopK": (1,)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("TopK"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("TopK", apart(3, 7), ints(3), axis=1),
    *[
        (Op("TopK", {"axis": axis, "largest": largest}, outputs=2), [apart(4, 6, 5), ints(3)], (1,))
        for axis in (0, 1, -1)
        for largest in (0, 1)
    ],
    (Op("TopK", outputs=2), [np.array([[2, 2, 1, 3, 3, 3]], np.int32), ints(5)], (1,)),
    (Op("TopK", outputs=2), [apart(2, 3), ints(0)], (1,)),
    (Op("TopK", outputs=2), [uniform(40, 3000, dtype=np.float32), ints(7)], (1,)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if x is not None:
        axis, k = op.attributes.get("axis", -1), int(np.ravel(inputs[1])[0])  # type: ignore[arg-type]
        order = np.argsort(-x if op.attributes.get("largest", 1) else x, axis=axis, kind="stable")
        order = np.take(order, np.arange(k), axis=axis)
        return [np.take_along_axis(x, order, axis), order][: 2 if op.outputs == 2 else 1]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


GRADIENTS = [
    (Op("TopK", {"axis": 0}, outputs=2), [apart(4, 3), ints(2)], (1,)),
    (Op("TopK", {"largest": 0}, outputs=(True, False)), [apart(4, 3), ints(2)], (1,)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


def test_equal_elements_rank_by_position_and_nan_ranks_highest() -> None:
    x = np.array([1.0, np.nan, 3.0, 3.0, -np.inf])
    values, indices = run(Op("TopK", outputs=2), [x, ints(4)], constants=(1,))
    np.testing.assert_array_equal(values, [np.nan, 3.0, 3.0, 1.0])
    np.testing.assert_array_equal(indices, [1, 2, 3, 0])


REJECTED = [
    (pair("TopK", X, ints(6)), "between 0 and the size 5"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
