"""Softmax, LogSoftmax and their gradients."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform

SHAPES = [(2, 3), (1,), (2, 3, 4), (3, 1), (5, 33), (0, 3), (2, 0), (2, 3, 2, 5)]


def _softmax(x: Array, axis: int) -> Array:
    if x.size == 0:
        return x
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _flat(x: Array, axis: int) -> tuple[int, int]:
    rows = int(np.prod(x.shape[:axis]))
    return rows, int(np.prod(x.shape[axis:]))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type", ["Softmax", "LogSoftmax"])
def test_softmax(type: str, shape: tuple[int, ...]) -> None:
    for dtype, rtol in ((np.float64, 1e-12), (np.float32, 1e-6)):
        x = uniform(*shape, low=-5, high=5, dtype=dtype)
        for axis in range(-1, len(shape)):
            soft = _softmax(x.astype(np.float64), axis)
            expected = (np.log(soft) if type == "LogSoftmax" else soft).astype(dtype)
            check_forward(Op(type, {"axis": axis}, opset=13), [x], [expected], rtol=rtol)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("type", ["Softmax", "LogSoftmax"])
def test_softmax_before_version_13_flattens(type: str, shape: tuple[int, ...]) -> None:
    x = uniform(*shape, low=-5, high=5)
    for axis in range(len(shape)):
        soft = _softmax(x.reshape(_flat(x, axis)), 1).reshape(shape)
        check_forward(
            Op(type, {"axis": axis}, opset=12), [x], [np.log(soft) if type == "LogSoftmax" else soft]
        )
        if x.size < 40:
            check_gradient(Op(type, {"axis": axis}, opset=12), [x])


@pytest.mark.parametrize("shape", [s for s in SHAPES if np.prod(s) < 70], ids=str)
@pytest.mark.parametrize("type", ["Softmax", "LogSoftmax"])
def test_softmax_gradient(type: str, shape: tuple[int, ...]) -> None:
    x = uniform(*shape, low=-2, high=2)
    for axis in range(-1, len(shape)):
        check_gradient(Op(type, {"axis": axis}, opset=13), [x])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_gradient_operators_in_float(axis: int) -> None:
    x, dy = uniform(7, 70, 33, low=-2, high=2), uniform(7, 70, 33, seed=1)
    y = _softmax(x, axis)
    forms: list[tuple[str, Array, Array]] = [
        ("SoftmaxGrad_13", y, y * (dy - (dy * y).sum(axis, keepdims=True))),
        ("LogSoftmaxGrad_13", np.log(y), dy - y * dy.sum(axis, keepdims=True)),
    ]
    for type, second, expected in forms:
        given = [dy.astype(np.float32), second.astype(np.float32)]
        check_forward(Op(type, {"axis": axis}, MICROSOFT), given, [expected.astype(np.float32)], rtol=2e-6)


def test_softmax_of_extreme_numbers() -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4], [-1e30, -1e30, -1e30], [0, -np.inf, 0]], np.float32)
    (y,) = run(Op("Softmax", {"axis": -1}), [x])
    np.testing.assert_allclose(y, _softmax(x.astype(np.float64), 1), rtol=1e-6)
    (y,) = run(Op("Softmax", {"axis": -1}), [np.array([[1, np.nan, 2]], np.float32)])
    assert np.isnan(y).all()


def test_long_rows() -> None:
    x = uniform(3, 50_021, low=-4, high=4, dtype=np.float32)
    soft = _softmax(x.astype(np.float64), 1)
    check_forward(Op("Softmax"), [x], [soft.astype(np.float32)])
    check_forward(Op("LogSoftmax"), [x], [np.log(soft).astype(np.float32)])


def test_softmax_rejects_bad_input() -> None:
    check_rejected(Op("Softmax", {"axis": 2}), [uniform(2, 3)], "axis 2 is outside")
    check_rejected(Op("Softmax"), [np.array([[1, 2]])], "int64, which this operator does not accept")
