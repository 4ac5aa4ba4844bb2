"""Pad, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import X, check_named_dimensions, check_onnx_case, ints, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Pad"]}

SHAPE_INPUTS = {"Pad": (1, 3)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("Pad"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("Pad", X, ints(0, 1, 0, 2, 1, 0, 0, 3), np.array(0.5)),
    pair("Pad", X, ints(0, 1, 0, -1, 0, 0, -2, 3)),
    pair("Pad", uniform(2, 0), ints(1, 1, 0, 2), np.array(7.0)),
    pair("Pad", np.arange(6, dtype=np.int32).reshape(2, 3), ints(0, 2, 1, 0), np.array(9, np.int32)),
    pair("Pad", uniform(3, 4), ints(2, 3, 1, 1), mode="reflect"),
    pair("Pad", uniform(3, 4), ints(2, 3, 1, 1), mode="edge"),
    pair("Pad", uniform(3, 4), ints(2, 3, 5, 9), mode="wrap", opset=19),
    pair("Pad", uniform(3, 4, 2), ints(1, 2), None, ints(-2), mode="edge", opset=18),
    pair("Pad", uniform(3, 4, 2), ints(1, 2, 3, 4), np.array(2.0), ints(2, 0), opset=18),
    pair("Pad", uniform(3), ints(0, 0)),
]


def answer(op: Op, inputs: list[Array | None]) -> list[Any] | None:
    """The result of NumPy if the reference evaluator is known to be wrong or to fail; otherwise None."""
    x = inputs[0] if inputs else None
    if x is not None and (np.asarray(inputs[1]) < 0).any() and len(inputs) == 2:
        before, after = np.asarray(inputs[1]).reshape(2, -1)
        kept = x[
            tuple(slice(max(0, -b), n + min(0, a)) for b, a, n in zip(before, after, x.shape, strict=True))
        ]
        return [np.pad(kept, np.maximum(0, [before, after]).T, mode=op.attributes.get("mode", "constant"))]
    return None


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, expected=answer(op, inputs), constants=constants)


GRADIENTS = [
    pair("Pad", uniform(2, 3), ints(1, 0, 2, 3)),
    pair("Pad", uniform(4, 3), ints(-1, 0, 2, -2)),
    pair("Pad", uniform(4, 3), ints(1, 2), None, ints(-1), opset=18),
    pair("Pad", uniform(4, 3), ints(2, 1, 3, 2), mode="reflect"),
    pair("Pad", uniform(4, 3), ints(2, 1, 0, -1), mode="edge"),
    pair("Pad", uniform(2, 3), ints(5, 4), None, ints(1), mode="wrap", opset=19),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (*pair("Pad", uniform(4, 3), ints(2, 1, 3, 2), mode="reflect"), {"GatherGrad"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


@pytest.mark.parametrize(
    ("pads", "axes", "value"),
    [([1, 0, 2, 1], None, ()), ([1, -1], [-1], ()), ([-1, 2], [0], (1,)), ([0, 0], [0], ())],
)
def test_the_value_of_the_border_has_a_gradient(
    pads: list[int], axes: list[int] | None, value: tuple[int, ...]
) -> None:
    inputs = [uniform(2, 3), ints(*pads), uniform(*value, seed=1), None if axes is None else ints(*axes)]
    constants = {1} if axes is None else {1, 3}
    check_gradient(Op("Pad", opset=18), inputs, constants=constants)
    check_gradient(Op("Pad", opset=18), inputs, wrt=[2], constants=constants)


REJECTED = [
    (pair("Pad", X, ints(1, 2)), "two entries for each"),
    (pair("Pad", X, ints(-1, 0, 0, 0, -2, 0, 0, 0)), "do not fit axis 0"),
    (pair("Pad", uniform(0), ints(1, 0), mode="edge"), "nothing to fill the border from"),
    (pair("Pad", X, ints(*[0] * 8), np.array(1.0, np.float32)), "expected float64"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
