"""SwiGLU, against its formula and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not in PyTorch": ["SwiGLU"]}


@pytest.mark.parametrize("alpha", [1.0, 1.7])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (5001,)])
def test_swiglu(shape: tuple[int, ...], alpha: float) -> None:
    a, b = uniform(*shape, low=-4, high=4), uniform(*shape, seed=1)
    op = Op("SwiGLU", {"alpha": alpha}, opset=28)
    scale = np.float64(np.float32(alpha))
    for dtype in (np.float32, np.float64):
        u, v = a.astype(dtype), b.astype(dtype)
        check_forward(op, [u, v], [np.asarray(u / (1 + np.exp(-scale * u)) * v, dtype)])
    if a.size < 100:
        check_gradient(op, [a, b])
    check_rejected(op, [uniform(2), uniform(3)], "must have the same shape|shape")
