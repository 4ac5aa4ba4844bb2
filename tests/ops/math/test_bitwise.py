"""Bitwise operators and shifts, against NumPy and Python's integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_rejected, integers, uniform

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"), [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((0,), (1,))]
)
def test_bits(a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: Any) -> None:
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, 1)
    a, b = np.asarray(a, dtype), np.asarray(b, dtype)
    for name, function in (("And", np.bitwise_and), ("Or", np.bitwise_or), ("Xor", np.bitwise_xor)):
        check_forward(Op(f"Bitwise{name}", opset=18), [a, b], [np.asarray(function(a, b), dtype)])
    check_forward(Op("BitwiseNot", opset=18), [a], [np.asarray(~a, dtype)])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts(dtype: Any) -> None:
    bits = np.iinfo(dtype).bits
    x = integers((3, bits + 2), dtype)
    by = np.arange(bits + 2).astype(dtype)
    # With Python's integers, which have unlimited bits.
    left = [[(int(v) << k if k < bits else 0) & (2**bits - 1) for k, v in enumerate(row)] for row in x]
    right = [[int(v) >> k for k, v in enumerate(row)] for row in x]
    unsigned = np.array(left, np.uint64).astype(f"uint{bits}").view(dtype)
    check_forward(Op("BitShift", {"direction": "LEFT"}, opset=28), [x, by], [unsigned])
    check_forward(Op("BitShift", {"direction": "RIGHT"}, opset=28), [x, by], [np.array(right).astype(dtype)])
    if np.issubdtype(dtype, np.signedinteger):
        negative = np.full_like(x, -1)
        wanted = np.where(x < 0, -1, 0).astype(dtype)
        check_forward(Op("BitShift", {"direction": "RIGHT"}, opset=28), [x, negative], [wanted])
        check_forward(Op("BitShift", {"direction": "LEFT"}, opset=28), [x, negative], [np.zeros_like(x)])


def test_bitwise_operators_reject_other_types() -> None:
    check_rejected(Op("BitwiseAnd", opset=18), [uniform(2), uniform(2)], "has type float64")
    check_rejected(Op("BitwiseNot", opset=18), [uniform(2)], "has type float64")
    one = np.ones(2, np.uint8)
    check_rejected(Op("BitShift", {"direction": "UP"}), [one, one], "direction must be")
