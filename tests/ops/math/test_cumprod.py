"""CumProd against the reference implementation, its gradient against differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, run, uniform


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_cumprod(axis: int, exclusive: int, reverse: int) -> None:
    op = Op("CumProd", {"exclusive": exclusive, "reverse": reverse}, opset=26)
    inputs = [uniform(3, 4, 2, low=0.5, high=2), np.array(axis)]
    check_forward(op, inputs)
    check_forward(op, [inputs[0].astype(np.float32), np.array(axis, np.int32)])
    check_gradient(op, inputs, constants=[1])


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("exclusive", [0, 1])
def test_the_gradient_of_cumprod_holds_at_zeros(exclusive: int, reverse: int) -> None:
    op = Op("CumProd", {"exclusive": exclusive, "reverse": reverse}, opset=26)
    for zeros in ([1], [0, 3], [4]):
        x = uniform(5, low=0.5, high=2)
        x[zeros] = 0
        check_gradient(op, [x, np.array(0)])


def test_cumprod_of_one_of_none_and_of_integers() -> None:
    op = Op("CumProd", opset=26)
    check_forward(op, [np.array([3.0]), np.array(0)])
    check_gradient(op, [np.array([3.0]), np.array(0)])
    assert run(op, [np.zeros((0, 3)), np.array(0)])[0].shape == (0, 3)
    assert run(op, [np.zeros((2, 0)), np.array(1)])[0].shape == (2, 0)
    check_forward(op, [np.arange(1, 7).reshape(2, 3), np.array(1)])
    check_rejected(op, [uniform(2, 3), np.array(2)], "axis")
    check_rejected(op, [np.array(1.0), np.array(0)], "scalar")
    check_rejected(op, [uniform(2, 3), np.array([0, 1])], "a single int32 or int64")
