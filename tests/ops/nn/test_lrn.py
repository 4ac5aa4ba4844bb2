"""LRN against NumPy, its gradient against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, single, uniform

SPECIAL_POINTS = {"not in PyTorch": ["LRN"]}


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


def test_lrn_rejects_what_does_not_fit() -> None:
    check_rejected(Op("LRN", {"size": 0}), [uniform(1, 2, 3)], "size must be at least 1")
    check_rejected(Op("LRN", {"size": 3}), [uniform(2, 3)], "must have shape")
    check_rejected(Op("LRN", {"size": 3}), [np.zeros((1, 2, 3), np.int32)], "int32")
