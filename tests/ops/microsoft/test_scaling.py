"""Operators that scale gradients and look at their size, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not recorded": ["com.microsoft.ReduceAllL2"]}


@pytest.mark.parametrize("count", [2, 3])
def test_scaled_sum(count: int) -> None:
    scales = [0.5, -2.0, 3.0][:count]
    op = Op("ScaledSum", {f"scale_{i}": s for i, s in enumerate(scales)}, MICROSOFT)
    inputs = [uniform(2, 3, seed=i) for i in range(count)]
    check_forward(op, inputs, [np.asarray(sum(s * x for s, x in zip(scales, inputs, strict=True)))])
    check_gradient(op, inputs)


@pytest.mark.parametrize("count", [2, 3])
def test_batch_scale(count: int) -> None:
    scales = [0.5, -2.0, 3.0][:count]
    op = Op("BatchScale", {f"scale_{i}": s for i, s in enumerate(scales)}, MICROSOFT, outputs=count)
    x = uniform(2, 3)
    check_forward(op, [x], [s * x for s in scales])
    check_gradient(op, [x])


def test_a_missing_factor_is_named() -> None:
    check_rejected(
        Op("BatchScale", {"scale_0": 1.0}, MICROSOFT, outputs=2), [uniform(2)], "scale_1 is missing"
    )


def test_mixed_precision_scale() -> None:
    s, x, y = np.array(4.0, np.float32), uniform(2, 3, dtype=np.float32), uniform(4, dtype=np.float32)
    op = Op("MixedPrecisionScale", {"to": 11}, MICROSOFT, outputs=2)
    check_forward(op, [s, x, y], [4.0 * x.astype(np.float64), 4.0 * y.astype(np.float64)])
    fused = Op("MixedPrecisionScale", {"to": 1, "fuse_outputs": 1}, MICROSOFT)
    check_forward(fused, [s, x, y], [4 * np.concatenate([x.ravel(), y])])


def test_reduce_all_l2() -> None:
    x, y = uniform(2, 3), uniform(4)
    op = Op("ReduceAllL2", {}, MICROSOFT)
    check_forward(op, [x, y], [np.asarray(np.sqrt((x**2).sum() + (y**2).sum()))])
    check_forward(op, [y], [np.asarray(np.sqrt((y**2).sum()))])
    check_gradient(op, [x, y])


@pytest.mark.parametrize("values", [[True, True], [True, False], [], [False]])
def test_all(values: list[bool]) -> None:
    check_forward(Op("All", {}, MICROSOFT), [np.array(values, bool)], [np.asarray(all(values))])


def test_is_finite() -> None:
    x = np.array([1, np.inf, -np.inf, np.nan, 0, 3e38], np.float32)
    check_forward(Op("IsFinite", {}, MICROSOFT), [x], [np.isfinite(x)])
    for bad in [np.inf, np.nan]:
        y = np.array([1, bad], np.float32)
        for settings, found in [
            ({}, False),
            ({"isinf_only": 1}, np.isnan(bad)),
            ({"isnan_only": 1}, np.isinf(bad)),
        ]:
            op = Op("IsAllFinite", settings, MICROSOFT)
            check_forward(op, [x[:1], y], [np.asarray(bool(found))])
            check_forward(op, [x[:1]], [np.asarray(True)])
    check_rejected(
        Op("IsAllFinite", {"isinf_only": 1, "isnan_only": 1}, MICROSOFT), [x], "are mutually exclusive"
    )
