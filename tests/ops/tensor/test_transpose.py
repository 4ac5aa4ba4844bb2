"""Transpose, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, run, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_cases import DTYPES, SHAPES, X, check_onnx_case, counted, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Transpose"]}


@pytest.mark.parametrize("case", onnx_cases("Transpose"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


FORWARD = [
    # every way through the strided copy: runs, tiles with and without remainders, elements, two-fold widths
    *[
        pair("Transpose", uniform(*shape, dtype=dtype), perm=perm)
        for shape, perm in [
            ((33, 65), [1, 0]),
            ((64, 64), [1, 0]),
            ((1, 7), [1, 0]),
            ((3, 17, 5, 8), [0, 2, 1, 3]),
            ((3, 17, 5, 19), [0, 2, 3, 1]),
            ((2, 16, 4, 16), [0, 2, 3, 1]),
            ((3, 17, 5, 19), [0, 3, 1, 2]),
            ((5, 6, 7), [2, 1, 0]),
            ((5, 6, 7), [1, 2, 0]),
            ((4, 5, 6, 2), [3, 0, 2, 1]),
            ((4, 5, 6, 2), [2, 1, 0, 3]),
            ((2, 3, 2, 3, 2, 3), [5, 3, 1, 0, 2, 4]),
            ((1, 5, 1, 3), [2, 1, 0, 3]),
            ((0, 3), [1, 0]),
            ((1,), [0]),
        ]
        for dtype in (np.float32, np.float64)
    ],
    *[
        pair("Transpose", (np.arange(70 * 33) % 251).astype(dtype).reshape(70, 33), perm=[1, 0])
        for dtype in (np.bool_, np.int8, np.uint16, np.float16, np.int32, np.uint64)
    ],
    # bytes in squares of registers and blocks of cache lines, and what remains beside them
    *[
        pair("Transpose", (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape), perm=perm)
        for shape, perm in [
            ((130, 200), [1, 0]),
            ((2, 67, 5, 33), [0, 2, 3, 1]),
            ((2, 16, 4, 64), [0, 3, 1, 2]),
        ]
    ],
    pair("Transpose", uniform(300, 700, dtype=np.float32), perm=[1, 0]),  # large enough for threads
    pair("Transpose", uniform(8, 64, 4, 64, dtype=np.float32), perm=[0, 2, 3, 1]),
    pair("Transpose", X),
    pair("Transpose", np.array(3.0)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    pair("Transpose", uniform(2, 3, 4), perm=[2, 0, 1]),
    pair("Transpose", uniform(2, 3, 2)),
    pair("Transpose", uniform(0, 3), perm=[1, 0]),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@given(st.data(), SHAPES, DTYPES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_transpose_of_any_shape_and_type(data: st.DataObject, shape: tuple[int, ...], dtype: Any) -> None:
    x, perm = counted(shape, dtype), data.draw(st.permutations(range(len(shape))))
    np.testing.assert_array_equal(run(Op("Transpose", {"perm": perm}), [x])[0], x.transpose(perm))


REJECTED = [
    (pair("Transpose", X, perm=[0, 1, 1, 2]), "not a permutation"),
    (pair("Transpose", X, perm=[0, 1]), "not a permutation"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
