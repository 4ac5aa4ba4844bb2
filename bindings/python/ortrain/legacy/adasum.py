"""Adasum: the sum of updates, in which their common part counts once.

S. Maleki et al., "Scaling distributed training with adaptive summation", 2020: a and b combine to
(1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b, which is their sum if they are orthogonal and their mean if they are equal. The
updates of a layer are combined in pairs, then those of the pairs, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.distributed.communicator import Communicator

Array = npt.NDArray[Any]


def combine(a: Array, b: Array) -> Array:
    """Return the combination of the updates of one layer by two ranks, the lower one first."""
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    product = float(wide_a @ wide_b)
    lengths = float(wide_a @ wide_a), float(wide_b @ wide_b)
    of_a, of_b = (1 - product / (2 * square) if square > 0 else 1.0 for square in lengths)
    combined: Array = (of_a * wide_a + of_b * wide_b).astype(a.dtype)
    return combined


def adasum(ranks: Communicator, update: Array, counts: Sequence[int]) -> int:
    """Overwrite the update of this rank with the combination of those of all.

    Parameters
    ----------
    ranks : Communicator
        A number of ranks that is a power of 2.
    update : array
        The updates of all layers, end to end.
    counts : sequence of int
        The number of elements of each layer.

    Returns
    -------
    int
        The number of bytes that were sent.
    """
    doing = "Adasum"
    other = np.empty_like(update)
    ends = np.cumsum(counts)
    sent = 0
    distance = 1
    while distance < ranks.size:
        partner = ranks.rank ^ distance
        received = ranks.data.Irecv(other, partner)
        ranks.wait(ranks.data.Isend(update, partner), doing)
        ranks.wait(received, doing)
        sent += update.nbytes
        first, second = (update, other) if ranks.rank < partner else (other, update)
        for start, end in zip(ends - counts, ends, strict=True):
            update[start:end] = combine(first[start:end], second[start:end])
        distance *= 2
    return sent
