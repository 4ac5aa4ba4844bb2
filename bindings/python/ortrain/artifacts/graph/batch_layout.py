"""Where the rows of a batch are in a value. A comparison of the value for two batch sizes shows this."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

# Relative to the largest element. For another batch size, kernels may add in another order.
_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1, "float32": 2e-5, "float64": 1e-9}


@dataclass(frozen=True)
class Layout:
    """Where the rows are: in dimension ``axis``, which has ``factor`` elements per row, after ``outer`` blocks in memory.

    In memory, a value is an array of shape [outer, batch, rest]. A value that is the same for all batch sizes has no
    axis, nor has one whose elements are sizes, multiples of the batch size.
    """

    axis: int | None
    factor: int = 1
    outer: int = 1


def layout_of(before: Sequence[Array], after: Array, old: int, new: int) -> Layout | None:
    """Return where the rows are in a value, None if its rows are not those that they should be.

    Parameters
    ----------
    before : sequence of array
        The value for batches of ``old`` rows, one after another.
    after : array
        The value for one batch of ``new`` rows: the same rows, as many of them.
    old, new : int
        The sizes of the batches.
    """
    first = before[0]
    if first.shape == after.shape:
        return Layout(None) if _is_constant(before, after) or _has_sizes(before, after, old, new) else None
    if first.ndim != after.ndim:
        return None
    changed = [axis for axis in range(first.ndim) if first.shape[axis] != after.shape[axis]]
    axis = changed[0]
    if len(changed) > 1 or first.shape[axis] * new != after.shape[axis] * old:
        return None
    if any(value.shape != first.shape for value in before):
        return None
    factor = first.shape[axis] // old
    for split in range(1, factor + 1):
        if factor % split:
            continue
        outer = int(np.prod(first.shape[:axis], dtype=np.int64)) * split
        if _same_rows(before, after, outer, old, new):
            return Layout(axis, factor, outer)
    return None


def rows_of(value: Array, outer: int, rows: int) -> Array:
    """Return a value as an array of shape [outer, rows, rest]."""
    return value.reshape(outer, rows, value.size // (outer * rows) if value.size else 0)


def close(one: Array, other: Array) -> bool:
    """Return whether arrays of one shape are equal but for rounding."""
    if one.dtype != other.dtype:
        return False
    tolerance = _TOLERANCE.get(str(one.dtype))
    if tolerance is None:
        return bool(np.array_equal(one, other))
    one, other = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(one)
    scale = float(np.abs(one[finite]).max(initial=0.0))
    return bool(np.allclose(one, other, rtol=0.0, atol=tolerance * scale, equal_nan=True))


def _is_constant(before: Sequence[Array], after: Array) -> bool:
    return all(value.shape == after.shape and close(value, after) for value in before)


def _has_sizes(before: Sequence[Array], after: Array, old: int, new: int) -> bool:
    """Return whether the elements are sizes, some of them multiples of the batch size."""
    first = before[0]
    if after.dtype.kind not in "iu" or any(not np.array_equal(value, first) for value in before):
        return False
    return bool(((first == after) | (first * new == after * old)).all())


def _same_rows(before: Sequence[Array], after: Array, outer: int, old: int, new: int) -> bool:
    found = rows_of(after, outer, new)
    expected = np.concatenate([rows_of(value, outer, old) for value in before], axis=1)
    if expected.shape[1] >= new and close(expected[:, :new], found):
        return True
    # Values that do not depend on the data, such as the indices of the rows.
    number = min(old, new)
    same = all(_is_constant(before, value) for value in before)
    return same and close(rows_of(before[0], outer, old)[:, :number], found[:, :number])
