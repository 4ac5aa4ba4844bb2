"""Moments of 8 bits with operators of ONNX: the codes of ``core/src/backend/cpu/optimizer/rules/adamw_8bit.cpp``.

A code stands for one of 256 sorted numbers, which is multiplied by the scale of the block. The code of a number is the count of
the middles between neighbours that are below it. Counting takes one comparison: the root of the number leads to one of 4096
intervals, which are so short that none has two middles.
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

#: The elements that share a scale. Parameters with fewer elements than the second number have no codes.
BLOCK, LEAST_ELEMENTS = 256, 4096
_INTERVALS = 4096
#: More than the rounding error of a root in float, as a share of the root.
_ROUNDING = 1e-6
#: A number or difference of at least 1e-30, times this, is at least 1: a HardSigmoid or a Clip of the product is a step.
_STEEP = 1e30

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Codes:
    """The numbers that codes stand for, and how to find a code.

    Attributes
    ----------
    values : array of float32
        The numbers.
    zero : int
        The code of 0.
    first : array of float32
        For each interval, the count of the middles below all of its numbers.
    next : array of float32
        For each interval, the middle after those.
    """

    values: Array
    zero: int
    first: Array
    next: Array


@functools.cache
def codes(is_signed: bool) -> Codes:
    """Return the numbers of the authors' dynamic tree quantization, with or without a sign."""
    numbers = [0.0, 1.0]
    for decade in range(7):
        steps = 1 << (decade if is_signed else decade + 1)
        for i in range(steps):
            value = (0.1 + 0.9 * (i + 0.5) / steps) * 10.0 ** (decade - 6)
            numbers += [value, -value] if is_signed else [value]
    values = np.sort(np.array(numbers).astype(np.float32))
    zero = int(np.searchsorted(values, 0))
    magnitudes = values[zero:]
    middles = (magnitudes[:-1] + magnitudes[1:]) / np.float32(2)
    # The middles below every number of an interval, and those below the largest.
    edges = np.arange(_INTERVALS + 2) / _INTERVALS
    first = np.searchsorted(middles, (edges[:-1] * (1 - _ROUNDING)) ** 2)
    last = np.searchsorted(middles, (edges[1:] * (1 + _ROUNDING)) ** 2)
    assert np.all(last - first <= 1), "an interval has two middles"
    following = np.append(middles, 2)[first]  # nothing is above 2
    return Codes(values, zero, first.astype(np.float32), following.astype(np.float32))


def blocks_of(count: int) -> int:
    """Return the number of blocks of so many elements; the last one may be shorter."""
    return -(-count // BLOCK)


def decoded(code: Value, scale: Value, is_signed: bool, type: int, shape: tuple[int, ...]) -> Value:
    """Write the numbers that codes stand for.

    Parameters
    ----------
    code : Value
        The codes, of uint8.
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
    values = _looked_up(
        scale.constant(codes(is_signed).values), code.as_type(TensorProto.INT32).reshaped([-1])
    )
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
    least = largest.constant(np.finfo(values.dtype).tiny)
    is_normal = values._nodes.value(values._nodes.add("GreaterOrEqual", [largest, least]), TensorProto.BOOL)
    zero = largest.number(0.0)
    share = (values * is_normal.choose(1.0 / largest, zero)).as_type(TensorProto.FLOAT)
    code = _code(share, is_signed).reshaped([-1])
    if missing:
        code = code.call("Slice", code.integers([0]), code.integers([count]))
    scale = is_normal.choose(largest, zero).as_type(TensorProto.FLOAT).reshaped([-1])
    return code.reshaped(shape).as_type(TensorProto.UINT8), scale


def _code(share: Value, is_signed: bool) -> Value:
    """Write the codes, as floats, of numbers between -1 and 1."""
    table = codes(is_signed)
    share = share.reshaped([-1])
    size = share.call("Abs") if is_signed else share
    interval = (size.call("Sqrt") * _INTERVALS).as_type(TensorProto.INT32)
    # For what is not a number; the tables have one interval more, for 1.
    interval = interval.call("Clip", interval.number(0), interval.number(_INTERVALS))
    above = size - _looked_up(size.constant(table.next), interval)
    count = _looked_up(size.constant(table.first), interval) + above.call(
        "HardSigmoid", alpha=_STEEP, beta=0.0
    )
    if not is_signed:
        return count
    sign = (share * _STEEP).call("Clip", share.number(-1.0), share.number(1.0))
    # There is no code of -1: it has that of the least number.
    return (count * sign + table.zero).call("Relu")


def _looked_up(table: Value, at: Value) -> Value:
    # Gather is the usual operator for that, but onnxruntime takes ten times as long for it, element by element.
    return table.call("GatherElements", at, axis=0)
