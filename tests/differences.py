"""Central finite differences, the oracle of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def central_differences(
    loss: Callable[[Array], float],
    x: Array,
    step: float = 1e-5,
    places: Iterable[tuple[int, ...]] | None = None,
) -> Array:
    """Return the gradient of ``loss`` at ``x``, which is double, element by element.

    If ``places`` are given, only for those elements; the others are NaN.
    """
    assert x.dtype == np.float64
    gradient = np.full(x.shape, np.nan)
    for place in np.ndindex(x.shape) if places is None else places:
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            ends.append(float(loss(moved)))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient
