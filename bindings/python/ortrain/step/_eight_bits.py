"""Moments of 8 bits with operators of ONNX: the codes of ``core/src/backend/cpu/optimizer/rules/eight_bit_codes.h``.

A magnitude is stored as its share of the largest magnitude in its block. The shares between 0 and 1 are divided into intervals,
and a code is the number of an interval: the count of edges between intervals up to the share. Counting takes one comparison:
the root of the share leads to one of 4096 ranges, which are so short that none contains two edges.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from ortrain.step._nodes import Value

#: The number of elements that share a scale. Parameters with fewer elements than the second number are not stored as codes.
BLOCK, LEAST_ELEMENTS = 256, 4096
_RANGES = 4096
#: A block whose largest magnitude is smaller than this has the scale 0.
_LEAST_SCALE = 2.0**-100
#: An upper bound of the relative rounding error of a root in float.
_ROUNDING = 1e-6
#: A number of at least 1e-30, times this factor, is at least 1. So HardSigmoid or Clip of the product are step functions.
_STEEP = 1e30

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Codes:
    """The numbers of codes, and tables for finding a code.

    Attributes
    ----------
    values : array of float32
        The numbers that the codes from 0 on stand for, as multiples of the scale of a block.
    first : array of float32
        For each range, the count of the edges below all numbers of the range.
    next : array of float32
        For each range, the next edge after these.
    """

    values: Array
    first: Array
    next: Array


@functools.cache
def codes(is_signed: bool) -> Codes:
    """Return the tables for magnitudes of the first moment, whose codes have a sign, or of the root of the second moment."""
    steps = 16 if is_signed else 32  # intervals in each of eight powers of two
    power, step = np.divmod(np.arange(16 * steps + 1) / 2, steps)
    # The edges of the intervals and, between them, the middles.
    ends_and_middles = 2**power * (1 + step / steps)
    edges, middles = ends_and_middles[2:-1:2], ends_and_middles[1::2]
    # Code 0 stands for 0 if codes have a sign. For the root it stands for more than 0, because weights are divided by the root.
    offset = middles[0] if is_signed else 1.0
    values = middles - offset
    shares = (edges - offset) / values[-1]
    # The count of edges below every number of a range, and the count below its largest number.
    ranges = np.arange(_RANGES + 2) / _RANGES
    first = np.searchsorted(shares, (ranges[:-1] * (1 - _ROUNDING)) ** 2)
    last = np.searchsorted(shares, (ranges[1:] * (1 + _ROUNDING)) ** 2)
    assert np.all(last - first <= 1), "a range has two edges"
    following = np.append(shares, 2)[first]  # no share is above 2
    return Codes(values.astype(np.float32), first.astype(np.float32), following.astype(np.float32))


def blocks_of(count: int) -> int:
    """Return the number of blocks of so many elements; the last one may be shorter."""
    return -(-count // BLOCK)


def decoded(code: Value, scale: Value, is_signed: bool, type: int, shape: tuple[int, ...]) -> Value:
    """Write the numbers that codes stand for.

    Parameters
    ----------
    code : Value
        The codes: int8 for the first moment, uint8 for the root of the second moment.
    scale : Value
        The scale of each block.
    is_signed : bool
        Whether the codes have a sign.
    type : int
        The type of the result.
    shape : tuple of int
        The shape of the codes and of the result.
    """
    count = math.prod(shape)
    scale = scale.as_type(type)
    levels = codes(is_signed).values
    code = code.as_type(TensorProto.INT32).reshaped([-1])
    if is_signed:
        levels = np.concatenate([-levels[:0:-1], levels])
        code = code + (len(levels) // 2)
    values = _looked_up(scale.constant(levels), code)
    if missing := -count % BLOCK:
        values = values.call("Concat", values.constant(np.zeros(missing)), axis=0)
    scaled = values.reshaped([-1, BLOCK]) * scale.unsqueezed(-1)
    if missing:
        scaled = scaled.reshaped([-1])
        scaled = scaled.call("Slice", scaled.integers([0]), scaled.integers([count]))
    return scaled.reshaped(shape)


def encoded(values: Value, is_signed: bool, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """Write the codes of numbers, and the scale of each block."""
    count = math.prod(shape)
    if missing := -count % BLOCK:
        values = values.reshaped([-1]).call("Concat", values.constant(np.zeros(missing)), axis=0)
    values = values.reshaped([-1, BLOCK])
    magnitudes = values.call("Abs") if is_signed else values
    largest = magnitudes.reduced("ReduceMax", -1, keepdims=True)
    least = largest.constant(_LEAST_SCALE)
    has_scale = values._nodes.value(values._nodes.add("GreaterOrEqual", [largest, least]), TensorProto.BOOL)
    zero = largest.number(0.0)
    share = (values * has_scale.choose(1.0 / largest, zero)).as_type(TensorProto.FLOAT)
    code = _code(share, is_signed).reshaped([-1])
    if missing:
        code = code.call("Slice", code.integers([0]), code.integers([count]))
    scale = has_scale.choose(largest * (1.0 / float(codes(is_signed).values[-1])), zero)
    type = TensorProto.INT8 if is_signed else TensorProto.UINT8
    return code.reshaped(shape).as_type(type), scale.as_type(TensorProto.FLOAT).reshaped([-1])


def _code(share: Value, is_signed: bool) -> Value:
    """Write the codes, as floats, of numbers between -1 and 1."""
    table = codes(is_signed)
    share = share.reshaped([-1])
    size = share.call("Abs") if is_signed else share
    place = (size.call("Sqrt") * _RANGES).as_type(TensorProto.INT32)
    # The clip handles NaN. The tables have one more range, for a share of 1.
    place = place.call("Clip", place.number(0), place.number(_RANGES))
    above = size - _looked_up(size.constant(table.next), place)
    count = _looked_up(size.constant(table.first), place) + above.call("HardSigmoid", alpha=_STEEP, beta=0.0)
    if not is_signed:
        return count
    return count * (share * _STEEP).call("Clip", share.number(-1.0), share.number(1.0))


def _looked_up(table: Value, at: Value) -> Value:
    # Gather is the usual operator for a look-up, but onnxruntime's Gather takes ten times as long for single elements.
    return table.call("GatherElements", at, axis=0)
