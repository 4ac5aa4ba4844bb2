"""DepthToSpace and SpaceToDepth, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import check_onnx_case, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["DepthToSpace", "SpaceToDepth"]}


@pytest.mark.parametrize("case", onnx_cases("DepthToSpace", "SpaceToDepth"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


FORWARD = [
    pair("DepthToSpace", uniform(2, 12, 3, 2), blocksize=2),
    pair("DepthToSpace", uniform(2, 18, 1, 2), blocksize=3, mode="CRD"),
    pair("SpaceToDepth", uniform(1, 3, 4, 6), blocksize=2),
    pair("SpaceToDepth", uniform(0, 3, 4, 6), blocksize=2),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    pair("DepthToSpace", uniform(1, 8, 2, 1), blocksize=2),
    pair("DepthToSpace", uniform(1, 8, 2, 1), blocksize=2, mode="CRD"),
    pair("SpaceToDepth", uniform(1, 2, 4, 2), blocksize=2),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


REJECTED = [
    (pair("DepthToSpace", uniform(1, 6, 2, 2), blocksize=2), "not a multiple"),
    (pair("DepthToSpace", uniform(1, 4, 2, 2), blocksize=2, mode="XYZ"), "DCR or CRD"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
