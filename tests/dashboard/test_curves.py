"""What charts draw: values that are in the log, few enough, with their extremes."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain.dashboard.curves import curve, smooth, thin
from ortrain.dashboard.logs import Series


def test_smoothing_is_the_corrected_average():
    values = np.random.default_rng(0).normal(size=1000)
    found = smooth(values, 0.9)
    assert len(found) == 1000
    for n in (0, 1, 7, 49, 255, 256, 257, 600, 999):  # by definition: a mean with weights that fall by 0.9
        weights = 0.9 ** np.arange(n, -1, -1)
        assert found[n] == pytest.approx((weights * values[: n + 1]).sum() / weights.sum())


def test_thinning_keeps_ends_and_extremes():
    x, y = np.arange(100_000.0), np.random.default_rng(0).normal(size=100_000)
    y[54_321], y[77_777] = 50, -50
    kept = thin(x, y, 800)
    assert len(kept) <= 800
    assert (np.diff(kept) > 0).all()
    assert {0, 54_321, 77_777, 99_999} <= set(kept.tolist())
    assert thin(x[:700], y[:700], 800).tolist() == list(range(700))
    assert len(thin(np.zeros(5000), y[:5000], 800)) == 5000  # all at one place


def series_of(values):
    series = Series()
    for number, value in enumerate(values, start=1):
        series.add(number, number / 4, value)
    return series


def test_a_part_of_a_curve_with_a_point_on_either_side():
    found = curve(series_of([5.0, 4.0, 3.0, 2.0, 1.0]), "step", 2.5, 3.5, 100, 0)
    assert (found["x"], found["y"], found["total"]) == ([2, 3, 4], [4, 3, 2], 5)
    found = curve(series_of([5.0, 4.0, 3.0]), "elapsed", None, None, 100, 0.5)
    assert (found["x"], found["step"]) == ([0.25, 0.5, 0.75], [1, 2, 3])
    assert found["smooth"][0] == 5
    assert curve(series_of([5.0]), "step", 7, 9, 100, 0)["x"] == [1]


def test_values_that_are_not_finite_are_counted():
    found = curve(series_of([1.0, float("nan"), 3.0]), "step", None, None, 100, 0.5)
    assert (found["y"], found["not_finite"], found["total"]) == ([1, 3], 1, 3)
    assert curve(series_of([float("nan")]), "step", None, None, 100, 0.5)["y"] == []
    assert curve(Series(), "step", None, None, 100, 0.5)["smooth"] is None
