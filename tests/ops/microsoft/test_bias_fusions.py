"""BiasAdd, BiasSplitGelu and BiasSoftmax, against NumPy and onnxruntime."""

from __future__ import annotations

from math import erf, sqrt

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, uniform


def test_bias_add() -> None:
    inputs = [uniform(2, 3, 4), uniform(4, seed=1), uniform(2, 3, 4, seed=2)]
    check_forward(Op("BiasAdd", {}, MICROSOFT), inputs, [inputs[0] + inputs[1] + inputs[2]])
    check_gradient(Op("BiasAdd", {}, MICROSOFT), inputs)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_bias_split_gelu(opset: int) -> None:
    x, b = uniform(2, 3, 6), uniform(6, seed=1)
    left, right = np.split(x + b, 2, -1)
    gelu = right * (1 + np.vectorize(erf)(right / sqrt(2))) / 2
    op = Op("BiasSplitGelu", {}, MICROSOFT, opset)
    check_forward(op, [x, b], [left * gelu], rtol=1e-7)
    check_gradient(op, [x, b])


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize(
    ("axis", "bias"), [(2, (2, 1, 4)), (2, (3, 4)), (1, (3, 4)), (-1, (1, 3, 4))], ids=str
)
def test_bias_softmax(axis: int, bias: tuple[int, ...], opset: int) -> None:
    x, b = uniform(2, 3, 4), uniform(*bias, seed=1)
    op = Op("BiasSoftmax", {"axis": axis, "is_inner_broadcast": 1}, MICROSOFT, opset)
    y = np.exp((x + b).reshape((2, -1) if axis == 1 else (6, -1)))
    check_forward(op, [x, b], [(y / y.sum(-1, keepdims=True)).reshape(x.shape)], rtol=1e-12)
    check_gradient(op, [x, b])
