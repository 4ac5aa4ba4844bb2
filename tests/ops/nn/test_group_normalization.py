"""InstanceNormalization and GroupNormalization against NumPy, their gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform

SPECIAL_POINTS = {"not recorded": ["GroupNormalization", "InstanceNormalization"]}

SHAPES = [(2, 4, 3, 5), (1, 4, 7), (3, 4, 1), (2, 4), (1, 8, 2, 2, 3), (2, 4, 1, 1), (0, 4, 3), (2, 4, 0)]


def normalized(x: Array, groups: int, epsilon: float) -> Array:
    if x.size == 0:
        return x
    parts = x.reshape(x.shape[0], groups, -1)
    centered = parts - parts.mean(-1, keepdims=True)
    variance = (centered**2).mean(-1, keepdims=True)
    stored = float(np.float32(epsilon))  # attributes are floats
    return (centered / np.sqrt(variance + stored)).reshape(x.shape)


def scaled(x: Array, groups: int, scale: Array, bias: Array, epsilon: float = 1e-5) -> Array:
    each = x.shape[1] // len(scale)
    shape = (-1, *(1,) * (x.ndim - 2))
    return normalized(x, groups, epsilon) * scale.repeat(each).reshape(shape) + bias.repeat(each).reshape(
        shape
    )


def check(op: Op, x: Array, groups: int, parameters: int, epsilon: float = 1e-5) -> None:
    scale, bias = uniform(parameters, low=0.5, high=2), uniform(parameters, seed=1)
    expected = scaled(x, groups, scale, bias, epsilon)
    check_forward(op, [x, scale, bias], [expected], rtol=1e-11)
    single = [v.astype(np.float32) for v in (x, scale, bias)]
    check_forward(op, single, [expected.astype(np.float32)], rtol=5e-6)
    check_gradient(op, [x, scale, bias])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_instance_normalization(shape: tuple[int, ...]) -> None:
    for epsilon in (1e-5, 0.1):
        op = Op("InstanceNormalization", {"epsilon": epsilon})
        check(op, uniform(*shape, low=-3, high=5), shape[1], shape[1], epsilon)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_group_normalization(shape: tuple[int, ...], groups: int) -> None:
    x = uniform(*shape, low=-3, high=5)
    check(Op("GroupNormalization", {"num_groups": groups}, opset=18), x, groups, groups)
    op = Op("GroupNormalization", {"num_groups": groups, "epsilon": 0.01}, opset=21)
    check(op, x, groups, shape[1], 0.01)


@pytest.mark.parametrize("wrt", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_gradient_of_some_inputs(wrt: tuple[int, ...]) -> None:
    inputs = [uniform(2, 4, 3), uniform(4, seed=1), uniform(4, seed=2)]
    check_gradient(Op("GroupNormalization", {"num_groups": 2}, opset=21), inputs, wrt=wrt)


def test_precision_in_float_far_from_zero() -> None:
    x = uniform(2, 6, 40, 50, low=99, high=101)
    scale, bias = uniform(6, seed=1), uniform(6, seed=2)
    op = Op("GroupNormalization", {"num_groups": 3}, opset=21)
    single = [v.astype(np.float32) for v in (x, scale, bias)]
    rounded = single[0].astype(np.float64)
    found = run(op, single)[0]
    np.testing.assert_allclose(found, scaled(rounded, 3, single[1], single[2]), 0, 3e-5)
    dy = uniform(*x.shape, seed=3)
    grad = Op("GroupNormalizationGrad", {"num_groups": 3}, domain=MICROSOFT, outputs=3)
    double = run(grad, [dy, rounded, single[1].astype(np.float64)])
    for f, e in zip(run(grad, [dy.astype(np.float32), *single[:2]]), double, strict=True):
        np.testing.assert_allclose(f, e, 0, 1e-4 * np.abs(e).max())


def test_what_cannot_be_normalized_is_rejected() -> None:
    x, four = uniform(2, 4, 3), uniform(4)
    group: dict[str, Any] = {"num_groups": 2}
    check_rejected(Op("InstanceNormalization"), [x, uniform(3), uniform(3)], r"scale must have shape \[4\]")
    check_rejected(Op("InstanceNormalization"), [x, four, uniform(3)], "bias must match scale")
    check_rejected(Op("InstanceNormalization"), [uniform(4), four, four], "must have shape")
    check_rejected(Op("GroupNormalization", opset=21), [x, four, four], "num_groups is required")
    check_rejected(
        Op("GroupNormalization", {"num_groups": 3}, opset=21), [x, four, four], "not divisible by num_groups"
    )
    check_rejected(
        Op("GroupNormalization", group, opset=21), [x, uniform(3), uniform(3)], r"\[4\] or \[2\], found \[3\]"
    )
    check_rejected(
        Op("GroupNormalization", group, opset=21), [x, four.astype(np.float32), four], "the same type"
    )
