"""Reductions: values over all kinds of axes, accuracy of long sums, gradients, ArgMax."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    gradients_of_sum,
    run,
    uniform,
)

SPECIAL_POINTS = {
    "not recorded": ["ReduceLogSum", "ReduceSumSquare"],
    "as ReduceSum": ["com.microsoft.ReduceSumTraining"],
}

FORMULAS: dict[str, Any] = {
    "ReduceSum": np.sum,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceProd": np.prod,
    "ReduceL1": lambda x, **k: np.abs(x).sum(**k),
    "ReduceL2": lambda x, **k: np.sqrt((x * x).sum(**k)),
    "ReduceSumSquare": lambda x, **k: (x * x).sum(**k),
    "ReduceLogSum": lambda x, **k: np.log(x.sum(**k)),
    "ReduceLogSumExp": lambda x, **k: np.log(np.exp(x).sum(**k)),
}
# Shape and axes (None: all): last, first, middle, several, scattered, nothing to reduce, single elements.
CASES: list[tuple[tuple[int, ...], tuple[int, ...] | None]] = [
    ((3, 40), (1,)),
    ((40, 3), (0,)),
    ((5, 37), (0,)),
    ((3, 4, 5), (1,)),
    ((2, 3, 4, 5), (0, 2, 3)),
    ((2, 3, 4, 5), (1, -1)),
    ((2, 3, 4, 5), (0, 2)),
    ((3, 4), None),
    ((7,), (0,)),
    ((1,), (0,)),
    ((2, 1, 3), (1,)),
    ((), None),
]
IDS = [f"{shape}-{axes}" for shape, axes in CASES]
# Axes are an attribute until version 13 of ReduceSum, and until version 18 of the others.
IN_OPSETS = [
    (type, opset) for type in FORMULAS for opset in (12, 13, 18) if opset != 13 or type == "ReduceSum"
]


def _op(type: str, axes: tuple[int, ...] | None, keepdims: bool, opset: int) -> tuple[Op, list[Array]]:
    """The operator with axes as an attribute or, if its version requires that, as an input."""
    attributes: dict[str, Any] = {"keepdims": int(keepdims)}
    inputs = []
    if axes is not None:
        if opset >= 18 or (type == "ReduceSum" and opset >= 13):
            inputs.append(np.array(axes, np.int64))
        else:
            attributes["axes"] = list(axes)
    return Op(type, attributes, opset=opset), inputs


def _expected(type: str, x: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    return np.asarray(FORMULAS[type](x, axis=axes, keepdims=keepdims))


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(("shape", "axes"), CASES, ids=IDS)
@pytest.mark.parametrize(("type", "opset"), IN_OPSETS)
def test_values(
    type: str, shape: tuple[int, ...], axes: tuple[int, ...] | None, keepdims: bool, opset: int
) -> None:
    op, rest = _op(type, axes, keepdims, opset)
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 2e-6)):
        x = np.asarray(uniform(*shape, low=0.5, high=1.5, dtype=dtype))
        expected = _expected(type, x.astype(np.float64), axes, keepdims).astype(dtype)
        check_forward(op, [x, *rest], [expected], rtol=rtol, constants=[1])


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize(("shape", "axes"), [c for c in CASES if np.prod(c[0]) < 100], ids=str)
@pytest.mark.parametrize(("type", "opset"), IN_OPSETS)
def test_gradient(
    type: str, shape: tuple[int, ...], axes: tuple[int, ...] | None, keepdims: bool, opset: int
) -> None:
    op, rest = _op(type, axes, keepdims, opset)
    x = np.asarray(apart(*shape, scale=0.2))
    if type == "ReduceLogSum":
        x = np.abs(x)
    check_gradient(op, [x, *rest], wrt=[0], constants=[1])


@pytest.mark.parametrize("type", ["ReduceMax", "ReduceMin"])
def test_extremes_share_the_gradient_among_equals(type: str) -> None:
    (gradient,) = gradients_of_sum(Op(type, {"keepdims": 0}), [np.ones((1, 4))], [0])
    np.testing.assert_array_equal(gradient, np.full((1, 4), 0.25))


def test_norm_of_zeros_has_gradient_zero() -> None:
    (gradient,) = gradients_of_sum(Op("ReduceL2", {"axes": [1]}), [np.zeros((2, 3))], [0])
    np.testing.assert_array_equal(gradient, np.zeros((2, 3)))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)], ids=str)
def test_of_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    starts = {
        "ReduceSum": 0.0,
        "ReduceProd": 1.0,
        "ReduceMax": -np.inf,
        "ReduceMin": np.inf,
        "ReduceLogSumExp": -np.inf,
    }
    for type, start in starts.items():
        check_forward(Op(type, {"keepdims": 0}), [x], [np.asarray(start)])
    axis = x.shape.index(0)
    kept = [n for i, n in enumerate(shape) if i != axis]
    op, rest = _op("ReduceSum", (axis,), False, 13)
    check_forward(op, [x, *rest], [np.zeros(kept)], constants=[1])
    # Reducing the other axis leaves nothing.
    if len(shape) == 2:
        op, rest = _op("ReduceSum", (1 - axis,), False, 13)
        check_forward(op, [x, *rest], [np.zeros(0)], constants=[1])
        mean, rest = _op("ReduceMean", (1 - axis,), False, 18)
        check_gradient(mean, [x, *rest], constants=[1], second_order=True)


def test_no_axes() -> None:
    x = uniform(2, 3)
    none = np.array([], np.int64)
    check_forward(Op("ReduceSum", {"noop_with_empty_axes": 1}), [x, none], [x], constants=[1])
    check_forward(Op("ReduceSum", {"noop_with_empty_axes": 1}), [x], [x])
    check_forward(Op("ReduceSum", {"keepdims": 0}), [x, none], [np.asarray(x.sum())], constants=[1])
    check_gradient(Op("ReduceSum", {"noop_with_empty_axes": 1}), [x, none], constants=[1])


def test_reduce_sum_training() -> None:
    x = uniform(2, 3, 4)
    axes = np.array([0, 2])
    check_forward(
        Op("ReduceSumTraining", {"keepdims": 0}, MICROSOFT), [x, axes], [x.sum((0, 2))], constants=[1]
    )


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 1_000_003), 1), ((100_003, 5), 0), ((2_000_003,), 0)], ids=str
)
def test_long_sums_stay_accurate(shape: tuple[int, ...], axis: int) -> None:
    # All of one sign and not representable exactly, so that the loss of summing only in float is visible.
    x = (uniform(*shape, low=0, high=1) + 0.1).astype(np.float32)
    op, rest = _op("ReduceSum", (axis,), False, 13)
    exact = x.astype(np.float64).sum(axis)
    check_forward(op, [x, *rest], [exact.astype(np.float32)], rtol=3e-7, constants=[1])


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), None], ids=str)
def test_large_tensors_are_cut_between_threads_without_a_seam(axes: tuple[int, ...] | None) -> None:
    x = uniform(37, 65, 129, dtype=np.float32)
    for type in ("ReduceSum", "ReduceMax", "ReduceSumSquare"):
        op, rest = _op(type, axes, False, 18)
        expected = _expected(type, x.astype(np.float64), axes, False).astype(np.float32)
        check_forward(
            op, [x, *rest], [expected], rtol=1e-6, atol=1e-4 if type == "ReduceSum" else 0, constants=[1]
        )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_integers(dtype: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]], dtype)
    for type in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceSumSquare"):
        for axes in ((0,), (1,), None):
            op, rest = _op(type, axes, False, 18)
            expected = FORMULAS[type](x.astype(np.int64), axis=axes).astype(dtype)
            check_forward(op, [x, *rest], [np.asarray(expected)], constants=[1])


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("type", ["ArgMax", "ArgMin"])
def test_arg_extremes(type: str, last: int) -> None:
    x = np.array([[3, 1, 3, 2], [0, 0, 5, 5]], np.float32)
    for axis in (0, 1, -1):
        for keepdims in (0, 1):
            check_forward(Op(type, {"axis": axis, "keepdims": keepdims, "select_last_index": last}), [x])
    check_rejected(Op(type, {"axis": 1}), [np.zeros((2, 0))], "is empty, so nothing can be chosen")


def test_maximum_of_nan_is_nan() -> None:
    x = np.ones((3, 70), np.float32)
    x[1, 3] = np.nan
    for type in ("ReduceMax", "ReduceMin"):
        for axis in (0, 1):
            (found,) = run(Op(type, {"axes": [axis], "keepdims": 0}), [x])
            np.testing.assert_array_equal(np.isnan(found), np.isnan(x.sum(axis)))


def test_refusals() -> None:
    check_rejected(Op("ReduceMax", {"axes": [2]}), [uniform(2, 3)], "axis 2 is outside")
    check_rejected(Op("ReduceSum"), [np.array([True])], "bool, which this operator does not accept")


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [(1,), (-2,), (0, 1), None])
@pytest.mark.parametrize("opset", [13, 18])
def test_the_gradient_of_a_product_with_zeros(
    opset: int, axes: tuple[int, ...] | None, keepdims: int
) -> None:
    x = uniform(4, 3, low=0.5, high=2)
    x[1, 2] = x[2, 0] = x[2, 1] = 0
    x[3] = 0
    attributes: dict[str, object] = {"keepdims": keepdims}
    if opset < 18 and axes is not None:
        attributes["axes"] = list(axes)
    inputs = [x] if opset < 18 or axes is None else [x, np.array(axes)]
    constants = range(1, len(inputs))
    op = Op("ReduceProd", attributes, opset=opset)
    check_gradient(op, inputs, constants=constants, second_order=True)


@pytest.mark.parametrize("axes", [[0, 2], [-1], [1]], ids=str)
@pytest.mark.parametrize("keepdims", [0, 1])
def test_gradient_of_the_sum_in_training_models(keepdims: int, axes: list[int]) -> None:
    op = Op("ReduceSumTraining", {"keepdims": keepdims}, MICROSOFT)
    check_gradient(op, [uniform(2, 3, 4), np.array(axes, np.int64)], constants=[1])
