"""Curves: a series prepared for a chart, smoothed and with no more points than the chart has pixels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.dashboard.logs import Series

Floats = npt.NDArray[np.float64]

_BLOCK = 256  # values that are smoothed at once


def smooth(values: Floats, weight: float) -> Floats:
    """Return the exponential moving average of values, corrected for its start.

    Parameters
    ----------
    values : array
        Float64, 1 dimension; finite.
    weight : float
        The fraction of the average that each point keeps, from 0 up to 1.
    """
    parts = _parts(weight)
    blocks = np.zeros((-(-len(values) // _BLOCK), _BLOCK))
    blocks.ravel()[: len(values)] = values
    sums = blocks @ parts
    before = 0.0
    for row in sums:
        row += before * weight ** np.arange(1, _BLOCK + 1)
        before = row[-1]
    averages = sums.ravel()[: len(values)]
    corrected: Floats = averages / (1 - weight ** np.arange(1, len(averages) + 1))
    return corrected


@lru_cache(maxsize=8)
def _parts(weight: float) -> Floats:
    """Return the weight of each value of a block in each later average of the block."""
    powers = np.arange(_BLOCK)[None] - np.arange(_BLOCK)[:, None]
    return np.where(powers >= 0, (1 - weight) * weight ** np.maximum(powers, 0.0), 0.0)


def thin(x: Floats, y: Floats, points: int) -> npt.NDArray[np.int64]:
    """Return which points a chart draws: of each of some intervals the first, lowest, highest and last.

    Parameters
    ----------
    x, y : array
        Float64 of the same length; ``x`` does not decrease.
    points : int
        How many there are at most, about.
    """
    if len(x) <= max(points, 4) or x[-1] == x[0]:
        return np.arange(len(x))
    edges = np.linspace(x[0], x[-1], max(1, points // 4) + 1)
    starts = np.unique(np.searchsorted(x, edges[:-1]))
    kept: set[int] = set()
    for start, end in zip(starts, [*starts[1:], len(x)], strict=True):
        part = y[start:end]
        kept.update((int(start), int(start + part.argmin()), int(start + part.argmax()), int(end) - 1))
    return np.array(sorted(kept))


def curve(
    series: Series, axis: str, low: float | None, high: float | None, points: int, weight: float
) -> dict[str, Any]:
    """Return a series as a chart shows it.

    Parameters
    ----------
    series : Series
        The values.
    axis : {"step", "elapsed"}
        What ``x`` is.
    low, high : float, optional
        The part of the axis that is shown; one more point on either side is returned.
    points : int
        How many points there are at most, about.
    weight : float
        Of `smooth`; 0 for none.

    Returns
    -------
    dict
        ``x``, ``step``, ``y`` of the points, ``smooth`` or None, the ``total`` number of points and how many are
        ``not_finite``, which the others do not include.
    """
    steps, x, y = np.array(series.step), np.array(getattr(series, axis)), np.array(series.value)
    finite = np.isfinite(y)
    total, lost = len(y), int(len(y) - finite.sum())
    steps, x, y = steps[finite], x[finite], y[finite]
    averages = smooth(y, weight) if weight and len(y) else None
    start = 0 if low is None else max(0, int(np.searchsorted(x, low)) - 1)
    end = len(x) if high is None else min(len(x), int(np.searchsorted(x, high, "right")) + 1)
    chosen = start + thin(x[start:end], y[start:end], points)
    return {
        "x": x[chosen].tolist(),
        "step": steps[chosen].astype(np.int64).tolist(),
        "y": y[chosen].tolist(),
        "smooth": None if averages is None else averages[chosen].tolist(),
        "total": total,
        "not_finite": lost,
    }
