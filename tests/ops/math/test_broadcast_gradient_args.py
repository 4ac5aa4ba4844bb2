"""BroadcastGradientArgs, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import MICROSOFT, Op, check_forward, check_rejected
from tensor_cases import ints


@pytest.mark.parametrize(
    ("a", "b", "a_axes", "b_axes"),
    [
        ([2, 1, 3], [2, 4, 3], [1], []),
        ([3], [2, 1, 3], [0, 1], []),
        ([2, 1, 3], [4, 1], [1], [0, 2]),
        ([], [2, 3], [0, 1], []),
        ([1, 1], [1, 1], [], []),
        ([0, 3], [1, 3], [], [0]),
    ],
)
def test_broadcast_gradient_args_names_the_axes_to_sum(
    a: list[int], b: list[int], a_axes: list[int], b_axes: list[int]
) -> None:
    op = Op("BroadcastGradientArgs", domain=MICROSOFT, outputs=2)
    check_forward(op, [ints(*a), ints(*b)], [ints(*a_axes), ints(*b_axes)], constants=(0, 1))


REJECTED = [
    (
        (Op("BroadcastGradientArgs", domain=MICROSOFT, outputs=2), [ints(2), ints(3)], (0, 1)),
        "do not broadcast",
    ),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
