"""CumSum, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import X, check_onnx_case, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["CumSum"]}


@pytest.mark.parametrize("case", onnx_cases("CumSum"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


FORWARD = [
    pair("CumSum", X, np.array(1), exclusive=1),
    pair("CumSum", X, np.array(-1), reverse=1),
    pair("CumSum", X, np.array(0, np.int32), exclusive=1, reverse=1),
    pair("CumSum", np.arange(5), np.array(0)),
    pair("CumSum", uniform(0, 3), np.array(0)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if x is not None:
        axis = int(inputs[1])  # type: ignore[arg-type]
        y = np.flip(x, axis) if op.attributes.get("reverse") else x
        sums = np.cumsum(y, axis=axis, dtype=x.dtype) - (y if op.attributes.get("exclusive") else 0)
        return [np.flip(sums, axis) if op.attributes.get("reverse") else sums]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


GRADIENTS = [
    pair("CumSum", uniform(2, 3, 2), np.array(1), exclusive=1),
    pair("CumSum", uniform(4), np.array(0), reverse=1),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


REJECTED = [
    (pair("CumSum", X, np.array(4)), "axis 4 is outside"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
