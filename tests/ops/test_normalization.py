"""Softmax, LayerNormalization and their gradients."""

from __future__ import annotations

from typing import Any

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


def _layer_norm(x: Array, scale: Array, bias: Array | None, axis: int, epsilon: float) -> list[Array]:
    axes = tuple(range(axis % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)
    y = (x - mean) * inverse * scale
    return [y if bias is None else y + bias, mean, inverse]


LAYER_CASES = [
    ((4, 6), -1),
    ((2, 3, 5), -1),
    ((2, 3, 5), 1),
    ((2, 3, 5), 0),
    ((3, 37), -1),
    ((1, 1), -1),
    ((0, 4), -1),
]
EPSILON = np.float32(1e-3).astype(float)


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(("shape", "axis"), LAYER_CASES, ids=str)
def test_layer_normalization(shape: tuple[int, ...], axis: int, with_bias: bool) -> None:
    inner = shape[axis % len(shape) :]
    x, scale, bias = uniform(*shape, low=-3, high=4), uniform(*inner, seed=1), uniform(*inner, seed=2)
    for opset in (14, 17):  # exporters wrote it into older models, too
        op = Op("LayerNormalization", {"axis": axis, "epsilon": 1e-3}, opset=opset, outputs=3)
        inputs: list[Array | None] = [x, scale, bias] if with_bias else [x, scale]
        expected = _layer_norm(x, scale, bias if with_bias else None, axis, EPSILON)
        check_forward(op, inputs, expected, rtol=1e-11)
        single = [v.astype(np.float32) for v in inputs if v is not None]
        check_forward(op, single, [v.astype(np.float32) for v in expected], rtol=3e-6)
        one = Op("LayerNormalization", {"axis": axis, "epsilon": 1e-3}, opset=opset)
        check_gradient(one, inputs, rtol=2e-5 if shape == (1, 1) else 1e-5)


@pytest.mark.parametrize(("shape", "axis"), LAYER_CASES, ids=str)
def test_root_mean_square_normalization(shape: tuple[int, ...], axis: int) -> None:
    axes = tuple(range(axis % len(shape), len(shape)))
    x, scale = uniform(*shape, low=-3, high=4), uniform(*shape[axis % len(shape) :], seed=1)
    inverse = 1 / np.sqrt((x * x).mean(axes, keepdims=True) + EPSILON) if x.size else np.zeros((0, 1))
    attributes = {"axis": axis, "epsilon": 1e-3}
    check_forward(
        Op("SimplifiedLayerNormalization", attributes, outputs=2), [x, scale], [x * inverse * scale, inverse]
    )
    check_gradient(Op("SimplifiedLayerNormalization", attributes), [x, scale])
    check_forward(Op("RMSNormalization", attributes, opset=23), [x, scale], [x * inverse * scale])
    check_gradient(Op("RMSNormalization", attributes, opset=23), [x, scale])


def test_layer_normalization_gradient_of_many_rows_in_float() -> None:
    rows, n = 2000, 67
    x, dy, scale = uniform(rows, n, low=-1, high=3), uniform(rows, n, seed=1), uniform(n, seed=2)
    _, mean, inverse = _layer_norm(x, scale, None, -1, 1e-5)
    h = (x - mean) * inverse
    g = dy * scale
    dx = inverse * (g - g.mean(1, keepdims=True) - h * (g * h).mean(1, keepdims=True))
    expected: list[Any] = [v.astype(np.float32) for v in (dx, (dy * h).sum(0), dy.sum(0))]
    given = [v.astype(np.float32) for v in (dy, x, scale, mean, inverse)]
    op = Op("LayerNormalizationGrad", {"axis": -1}, MICROSOFT, outputs=3)
    check_forward(op, given, expected, rtol=3e-6)
    # Each output may be left out.
    check_forward(
        Op(op.type, op.attributes, MICROSOFT, outputs=(True, False, False)), given, expected[:1], rtol=3e-6
    )
    check_forward(
        Op(op.type, op.attributes, MICROSOFT, outputs=(False, True, True)), given, expected[1:], rtol=3e-6
    )


def test_layer_normalization_far_from_zero_stays_accurate() -> None:
    x = (1000 + uniform(4, 4096)).astype(np.float32)
    expected = _layer_norm(x.astype(np.float64), np.ones(4096), None, -1, 1e-5)[0]
    check_forward(
        Op("LayerNormalization"), [x, np.ones(4096, np.float32)], [expected.astype(np.float32)], rtol=1e-4
    )


def test_refusals() -> None:
    check_rejected(Op("Softmax", {"axis": 2}), [uniform(2, 3)], "axis 2 is outside")
    check_rejected(Op("Softmax"), [np.array([[1, 2]])], "int64, which this operator does not take")
    check_rejected(Op("LayerNormalization"), [uniform(2, 3), uniform(2)], "scale must have the shape of X")
    check_rejected(
        Op("LayerNormalization"), [uniform(2, 3), uniform(3), uniform(1)], "bias must have the shape of X"
    )
    check_rejected(
        Op("LayerNormalization"), [uniform(2, 3), uniform(3, dtype=np.float32)], "scale must have the type"
    )
