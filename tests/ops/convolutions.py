"""What the gradient operators of convolution and of transposed convolution have to do alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers import Array, Op, run

Gradient = Callable[[tuple[bool, ...]], Op]
"""The gradient operator that has the wanted outputs: dX, dW and dB."""

SOME_OUTPUTS = [(True, False, False), (False, True, False), (False, False, True), (False, True, True)]


def check_float_agrees_with_double(gradient: Gradient, inputs: list[Array]) -> None:
    op = gradient((True, True, True))
    single = run(op, [x.astype(np.float32) for x in inputs])
    for found, expected in zip(single, run(op, inputs), strict=True):
        np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


def check_wanted_outputs(
    gradient: Gradient, inputs: list[Array], wanted: tuple[bool, ...], dtype: Any
) -> None:
    everything = run(gradient((True, True, True)), inputs)
    expected = [v for v, named in zip(everything, wanted, strict=True) if named]
    found = run(gradient(wanted), [x.astype(dtype) for x in inputs])
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_allclose(f, e, 0, 1e-5 * np.abs(e).max())
