"""The gradient of a Relu before MaxPool is applied to pooled values, with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[np.floating]
PASS = "pool_activation_gradients"
SHAPE = (2, 3, 9, 8)
WINDOWS: dict[str, dict[str, Any]] = {
    "separate": {"kernel_shape": [3, 2], "strides": [3, 2]},
    "overlapping": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
}


def model(
    windows: str, elements: int = TensorProto.FLOAT, *, other_relu: bool = False, reads_between: bool = False
) -> onnx.ModelProto:
    """Return Relu, MaxPool and their gradients, as gradient graphs have them."""
    attributes = WINDOWS[windows]
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Relu", ["dx_of_pool" if other_relu else "x"], ["z"]),
        helper.make_node("MaxPool", ["y"], ["p", "saved"], **attributes),
        helper.make_node("MaxPoolGrad", ["dp", "saved", "shape"], ["dx_of_pool"], **attributes),
        helper.make_node(
            "ReluGrad", ["dx_of_pool", "z" if other_relu else "y"], ["dx"], domain="com.microsoft"
        ),
    ]
    if other_relu:
        nodes.insert(4, nodes.pop(1))
    results = ["p", "dx", *(["dx_of_pool"] if reads_between else [])]
    pooled = list(pool(np.zeros(SHAPE), windows).shape)
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", elements, SHAPE),
            helper.make_tensor_value_info("dp", elements, pooled),
        ],
        [helper.make_tensor_value_info(name, elements, None) for name in results],
        [helper.make_tensor("shape", TensorProto.INT64, [4], SHAPE)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def windows_of(windows: str) -> tuple[int, int, int, int, int]:
    attributes = WINDOWS[windows]
    (height, width), (step_y, step_x) = attributes["kernel_shape"], attributes["strides"]
    return height, width, step_y, step_x, attributes.get("pads", [0])[0]


def padded(x: Array, pad: int) -> Array:
    return np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=-np.inf)


def pool(x: Array, windows: str) -> Array:
    height, width, step_y, step_x, pad = windows_of(windows)
    views = np.lib.stride_tricks.sliding_window_view(padded(x, pad), (height, width), axis=(2, 3))
    pooled: Array = views[:, :, ::step_y, ::step_x].max((-2, -1))
    return pooled


def gradient(x: Array, dp: Array, windows: str) -> Array:
    """Return dX in double: the first largest element of each window gets the gradient if it is positive."""
    height, width, step_y, step_x, pad = windows_of(windows)
    values = padded(np.maximum(x, 0), pad)
    dx = np.zeros(values.shape)
    for n, c, i, j in np.ndindex(dp.shape):
        window = values[n, c, i * step_y : i * step_y + height, j * step_x : j * step_x + width]
        row, column = np.unravel_index(np.argmax(window), window.shape)
        dx[n, c, i * step_y + row, j * step_x + column] += dp[n, c, i, j] if window[row, column] > 0 else 0
    return dx[:, :, pad : pad + x.shape[2], pad : pad + x.shape[3]]


def run(
    graph: onnx.ModelProto, folder: Path, x: Array, dp: Array, *, disabled: bool = False
) -> tuple[list[Array], list[str]]:
    """Return the results, and the operators that the session runs."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    if disabled:
        options.add_session_config_entry(f"ortrain.disable_pass.{PASS}", "1")
    session = ortrain.InferenceSession(graph.SerializeToString(), options)
    results = session.run(None, {"x": x, "dp": dp})
    return results, [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


def values(windows: str, dtype: type = np.float32) -> tuple[Array, Array]:
    """Return x with ties, zeros, and windows without positive elements, and dP."""
    rng = np.random.default_rng(3)
    x: Array = rng.integers(-3, 2, SHAPE).astype(dtype)
    return x, rng.normal(0, 1, pool(x, windows).shape).astype(dtype)


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("elements", [TensorProto.FLOAT, TensorProto.DOUBLE])
def test_the_gradient_is_the_same(windows: str, elements: int, tmp_path: Path) -> None:
    x, dp = values(windows, helper.tensor_dtype_to_np_dtype(elements).type)
    graph = model(windows, elements)
    (p, dx), ran = run(graph, tmp_path, x, dp)
    assert [kind for kind in ran if "Grad" in kind] == ["ReluGrad", "MaxPoolGrad"]
    np.testing.assert_array_equal(p, pool(np.maximum(x, 0), windows))
    np.testing.assert_allclose(dx, gradient(x, dp, windows), rtol=1e-6, atol=1e-6)
    (_, without), ran = run(graph, tmp_path, x, dp, disabled=True)
    assert [kind for kind in ran if "Grad" in kind] == ["MaxPoolGrad", "ReluGrad"]
    np.testing.assert_array_equal(dx, without)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    x, dp = values("overlapping")
    x[0, 1, 4, 3] = dp[1, 2, 0, 0] = value
    graph = model("overlapping")
    (_, dx), _ = run(graph, tmp_path, x, dp)
    (_, without), _ = run(graph, tmp_path, x, dp, disabled=True)
    np.testing.assert_array_equal(dx, without)


@pytest.mark.parametrize("case", ["other_relu", "reads_between"])
def test_other_gradients_stay_as_they_are(case: str, tmp_path: Path) -> None:
    x, dp = values("separate")
    (_, dx, *_), ran = run(model("separate", **{case: True}), tmp_path, x, dp)
    assert [kind for kind in ran if "Grad" in kind] == ["MaxPoolGrad", "ReluGrad"]
    if case == "reads_between":
        np.testing.assert_allclose(dx, gradient(x, dp, "separate"), rtol=1e-6, atol=1e-6)
