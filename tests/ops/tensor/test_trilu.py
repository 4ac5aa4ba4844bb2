"""Trilu, against NumPy, the node cases of the onnx package and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import check_onnx_case, onnx_cases

SPECIAL_POINTS = {"linear": ["Trilu"]}


@pytest.mark.parametrize("case", onnx_cases("Trilu"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


def trilu(k: int | None, upper: int) -> tuple[Op, list[Array]]:
    """The operator, and the diagonal as its second input."""
    return Op("Trilu", {"upper": upper}), [] if k is None else [np.array(k)]


@pytest.mark.parametrize(
    ("x", "k", "upper"),
    [
        (uniform(4, 5), 1, 1),
        (uniform(2, 5, 3), -1, 0),
        (uniform(3, 3), np.iinfo(np.int64).max, 1),
        (uniform(3, 3), -9, 0),
        (uniform(0, 3, 3), None, 1),
        (np.ones((3, 4), np.bool_), None, 0),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_trilu_keeps_one_triangle(x: Array, k: int | None, upper: int) -> None:
    op, diagonal = trilu(k, upper)
    expected = (np.triu if upper else np.tril)(x, int(np.clip(k or 0, -99, 99)))
    check_forward(op, [x, *diagonal], [expected], constants=range(1, 1 + len(diagonal)))


@pytest.mark.parametrize(("x", "k", "upper"), [(uniform(2, 3, 4), 1, 1), (uniform(4, 3), None, 0)])
def test_gradient_of_trilu(x: Array, k: int | None, upper: int) -> None:
    op, diagonal = trilu(k, upper)
    check_gradient(op, [x, *diagonal], constants=range(1, 1 + len(diagonal)))


def test_trilu_of_a_vector_is_rejected() -> None:
    check_rejected(Op("Trilu"), [uniform(3)], "rank 2")
