"""Det, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not recorded": ["Det"]}

SHAPES = [(1, 1), (2, 2), (3, 3), (5, 5), (2, 3, 3), (2, 1, 4, 4), (0, 2, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_det(shape: tuple[int, ...], dtype: type) -> None:
    x = uniform(*shape, dtype=dtype)
    expected = np.asarray(np.linalg.det(x.astype(np.float64))).astype(dtype)
    check_forward(Op("Det"), [x], [expected], rtol=1e-6 if dtype == np.float32 else 1e-12)


def test_det_of_no_rows_is_one() -> None:
    check_forward(Op("Det"), [uniform(2, 0, 0)], [np.ones(2)])


@pytest.mark.parametrize("shape", SHAPES)
def test_det_gradient(shape: tuple[int, ...]) -> None:
    check_gradient(Op("Det"), [uniform(*shape)])


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_det_gradient_of_singular_matrices(rank: int) -> None:
    """The adjugate exists even if the inverse does not."""
    x = uniform(4, rank) @ uniform(rank, 4, seed=1)
    check_gradient(Op("Det"), [x])
    check_gradient(Op("Det"), [np.eye(4)[:, ::-1] * [1, 0, 2, 3]])


def test_det_rejects_what_is_not_square() -> None:
    check_rejected(Op("Det"), [uniform(2, 3)], r"\[\.\.\., M, M\]")
