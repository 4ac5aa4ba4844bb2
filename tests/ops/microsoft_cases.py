"""What the tests of the operators of com.microsoft share."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, make_model, uniform

onnxruntime = pytest.importorskip("onnxruntime")


def f32(*shape: int, seed: int = 0, low: float = -1, high: float = 1) -> Array:
    return uniform(*shape, dtype=np.float32, seed=seed, low=low, high=high)


def by_onnxruntime(op: Op, inputs: Sequence[Array | None]) -> list[Array]:
    model = make_model(op, inputs)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    return [np.asarray(y) for y in session.run(None, feeds)]


def check(
    op: Op,
    inputs: Sequence[Array | None],
    rtol: float = 1e-5,
    wrt: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    constants: Collection[int] = (),
    gradient: bool = True,
) -> None:
    """Values in float compared with onnxruntime, gradients in double."""
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=rtol, constants=constants)
    if gradient:
        wide = [x.astype(np.float64) if x is not None and x.dtype == np.float32 else x for x in inputs]
        check_gradient(op, wide, wrt=wrt, outputs=outputs, constants=constants)
