"""LpPool and GlobalLpPool against their definition, gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, apart, check_forward, check_gradient, check_rejected, run, uniform
from test_pool import CASES, DILATED, windows

SPECIAL_POINTS = {"not recorded": ["GlobalLpPool", "LpPool"]}

Shape = tuple[int, ...]


def lp_pool(x: Array, attributes: dict[str, Any]) -> Array:
    p = attributes.get("p", 2)
    outputs, axes = windows(x.shape, attributes)
    y = np.zeros((*x.shape[:2], *outputs), x.dtype)
    for position in np.ndindex(*outputs):
        parts = [axes[i][o][0] for i, o in enumerate(position)]
        place = np.ix_(range(x.shape[0]), range(x.shape[1]), *parts)
        values = x[place].reshape(*x.shape[:2], -1)
        y[(..., *position)] = (np.abs(values) ** p).sum(-1) ** (1 / p)
    return y


ALL = {**CASES, **DILATED}


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("name", ALL)
def test_lp_pool(name: str, p: int) -> None:
    shape, attributes = ALL[name]
    x = apart(*shape)
    op = Op("LpPool", {**attributes, "p": p}, opset=18)
    expected = lp_pool(x, {**attributes, "p": p})
    check_forward(op, [x], [expected])
    check_forward(op, [x.astype(np.float32)], [expected.astype(np.float32)])
    check_gradient(op, [x])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize(
    "shape", [(2, 3, 5), (1, 2, 4, 3), (1, 1, 1, 1), (1, 2, 2, 3, 2), (1, 1, 2, 1, 2, 2)]
)
def test_global_lp_pool(shape: Shape, p: int) -> None:
    x = apart(*shape)
    space = tuple(range(2, len(shape)))
    expected = (np.abs(x) ** p).sum(space, keepdims=True) ** (1 / p)
    op = Op("GlobalLpPool", {"p": p})
    check_forward(op, [x], [expected])
    check_forward(op, [x.astype(np.float32)], [expected.astype(np.float32)])
    check_gradient(op, [x])


def test_the_default_is_the_euclidean_norm() -> None:
    x = uniform(1, 2, 4)
    check_forward(Op("GlobalLpPool"), [x], [np.sqrt((x**2).sum(2, keepdims=True))])
    check_forward(Op("LpPool", {"kernel_shape": (4,)}), [x], [np.sqrt((x**2).sum(2, keepdims=True))])


@pytest.mark.parametrize("p", [1, 2, 3])
def test_windows_of_zeros_have_no_gradient(p: int) -> None:
    grad = Op("LpPoolGrad", {"kernel_shape": (2,), "p": p}, domain=MICROSOFT)
    x, y = np.zeros((1, 1, 3)), np.zeros((1, 1, 2))
    np.testing.assert_array_equal(run(grad, [np.ones((1, 1, 2)), x, y])[0], x)


def test_empty_batches() -> None:
    assert run(Op("LpPool", {"kernel_shape": (2,)}), [np.zeros((0, 2, 4))])[0].shape == (0, 2, 3)
    assert run(Op("GlobalLpPool"), [np.zeros((0, 2, 4))])[0].shape == (0, 2, 1)


def test_what_cannot_be_pooled_is_rejected() -> None:
    x = uniform(1, 2, 4)
    check_rejected(Op("LpPool", {"kernel_shape": (5,)}), [x], "does not fit axis 2")
    check_rejected(Op("LpPool", {"kernel_shape": (2,), "p": 0}), [x], "p must be at least 1, found 0")
    check_rejected(Op("GlobalLpPool"), [uniform(2, 3)], "must have shape")
    check_rejected(Op("LpPool", {"kernel_shape": (2,)}), [x.astype(np.int32)], "int32")
