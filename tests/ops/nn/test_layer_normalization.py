"""LayerNormalization, its form without a mean, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not in PyTorch": ["SimplifiedLayerNormalization"], "not recorded": ["RMSNormalization"]}


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
    for opset in (14, 17):  # exporters also wrote it into older models
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
    # Each output may be omitted.
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


def test_layer_normalization_rejects_bad_input() -> None:
    check_rejected(Op("LayerNormalization"), [uniform(2, 3), uniform(2)], "scale must have the shape of X")
    check_rejected(
        Op("LayerNormalization"), [uniform(2, 3), uniform(3), uniform(1)], "bias must have the shape of X"
    )
    check_rejected(
        Op("LayerNormalization"), [uniform(2, 3), uniform(3, dtype=np.float32)], "scale must have the type"
    )
