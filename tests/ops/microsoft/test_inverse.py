"""Inverse, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, check_rejected, run, uniform
from microsoft_cases import f32

SPECIAL_POINTS = {"not recorded": ["com.microsoft.Inverse"]}


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (2, 1, 5, 5), (0, 3, 3)], ids=str)
def test_inverse(shape: tuple[int, ...]) -> None:
    x = f32(*shape) + 2 * np.eye(shape[-1], dtype=np.float32)
    check_forward(Op("Inverse", {}, MICROSOFT), [x], [np.linalg.inv(x.astype(np.float64)).astype(np.float32)])
    check_gradient(Op("Inverse", {}, MICROSOFT), [x.astype(np.float64)])


def test_inverse_pivots_and_names_singular_matrices() -> None:
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    check_forward(Op("Inverse", {}, MICROSOFT), [swap], [swap])
    with pytest.raises(RuntimeError, match=r"under_test.*matrix 1 .* no inverse"):
        run(Op("Inverse", {}, MICROSOFT), [np.stack([swap, np.ones((2, 2))])])
    check_rejected(Op("Inverse", {}, MICROSOFT), [uniform(2, 3)], "square matrices")
