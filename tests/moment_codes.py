"""The numbers that moments of 8 bits are stored as."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def levels_and_edges(signed: bool) -> tuple[Array, Array]:
    """Return what the codes from 0 on stand for, as multiples of a block's scale, and the edges between them.

    Floats with so many bits of mantissa, cut off, from 1 to 256. Their middles are the levels. The first level is moved to 0, or
    for the root of the second moment the lower end of its interval.
    """
    bits = 4 if signed else 5
    floats = np.array([2.0**power * (1 + i / 2**bits) for power in range(8) for i in range(2**bits)] + [256])
    middles = (floats[:-1] + floats[1:]) / 2
    offset = middles[0] if signed else 1
    return middles - offset, floats[1:-1] - offset


def stored(x: Array, signed: bool, block: int = 256) -> tuple[Array, Array, Array]:
    """Return the codes of numbers, the scale of each block, and what is left of the numbers."""
    levels, edges = levels_and_edges(signed)
    blocks = np.pad(x.ravel(), (0, -x.size % block)).reshape(-1, block)
    scale = np.abs(blocks).max(1, keepdims=True) / levels[-1]
    codes = np.searchsorted(edges, np.abs(blocks) / np.where(scale > 0, scale, 1), "right")
    rounded = scale.astype(np.float32).astype(np.float64)
    restored = (np.sign(blocks) if signed else 1) * levels[codes] * rounded
    codes = np.where(blocks < 0, -codes, codes)
    codes, restored = (part.ravel()[: x.size].reshape(x.shape) for part in (codes, restored))
    return codes, scale.ravel(), restored
