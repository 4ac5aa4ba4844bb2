"""Slice and SliceGrad, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor_cases import (
    DTYPES,
    SHAPES,
    X,
    check_named_dimensions,
    check_onnx_case,
    counted,
    ints,
    onnx_cases,
    pair,
)

SPECIAL_POINTS = {"linear": ["Slice"]}

SHAPE_INPUTS = {"Slice": (1, 2, 3, 4)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("Slice"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


def sliced(x: Array, starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> Any:
    return Op("Slice"), [x, ints(*starts), ints(*ends), ints(*axes), ints(*steps)], (1, 2, 3, 4)


FORWARD = [
    pair("Slice", X, ints(1), ints(3), ints(1)),
    pair("Slice", X, ints(-2, 0), ints(9999, -1), ints(-1, 0)),
    pair("Slice", X, ints(-1, 3), ints(-9999, 0), ints(3, 2), ints(-1, -2)),
    pair("Slice", X, ints(0, 1), ints(2, 3)),
    pair("Slice", X, ints(3), ints(1), ints(2)),
    pair("Slice", X, ints(0), ints(np.iinfo(np.int64).max), ints(3), ints(2)),
    pair("Slice", X, ints(4), ints(np.iinfo(np.int64).min), ints(3), ints(-3)),
    pair("Slice", X, ints(0), ints(4), ints(2), ints(np.iinfo(np.int64).max)),
    pair("Slice", uniform(0, 3), ints(0), ints(5), ints(0), ints(-1)),
    pair(
        "Slice",
        X.astype(np.float32),
        np.array([1], np.int32),
        np.array([3], np.int32),
        np.array([2], np.int32),
    ),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    sliced(uniform(4, 5), [1, -2], [4, -9], [0, 1], [2, -1]),
    sliced(uniform(4, 5), [3], [3], [0], [1]),
    sliced(uniform(4, 5), [0], [4], [0], [1]),
    sliced(uniform(0, 5), [0], [3], [1], [1]),
    (Op("Slice"), [uniform(4, 5), ints(1, 2), ints(3, 5)], (1, 2)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (*sliced(uniform(4, 5), [1, -2], [4, -9], [0, 1], [2, -1]), {"SliceGrad"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


@pytest.mark.parametrize(
    ("shape", "starts", "ends", "axes", "steps"),
    [((4, 5), [1], [4], [0], [2]), ((4, 5), [4, 3], [-6, 0], [1, 0], [-2, -1]), ((6,), [2], [2], [0], [1])],
)
def test_slice_grad_writes_zeros_around_the_gradient(
    shape: tuple[int, ...], starts: list[int], ends: list[int], axes: list[int], steps: list[int]
) -> None:
    where = tuple(
        next(
            (
                slice(s, e if e >= -shape[a] else None, t)
                for s, e, a, t in zip(starts, ends, axes, steps, strict=True)
                if a == d
            ),
            slice(None),
        )
        for d in range(len(shape))
    )
    expected = np.zeros(shape)
    dy = uniform(*expected[where].shape)
    expected[where] = dy
    inputs = [dy, ints(*shape), ints(*starts), ints(*ends), ints(*axes), ints(*steps)]
    check_forward(Op("SliceGrad", domain=MICROSOFT), inputs, [expected], constants=range(1, 6))
    check_gradient(Op("SliceGrad", domain=MICROSOFT), inputs, constants=range(1, 6))


@given(st.data(), SHAPES, DTYPES)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_slice_is_that_of_numpy(data: st.DataObject, shape: tuple[int, ...], dtype: Any) -> None:
    """Starts are inside: before the first element ONNX and NumPy differ for negative steps."""
    x = counted(shape, dtype)
    parts = [
        (
            data.draw(st.integers(-n, n + 3)),
            data.draw(st.integers(-n - 3, n + 3)),
            data.draw(st.integers(-3, 3)),
        )
        for n in shape
    ]
    starts, ends, steps = zip(*((start, end, step or 4) for start, end, step in parts), strict=True)
    expected = x[tuple(slice(*part) for part in zip(starts, ends, steps, strict=True))]
    inputs = [x, ints(*starts), ints(*ends), ints(*range(x.ndim)), ints(*steps)]
    np.testing.assert_array_equal(run(Op("Slice"), inputs, constants=(1, 2, 3, 4))[0], expected)


REJECTED = [
    (pair("Slice", X, ints(0), ints(1), ints(0), ints(0)), "step along axis 0 is 0"),
    (pair("Slice", X, ints(0, 1), ints(1)), "the same length"),
    (pair("Slice", X, ints(0), ints(1), ints(4)), "axis 4 is outside"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
