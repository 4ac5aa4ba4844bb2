"""Gradient accumulation: InPlaceAccumulatorV2, InPlaceAccumulator, ZeroGradient."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_rejected, uniform

V2 = Op("InPlaceAccumulatorV2", domain=MICROSOFT, outputs=2)
V1 = Op("InPlaceAccumulator", domain=MICROSOFT)
DONE = np.array([True])


@pytest.mark.parametrize("shape", [(3, 4), (1,), (), (0, 2), (300, 301)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("known", [True, False], ids=["flag known", "flag given at run time"])
def test_the_buffer_is_added_to_or_overwritten(shape: tuple[int, ...], dtype: type, known: bool) -> None:
    buffer, value = uniform(*shape, dtype=dtype), uniform(*shape, dtype=dtype, seed=1)
    constants = (2,) if known else ()
    check_forward(V2, [buffer, value, np.array([True])], [DONE, value], constants=constants)
    check_forward(V2, [buffer, value, np.array([False])], [DONE, buffer + value], constants=constants)
    check_forward(V2, [buffer, value], [DONE, buffer + value])


def test_the_buffer_output_may_be_left_out() -> None:
    op = Op("InPlaceAccumulatorV2", domain=MICROSOFT)
    check_forward(op, [uniform(3), uniform(3), np.array([True])], [DONE], constants=(2,))


@pytest.mark.parametrize("shape", [(3, 4), (1,), (0,), (400, 200)])
def test_the_first_accumulator_adds_unless_its_signal_is_false(shape: tuple[int, ...]) -> None:
    old, value = uniform(*shape), uniform(*shape, seed=1)
    check_forward(V1, [old, value], [old + value])
    check_forward(V1, [old, value, np.array([True])], [old + value])
    check_forward(V1, [old, value, np.array([False])], [old])


def test_zero_gradient_gives_zeros_like_its_input() -> None:
    op = Op("ZeroGradient", domain=MICROSOFT)
    for shape in [(2, 3), (), (0,), (500, 300)]:
        check_forward(
            op, [uniform(*shape, dtype=np.float32), np.array([True])], [np.zeros(shape, np.float32)]
        )


@pytest.mark.parametrize("op", [V1, V2], ids=str)
def test_what_does_not_fit_is_rejected_by_name(op: Op) -> None:
    check_rejected(op, [uniform(3), uniform(4)], "the same shape")
    check_rejected(op, [uniform(3), uniform(3, dtype=np.float32)], "the same type")
    check_rejected(op, [uniform(3), uniform(3), np.array([1.0])], "input 2 must be a single bool")
    check_rejected(op, [np.arange(3), np.arange(3)], "int64")
