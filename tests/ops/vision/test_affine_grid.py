"""AffineGrid, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["AffineGrid"]}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 3), (2, 1, 3, 2, 4), (0, 1, 2, 2)], ids=str)
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    axes = len(size) - 2
    theta = uniform(size[0], axes, axes + 1, low=-2, high=2)
    lines = [2 * np.arange(n) / (n - 1) - 1 if align else (2 * np.arange(n) + 1) / n - 1 for n in size[2:]]
    places = np.meshgrid(*lines, indexing="ij")[::-1]
    homogeneous = np.stack([*places, np.ones(size[2:])], -1)
    expected = np.einsum("nrk,...k->n...r", theta, homogeneous)
    op = Op("AffineGrid", {"align_corners": align}, opset=20)
    inputs = [theta, np.array(size)]
    check_forward(op, inputs, [expected], constants=(1,))
    check_forward(op, [theta.astype(np.float32), inputs[1]], [expected.astype(np.float32)], constants=(1,))
    check_gradient(op, inputs, constants=(1,))


def test_affine_grid_rejects_what_does_not_fit() -> None:
    theta = uniform(2, 2, 3)
    op = Op("AffineGrid", opset=20)
    check_rejected(op, [theta, np.array([1, 1, 2, 2])], r"theta must have shape \[1, 2, 3\]", constants=(1,))
    check_rejected(op, [theta, np.array([2, 1, 2])], "size must be", constants=(1,))
