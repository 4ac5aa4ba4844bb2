"""Products and convolutions of 8-bit integers."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_rejected, integers, run, uniform
from numpy.typing import NDArray

SMALL = [np.uint8, np.int8]
PAIRS = list(product(SMALL, SMALL))


SHAPES = [
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 1, 2, 3), (4, 3, 2)),
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 0), (0, 3)),
]


@pytest.mark.parametrize("a_type", SMALL)
@pytest.mark.parametrize("b_type", SMALL)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
def test_products_of_integers(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], a_type: Any, b_type: Any
) -> None:
    a, b = integers(a_shape, a_type), integers(b_shape, b_type, 1)
    wide_a, wide_b = a.astype(np.int32), b.astype(np.int32)
    op = Op("MatMulInteger")
    check_forward(op, [a, b], [np.asarray(wide_a @ wide_b, np.int32)])
    za, zb = np.array(7, a_type), np.array(100, b_type)
    check_forward(op, [a, b, za, zb], [np.asarray((wide_a - 7) @ (wide_b - 100), np.int32)])
    check_forward(op, [a, b, None, zb], [np.asarray(wide_a @ (wide_b - 100), np.int32)])


def test_zero_points_of_rows_and_columns() -> None:
    a, b = integers((5, 2, 3), np.uint8), integers((5, 3, 4), np.int8, 1)
    wide_a, wide_b = a.astype(np.int32), b.astype(np.int32)
    za, zb = integers((2,), np.uint8, 2), integers((4,), np.int8, 3)
    wanted = (wide_a - za[:, None].astype(np.int32)) @ (wide_b - zb.astype(np.int32))
    check_forward(Op("MatMulInteger"), [a, b, za, zb], [wanted])
    za, zb = integers((5, 2, 1), np.uint8, 2), integers((5, 1, 4), np.int8, 3)
    check_forward(
        Op("MatMulInteger"), [a, b, za, zb], [(wide_a - za.astype(np.int32)) @ (wide_b - zb.astype(np.int32))]
    )


@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES)
@pytest.mark.parametrize("each", [False, True])
def test_products_that_are_quantized_again(
    a_shape: tuple[int, ...], b_shape: tuple[int, ...], dtype: Any, each: bool
) -> None:
    if each and (len(a_shape) == 1 or len(b_shape) == 1):
        pytest.skip("a vector has one scale")
    rows, columns = ((a_shape[-2],), (b_shape[-1],)) if each else ((), ())
    a, b = integers(a_shape, dtype), integers(b_shape, dtype, 1)
    sa, sb = (uniform(*s, low=0.01, high=0.1, dtype=np.float32) for s in (rows, columns))
    za, zb, zy = integers(rows, dtype, 2), integers(columns, dtype, 3), np.array(5, dtype)
    sy = np.float32(3.7)
    sums = (a.astype(np.int64) - (za[:, None] if each else za).astype(np.int64)) @ (b.astype(np.int64) - zb)
    scale = (sa[:, None] if each else sa).astype(np.float64) * sb / np.float64(sy)
    info = np.iinfo(dtype)
    wanted = np.clip(np.rint(sums * scale) + 5, info.min, info.max).astype(dtype)
    check_forward(Op("QLinearMatMul"), [a, sa, za, b, sb, zb, sy, zy], [np.asarray(wanted)])


def test_bad_operands_are_rejected() -> None:
    a, b = integers((2, 3), np.uint8), integers((3, 4), np.uint8)
    check_rejected(Op("MatMulInteger"), [a, a], "inner dimensions differ")
    check_rejected(Op("MatMulInteger"), [a.astype(np.int32), b], "has type int32")
    check_rejected(Op("MatMulInteger"), [a, b, np.int8(1)], "must have the type of input 0")
    check_rejected(Op("MatMulInteger"), [a, b, np.zeros(3, np.uint8)], "must be a single value")


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 5, 5), (3, 2, 3, 3), {}),
    ((2, 4, 6, 5), (4, 2, 3, 2), {"group": 2, "pads": [1, 0, 2, 1], "strides": [2, 1]}),
    ((1, 1, 8), (2, 1, 3), {"dilations": [2]}),
    ((1, 1, 4, 4, 3), (2, 1, 2, 2, 2), {"pads": [1, 1, 0, 0, 0, 1]}),
    ((1, 3, 1, 1), (2, 3, 1, 1), {}),
]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), CONVOLUTIONS)
@pytest.mark.parametrize("x_type", [np.uint8, np.int8])
@pytest.mark.parametrize("w_type", [np.uint8, np.int8])
@pytest.mark.parametrize("by_filter", [False, True])
def test_convolutions_of_integers(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], x_type: Any, w_type: Any,
    by_filter: bool,
) -> None:  # fmt: skip
    x, w = integers(x_shape, x_type), integers(w_shape, w_type, 1)
    x_zero, w_zero = x_type(7), integers((w_shape[0],), w_type, 2) if by_filter else w_type(3)
    per_filter = np.reshape(w_zero, (-1, *[1] * (len(w_shape) - 1))).astype(np.float64)
    difference = [x.astype(np.float64) - float(x_zero), w.astype(np.float64) - per_filter]
    (exact,) = run(Op("Conv", attributes), difference)
    op = Op("ConvInteger", attributes)
    check_forward(op, [x, w, x_zero, w_zero], [exact.astype(np.int32)])
    if not by_filter:
        (plain,) = run(Op("Conv", attributes), [x.astype(np.float64), w.astype(np.float64)])
        check_forward(op, [x, w], [plain.astype(np.int32)])

    scales = uniform(w_shape[0], low=0.5, high=2, seed=3, dtype=np.float32) if by_filter else np.float32(0.7)
    bias = np.arange(w_shape[0], dtype=np.int32) * 50
    y_zero = x_type(20)
    y_scale = np.float32(np.abs(exact).max() * 0.01 + 1)
    column = (1, -1, *[1] * (len(x_shape) - 2))
    factor = (
        np.float64(np.float32(0.5)) * np.reshape(scales, column if by_filter else (1,)) / np.float64(y_scale)
    )
    raw = np.rint((exact + bias.reshape(column)) * factor) + float(y_zero)
    limits = np.iinfo(x_type)
    wanted = np.clip(raw, limits.min, limits.max).astype(x_type)
    inputs = [x, np.float32(0.5), x_zero, w, scales, w_zero, y_scale, y_zero, bias]
    (found,) = run(Op("QLinearConv", attributes), inputs)
    assert found.dtype == x_type
    # A tie may be rounded the other way if scales are multiplied in another order.
    assert np.abs(found.astype(np.int64) - wanted.astype(np.int64)).max(initial=0) <= 1
    assert np.mean(found != wanted) <= 0.01


def test_convolutions_of_integers_reject_what_does_not_fit() -> None:
    x, w = integers((1, 2, 4, 4), np.uint8), integers((3, 2, 3, 3), np.uint8)
    check_rejected(Op("ConvInteger"), [x, w, np.int8(1)], "type of input 0")
    check_rejected(Op("ConvInteger"), [x, w, np.uint8([1, 2])], "a single value, found shape")
    check_rejected(Op("ConvInteger"), [x, w, np.uint8(1), np.uint8([1, 2])], "each of the 3 filters")
    check_rejected(Op("ConvInteger"), [x.astype(np.int32), w], "has type int32")


def extremes(shape: tuple[int, ...], dtype: Any, seed: int) -> NDArray[Any]:
    """Return the least and the greatest value of the type in random order: with them sums are largest."""
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).choice(np.array([info.min, info.max, info.max], dtype), shape)


@pytest.mark.parametrize(("a_type", "b_type"), PAIRS)
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 7, 8, 63, 1030])
def test_products_of_extremes_are_exact(k: int, a_type: Any, b_type: Any) -> None:
    """Sums of two products of 255 and 127 do not fit in 16 bits."""
    for m, n in [(1, 1), (7, 65), (13, 140), (2, 16)]:
        a, b = extremes((m, k), a_type, k), extremes((k, n), b_type, k + 1)
        a[0], b[:, 0] = np.iinfo(a_type).max, np.iinfo(b_type).max
        for a_zero, b_zero in product(
            [np.iinfo(a_type).min, np.iinfo(a_type).max], [np.iinfo(b_type).min, 5]
        ):
            exact = (a.astype(np.int64) - int(a_zero)) @ (b.astype(np.int64) - int(b_zero))
            inputs = [a, b, np.array(a_zero, a_type), np.array(b_zero, b_type)]
            for constants in ((), (1, 3)):  # constant weights are packed when the model is compiled
                (found,) = run(Op("MatMulInteger"), inputs, constants)
                np.testing.assert_array_equal(found, exact.astype(np.int32))
    rows, columns = extremes((m,), a_type, 3), extremes((n,), b_type, 4)
    exact = (a.astype(np.int64) - rows[:, None].astype(np.int64)) @ (b.astype(np.int64) - columns)
    np.testing.assert_array_equal(run(Op("MatMulInteger"), [a, b, rows, columns])[0], exact.astype(np.int32))


def exact_convolution(
    x: NDArray[Any], w: NDArray[Any], x_zero: int, w_zero: NDArray[Any], strides: list[int], pads: list[int],
    dilations: list[int], group: int,
) -> NDArray[np.int64]:  # fmt: skip
    """Compute ConvInteger with 64-bit integers."""
    rank = w.ndim - 2
    wide = np.pad(x.astype(np.int64) - x_zero, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    filters = w.astype(np.int64) - w_zero.astype(np.int64).reshape(-1, *[1] * (rank + 1))
    spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(wide, spans, tuple(range(2, 2 + rank)))
    at = (..., *[slice(None, None, s) for s in strides], *[slice(None, None, d) for d in dilations])
    patches = windows[at].reshape(len(x), group, w.shape[1], *windows[at].shape[2:])
    letters, taps = "uvw"[:rank], "xyz"[:rank]
    y = np.einsum(
        f"ngc{letters}{taps},gfc{taps}->ngf{letters}", patches, filters.reshape(group, -1, *w.shape[1:])
    )
    return np.asarray(y.reshape(len(x), w.shape[0], *y.shape[3:]))


EXTREME: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 19), (5, 3, 4), {"strides": [3], "pads": [2, 5], "dilations": [2]}),
    ((1, 16, 17, 15), (9, 16, 3, 3), {"strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    ((2, 8, 9, 21), (12, 2, 3, 3), {"group": 4, "strides": [2, 2], "pads": [0, 1, 1, 2], "dilations": [1, 2]}),
    ((1, 6, 12, 11), (6, 1, 5, 3), {"group": 6, "strides": [1, 3], "pads": [4, 2, 4, 0], "dilations": [2, 1]}),
    ((2, 7, 9, 40), (7, 1, 3, 3), {"group": 7, "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    ((1, 3, 5, 40, 5), (3, 1, 2, 3, 2), {"group": 3, "strides": [2, 1, 2], "pads": [1, 0, 3, 1, 2, 0], "dilations": [1, 2, 3]}),
    ((1, 4, 30), (4, 1, 1), {"group": 4, "strides": [1], "pads": [0, 0], "dilations": [1]}),
    ((3, 40, 10, 13), (70, 40, 1, 1), {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1]}),
    ((1, 5, 8, 8), (2, 5, 1, 1), {"strides": [2, 3], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    ((1, 2, 3, 3), (3, 2, 2, 2), {"strides": [9, 9], "pads": [9, 9, 9, 9], "dilations": [1, 1]}),
    ((2, 2, 5, 6, 7), (4, 2, 3, 2, 3), {"strides": [2, 1, 1], "pads": [1, 0, 1, 1, 1, 2], "dilations": [1, 2, 1]}),
    ((0, 2, 4, 4), (3, 2, 3, 3), {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1]}),
    # Depthwise, with lines that are divided into blocks, and with every way of reading them.
    ((2, 3, 45, 67), (3, 1, 3, 3), {"group": 3, "strides": [1, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1]}),
    ((1, 3, 70, 75), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [0, 0, 1, 1], "dilations": [1, 1]}),
    ((1, 2, 20, 21), (2, 1, 5, 4), {"group": 2, "strides": [2, 2], "pads": [4, 3, 2, 5], "dilations": [1, 2]}),
    ((1, 2, 9, 30), (2, 1, 2, 5), {"group": 2, "strides": [4, 3], "pads": [0, 9, 0, 9], "dilations": [7, 1]}),
]  # fmt: skip


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), EXTREME)
@pytest.mark.parametrize(("x_type", "w_type"), PAIRS)
def test_convolutions_of_extremes_are_exact(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], x_type: Any, w_type: Any
) -> None:
    x, w = extremes(x_shape, x_type, 1), extremes(w_shape, w_type, 2)
    arguments = {"group": 1, **attributes}
    for x_zero, w_zero in product([np.iinfo(x_type).min, np.iinfo(x_type).max], [np.iinfo(w_type).max, 3]):
        wanted = exact_convolution(x, w, int(x_zero), np.array([w_zero]), **arguments)
        inputs = [x, w, np.array(x_zero, x_type), np.array(w_zero, w_type)]
        np.testing.assert_array_equal(run(Op("ConvInteger", attributes), inputs)[0], wanted.astype(np.int32))
    zeros = extremes(w_shape[:1], w_type, 3)
    wanted = exact_convolution(x, w, 7, zeros, **arguments)
    inputs = [x, w, np.array(7, x_type), zeros]
    for constants in ((), (1, 3), (1,)):  # constant weights are packed when the model is compiled
        (found,) = run(Op("ConvInteger", attributes), inputs, constants)
        np.testing.assert_array_equal(found, wanted.astype(np.int32))
