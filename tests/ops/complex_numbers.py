"""Complex numbers as the operators of signals have them: real and imaginary parts along the last axis."""

from __future__ import annotations

import numpy as np
from helpers import Array


def to_complex(x: Array) -> Array:
    return x[..., 0] + 1j * x[..., 1] if x.shape[-1] == 2 else x[..., 0].astype(complex)


def to_parts(z: Array) -> Array:
    return np.stack([z.real, z.imag], axis=-1)
