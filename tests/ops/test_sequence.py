"""ReverseSequence, window functions and SwiGLU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform
from onnx import TensorProto


@pytest.mark.parametrize("axes", [{}, {"batch_axis": 0, "time_axis": 1}])
@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 3), (4, 4, 2, 2), (4, 4, 0)])
def test_reverse_sequence(shape: tuple[int, ...], axes: dict[str, int]) -> None:
    lengths = np.array([4, 0, 1, 3])
    x = uniform(*shape)
    wanted = x.copy()
    for b, n in enumerate(lengths):
        if axes:
            wanted[b, :n] = x[b, :n][::-1]
        else:
            wanted[:n, b] = x[:n, b][::-1]
    check_forward(Op("ReverseSequence", axes), [x, lengths], [wanted])
    check_gradient(Op("ReverseSequence", axes), [x, lengths])


def test_reverse_sequence_refuses_bad_lengths() -> None:
    op = Op("ReverseSequence")
    check_rejected(op, [uniform(3, 2), np.array([1, 4])], r"sequence_lens\[1\] must lie in \[0, 3\]")
    check_rejected(op, [uniform(3, 2), np.array([1, 2, 3])], "must be int64 of shape")
    check_rejected(op, [uniform(3), np.array([1])], "at least two axes")
    check_rejected(Op("ReverseSequence", {"time_axis": 1}), [uniform(3, 2), np.array([1, 2])], "batch_axis")


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


@pytest.mark.parametrize("alpha", [1.0, 1.7])
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2), (5001,)])
def test_swiglu(shape: tuple[int, ...], alpha: float) -> None:
    a, b = uniform(*shape, low=-4, high=4), uniform(*shape, seed=1)
    op = Op("SwiGLU", {"alpha": alpha}, opset=28)
    scale = np.float64(np.float32(alpha))
    for dtype in (np.float32, np.float64):
        u, v = a.astype(dtype), b.astype(dtype)
        check_forward(op, [u, v], [np.asarray(u / (1 + np.exp(-scale * u)) * v, dtype)])
    if a.size < 100:
        check_gradient(op, [a, b])
    check_rejected(op, [uniform(2), uniform(3)], "must have the same shape|shape")
