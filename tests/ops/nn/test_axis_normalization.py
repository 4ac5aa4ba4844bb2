"""MeanVarianceNormalization and LpNormalization against NumPy, gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, apart, check_forward, check_gradient, check_rejected, run, single, uniform

SPECIAL_POINTS = {"not in PyTorch": ["MeanVarianceNormalization"]}


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


def test_lp_normalization_rejects_what_it_does_not_know() -> None:
    check_rejected(Op("LpNormalization", {"p": 3}), [uniform(2, 3)], "p must be 1 or 2, found 3")
    check_rejected(Op("LpNormalization", {"axis": 2}), [uniform(2, 3)], "axis")
    check_rejected(Op("LpNormalization"), [np.array(1.0)], "scalar")
