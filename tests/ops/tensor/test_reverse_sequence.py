"""ReverseSequence, against NumPy and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["ReverseSequence"]}


@pytest.mark.parametrize("axes", [{}, {"batch_axis": 0, "time_axis": 1}])
@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (4, 4, 2, 2), (4, 4, 0)])
def test_reverse_sequence(shape: tuple[int, ...], axes: dict[str, int]) -> None:
    lengths = np.array([4, 0, 1, 3])
    x = uniform(*shape)
    wanted = x.copy()
    for b, n in enumerate(lengths):
        if axes:
            wanted[b, :n] = x[b, :n][::-1]
        else:
            wanted[:n, b] = x[:n, b][::-1]
    check_forward(Op("ReverseSequence", axes), [x, lengths], [wanted])
    check_gradient(Op("ReverseSequence", axes), [x, lengths])


def test_reverse_sequence_rejects_bad_lengths() -> None:
    op = Op("ReverseSequence")
    check_rejected(op, [uniform(3, 2), np.array([1, 4])], r"sequence_lens\[1\] must be in \[0, 3\]")
    check_rejected(op, [uniform(3, 2), np.array([1, 2, 3])], "must be int64 of shape")
    check_rejected(op, [uniform(3), np.array([1])], "at least two axes")
    check_rejected(Op("ReverseSequence", {"time_axis": 1}), [uniform(3, 2), np.array([1, 2])], "batch_axis")
