"""MeanVarianceNormalization, LpNormalization, LRN and Hardmax against NumPy, gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, apart, check_forward, check_gradient, check_rejected, run, uniform


def single(x: Array) -> Array:
    return x.astype(np.float32)


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("axes", [None, (0,), (1, -1), (-2,), (0, 1, 2, 3), (2, 3)], ids=str)
def test_mean_variance_normalization(axes: tuple[int, ...] | None, opset: int) -> None:
    x = uniform(2, 3, 4, 5, low=-1, high=4)
    over = axes if axes is not None else (0, 2, 3)
    centered = x - x.mean(over, keepdims=True)
    expected = centered / (np.sqrt((centered**2).mean(over, keepdims=True)) + 1e-9)
    op = Op("MeanVarianceNormalization", {} if axes is None else {"axes": axes}, opset=opset)
    check_forward(op, [x], [expected])
    check_forward(op, [single(x)], [single(expected)], rtol=2e-5)
    check_gradient(op, [x])


def test_mean_variance_normalization_of_equal_and_of_no_elements() -> None:
    op = Op("MeanVarianceNormalization", {"axes": (1,)})
    check_forward(op, [np.full((2, 3), 4.0)], [np.zeros((2, 3))])
    grad = Op("MeanVarianceNormalization", {"axes": (0,)})
    assert run(grad, [np.zeros((0, 3))])[0].shape == (0, 3)
    check_rejected(Op("MeanVarianceNormalization"), [uniform(2, 3)], "axis")
    check_rejected(Op("MeanVarianceNormalization", {"axes": (0,)}), [np.zeros((2, 3), np.int32)], "int32")


@pytest.mark.parametrize("opset", [12, 18, 22])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [-1, 0, 1, -2])
def test_lp_normalization(axis: int, p: int, opset: int) -> None:
    x = apart(3, 4, 5)
    norm = np.linalg.norm(x, p, axis, keepdims=True)
    op = Op("LpNormalization", {"axis": axis, "p": p}, opset=opset)
    check_forward(op, [x], [x / norm])
    check_forward(op, [single(x)], [single(x / norm)], rtol=1e-6)
    check_gradient(op, [x])


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros_and_of_nothing(p: int) -> None:
    op = Op("LpNormalization", {"axis": 1, "p": p})
    x = np.array([[0.0, 0.0], [3.0, 0.0]])
    check_forward(op, [x], [np.array([[0.0, 0.0], [1.0, 0.0]])])
    assert run(op, [np.zeros((2, 0))])[0].shape == (2, 0)
    assert run(op, [np.zeros((0, 2))])[0].shape == (0, 2)


def test_lp_normalization_refuses_what_it_does_not_know() -> None:
    check_rejected(Op("LpNormalization", {"p": 3}), [uniform(2, 3)], "p must be 1 or 2, found 3")
    check_rejected(Op("LpNormalization", {"axis": 2}), [uniform(2, 3)], "axis")
    check_rejected(Op("LpNormalization"), [np.array(1.0)], "scalar")


def local_response(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    stored = (float(np.float32(v)) for v in (alpha, beta, bias))
    alpha, beta, bias = stored
    sums = np.zeros_like(x)
    for c in range(x.shape[1]):
        window = x[:, max(0, c - (size - 1) // 2) : c + size // 2 + 1]
        sums[:, c] = (window**2).sum(1)
    return x / (bias + alpha / size * sums) ** beta


LRN_CASES: list[dict[str, Any]] = [
    {"size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
    {"size": 3, "alpha": 0.9, "beta": 0.75, "bias": 2.0},
    {"size": 4, "alpha": 0.7, "beta": 0.5, "bias": 0.5},
    {"size": 1, "alpha": 0.5, "beta": 1.3, "bias": 1.0},
    {"size": 9, "alpha": 0.5, "beta": 0.6, "bias": 1.0},
]


@pytest.mark.parametrize(
    "shape", [(2, 5, 3, 2), (1, 1, 1, 1), (1, 7, 4), (2, 4, 2, 2, 2), (0, 3, 2)], ids=str
)
@pytest.mark.parametrize("attributes", LRN_CASES, ids=str)
def test_lrn(attributes: dict[str, Any], shape: tuple[int, ...]) -> None:
    x = uniform(*shape, low=-2, high=2)
    expected = local_response(x, **attributes)
    check_forward(Op("LRN", attributes), [x], [expected])
    check_forward(Op("LRN", attributes), [single(x)], [single(expected)], rtol=2e-6)
    check_gradient(Op("LRN", attributes), [x])


def test_lrn_in_float_over_many_points() -> None:
    attributes = LRN_CASES[1]
    x, dy = uniform(3, 12, 40, 50), uniform(3, 12, 40, 50, seed=1)
    check_forward(Op("LRN", attributes), [single(x)], [single(local_response(x, **attributes))], rtol=2e-6)
    grad = Op("LRNGrad", attributes, domain=MICROSOFT)
    np.testing.assert_allclose(run(grad, [single(dy), single(x)])[0], run(grad, [dy, x])[0], 0, 1e-5)


def test_lrn_refuses_what_does_not_fit() -> None:
    check_rejected(Op("LRN", {"size": 0}), [uniform(1, 2, 3)], "size must be at least 1")
    check_rejected(Op("LRN", {"size": 3}), [uniform(2, 3)], "must have shape")
    check_rejected(Op("LRN", {"size": 3}), [np.zeros((1, 2, 3), np.int32)], "int32")


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_hardmax(axis: int, dtype: Any) -> None:
    x = np.round(uniform(3, 4, 5, low=-2, high=2)).astype(dtype)  # with ties: the first wins
    expected = np.zeros_like(x)
    np.put_along_axis(expected, np.expand_dims(x.argmax(axis), axis), 1, axis)
    check_forward(Op("Hardmax", {"axis": axis}, opset=13), [x], [expected])
    flat = x.reshape(int(np.prod(x.shape[:axis])) if axis >= 0 else 12, -1)
    expected = (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(dtype).reshape(x.shape)
    check_forward(Op("Hardmax", {"axis": axis}, opset=12), [x], [expected])


def test_hardmax_defaults_and_empty_tensors() -> None:
    x = uniform(2, 3, 4)
    for opset, axis in ((12, 1), (13, -1)):
        check_forward(Op("Hardmax", opset=opset), [x], run(Op("Hardmax", {"axis": axis}, opset=opset), [x]))
    assert run(Op("Hardmax", opset=13), [np.zeros((2, 0))])[0].shape == (2, 0)
    check_rejected(Op("Hardmax", {"axis": 3}, opset=13), [x], "axis")
