"""AdamOptimizer, against its formula."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, run, uniform

_ADAM = {"alpha": 0.8, "beta": 0.95, "epsilon": 1e-3, "max_norm_clip": 0.5}


def _adam(g: Array) -> list[Array]:
    rate, step = np.array(0.1), np.array(3, np.int64)
    w, m, v = uniform(3, 2, seed=1), uniform(3, 2, seed=2), np.abs(uniform(3, 2, seed=3))
    return [rate, step, w, g, m, v]


@pytest.mark.parametrize(("scale", "norm"), [(2.0, None), (None, 4.0), (None, 0.4), (2.0, 4.0), (8.0, 2.0)])
def test_adam_unscales_and_clips(scale: float | None, norm: float | None) -> None:
    g = uniform(3, 2, seed=5)
    divisor = scale or 1.0
    if norm is not None and norm > divisor * _ADAM["max_norm_clip"]:
        divisor = norm / _ADAM["max_norm_clip"]
    op = Op("AdamOptimizer", _ADAM, MICROSOFT, outputs=5)
    extra = [None, None if scale is None else np.array(scale), None if norm is None else np.array(norm)]
    found = run(op, [*_adam(g), *extra])
    expected = run(op, _adam(g / divisor))
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, 1e-12, 1e-14)


@pytest.mark.parametrize("signal", [True, False])
def test_adam_waits_for_its_signal(signal: bool) -> None:
    inputs = _adam(uniform(3, 2, seed=5))
    op = Op("AdamOptimizer", _ADAM, MICROSOFT, outputs=5)
    found = run(op, [*inputs, None, None, None, np.array([signal])])
    unchanged = [inputs[1], inputs[4], inputs[5], inputs[2], inputs[3]]
    for f, e in zip(found, run(op, inputs) if signal else unchanged, strict=True):
        np.testing.assert_array_equal(f, e)
