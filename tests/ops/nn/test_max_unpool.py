"""MaxUnpool and its gradient operator."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not recorded": ["MaxUnpool"]}


@pytest.mark.parametrize("given", [None, (1, 2, 4, 6), (1, 2, 5, 8), (2, 3, 4, 6)])
def test_max_unpool_undoes_max_pool(given: tuple[int, ...] | None) -> None:
    x = uniform(1, 2, 2, 3)
    at = np.array([0, 3, 10, 12, 15, 23, 24, 33, 28, 43, 39, 47]).reshape(1, 2, 2, 3)
    op = Op("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]})
    shape = None if given is None else np.array(given)
    full = np.zeros(48)
    full[at.ravel()] = x.ravel()
    expected = np.zeros(given or (1, 2, 4, 6))
    expected[:1, :2, :4, :6] = full.reshape(1, 2, 4, 6)
    check_forward(op, [x, at, shape], [expected], constants={2})
    check_gradient(op, [x, at, shape], wrt=[0], constants={2})
    back = Op("MaxUnpoolGrad", op.attributes, MICROSOFT)
    check_gradient(back, [expected, at, shape], wrt=[0], constants={2})


def test_max_unpool_rejects_indices_outside() -> None:
    op = Op("MaxUnpool", {"kernel_shape": [2]})
    check_rejected(op, [uniform(1, 1, 2), np.array([[[0, 3]]])], "index 3")
    check_rejected(
        op, [uniform(1, 1, 2), np.array([[[0, 1]]]), np.array([1, 1, 2])], "at least", constants={2}
    )
