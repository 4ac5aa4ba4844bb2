"""Expand and Tile, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import X, check_named_dimensions, check_onnx_case, ints, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Tile"]}

SHAPE_INPUTS = {"Expand": (1,), "Tile": (1,)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("Expand", "Tile"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("Expand", uniform(3, 1), ints(2, 3, 4)),
    pair("Expand", uniform(3, 1), ints(1, 1)),
    pair("Expand", uniform(1, 3, 1, 5), ints(4, 3, 2, 5)),
    pair("Expand", np.array(2.0), ints(2, 3)),
    pair("Expand", uniform(3, 1), ints(3, 0)),
    pair("Expand", uniform(1, 600, dtype=np.float32), ints(300, 600)),
    pair("Tile", uniform(2, 3), ints(2, 1)),
    pair("Tile", uniform(2, 3), ints(1, 4)),
    pair("Tile", uniform(2, 3, 4), ints(3, 2, 5)),
    pair("Tile", uniform(2, 3), ints(0, 2)),
    pair("Tile", uniform(0, 3), ints(2, 2)),
    pair("Tile", uniform(5), ints(1)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    pair("Expand", uniform(3, 1), ints(2, 3, 4)),
    pair("Expand", uniform(3, 1), ints(3, 1)),
    pair("Expand", np.array(0.5), ints(2, 2)),
    pair("Expand", uniform(1, 3), ints(0, 3)),
    pair("Tile", uniform(2, 3), ints(3, 2)),
    pair("Tile", uniform(2, 3), ints(1, 2), opset=12),
    pair("Tile", uniform(2, 3), ints(2, 0)),
    pair("Tile", uniform(4), ints(1)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (*pair("Tile", uniform(2, 3), ints(3, 2)), {"Reshape", "ReduceSum"}),
        (*pair("Expand", uniform(3, 1), ints(2, 3, 4)), {"BroadcastGradientArgs"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


REJECTED = [
    (pair("Expand", X, ints(7, 5)), "do not broadcast"),
    (pair("Expand", X, ints(-1)), "negative"),
    (pair("Tile", X, ints(2)), "one entry per axis"),
    (pair("Tile", X, ints(1, 1, 1, -1)), "negative"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
