"""Hardmax against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_rejected, run, uniform


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
