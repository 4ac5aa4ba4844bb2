"""What the tests of quantized operators share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, gradient_model, make_model, run, run_model, uniform
from onnx import TensorProto, helper
from processor import adds_byte_products_exactly

onnxruntime = pytest.importorskip("onnxruntime")


def f32(*shape: int, seed: int = 0, low: float = -1, high: float = 1) -> Array:
    return uniform(*shape, dtype=np.float32, seed=seed, low=low, high=high)


def codes(*shape: int, dtype: Any = np.uint8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    low, high = info.min, info.max
    if dtype == np.int8 and not adds_byte_products_exactly():
        low, high = -64, 63
    return np.random.default_rng([seed, *shape]).integers(low, high + 1, shape).astype(dtype)


def scale(value: float) -> Array:
    return np.array(value, np.float32)


def by_onnxruntime(op: Op, inputs: Sequence[Array | None]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    model = make_model(op, inputs).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [
        np.asarray(y) for y in session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
    ]


def check_quantized(op: Op, inputs: Sequence[Array | None]) -> None:
    """Every code within one of onnxruntime's, which rounds products of inverse scales, and nearly all equal."""
    [found], [expected] = run(op, inputs), by_onnxruntime(op, inputs)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    apart = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert apart.max(initial=0) <= 1
    assert (apart != 0).mean() <= 0.02


def straight_through(op: Op, inputs: list[Array | None], wrt: int, weight: Array) -> Array:
    """The gradient of <y, weight> with respect to one input."""
    model = make_model(
        op, inputs,
        extra_nodes=[
            helper.make_node("Mul", ["y0", "weight"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
        ],
        extra_constants={"weight": weight}, outputs=["loss"],
    )  # fmt: skip
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    back = gradient_model(model.SerializeToString(), [f"x{wrt}"], "loss")
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    return run_model(back, feeds)[f"x{wrt}_grad"]
