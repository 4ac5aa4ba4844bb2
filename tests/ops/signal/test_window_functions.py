"""HannWindow, HammingWindow and BlackmanWindow, against their formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward
from onnx import TensorProto


@pytest.mark.parametrize("name", ["Hann", "Hamming", "Blackman"])
@pytest.mark.parametrize("size", [0, 1, 2, 9, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_windows(name: str, size: int, dtype: Any) -> None:
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
    a, b, c = {"Hann": (0.5, 0.5, 0), "Hamming": (25 / 46, 21 / 46, 0), "Blackman": (0.42, 0.5, 0.08)}[name]
    for periodic in (0, 1):
        x = 2 * np.pi * np.arange(size) / max(size if periodic else size - 1, 1)
        wanted = (a - b * np.cos(x) + c * np.cos(2 * x)).astype(dtype)
        op = Op(f"{name}Window", {"periodic": periodic, "output_datatype": int(kind)})
        check_forward(
            op, [np.array(size)], [wanted], constants=[0], atol=1e-6 if dtype == np.float32 else 1e-12
        )
