"""Shape and Size, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, uniform
from tensor_cases import X, check_onnx_case, onnx_cases, pair


@pytest.mark.parametrize("case", onnx_cases("Shape", "Size"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


FORWARD = [
    pair("Shape", X, start=1, end=-1),
    pair("Shape", X, start=-2),
    pair("Shape", X, start=-9, end=9),
    pair("Shape", X, start=3, end=1),
    pair("Shape", np.array(1.0)),
    pair("Size", X),
    pair("Size", uniform(0, 3)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)
