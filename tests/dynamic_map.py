"""The numbers that moments of 8 bits are stored as."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def dynamic_map(signed: bool) -> Array:
    """Return the authors' create_dynamic_map for 8 bits, 7 of them for the exponent."""
    numbers = [0.0, 1.0]
    for i in range(7):
        boundaries = np.linspace(0.1, 1, 2 ** (i if signed else i + 1) + 1)
        means = 10.0 ** (i - 6) * (boundaries[:-1] + boundaries[1:]) / 2
        numbers += [*means, *(-means if signed else [])]
    return np.sort(np.array(numbers).astype(np.float32))
