"""Pooling in one to three dimensions against its definition, its gradients against finite differences."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    run,
    run_model,
    uniform,
)
from onnx import helper

SPECIAL_POINTS = {"linear": ["AveragePool", "GlobalAveragePool"], "not recorded": ["GlobalMaxPool"]}

Shape = tuple[int, ...]


def windows(shape: Shape, attributes: dict[str, Any]) -> tuple[Shape, list[list[tuple[list[int], int]]]]:
    """The windows along each spatial axis: the inputs in each, and their number including padding."""
    kernel = attributes["kernel_shape"]
    axes = len(kernel)
    strides = attributes.get("strides", (1,) * axes)
    dilations = attributes.get("dilations", (1,) * axes)
    pads = attributes.get("pads", (0,) * (2 * axes))
    auto = attributes.get("auto_pad", "NOTSET")
    found = []
    for i in range(axes):
        n, s, d = shape[2 + i], strides[i], dilations[i]
        span = (kernel[i] - 1) * d + 1
        before, after = pads[i], pads[axes + i]
        if auto.startswith("SAME"):
            count = -(-n // s)
            total = max(0, (count - 1) * s + span - n)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            after = total - before
        elif attributes.get("ceil_mode", 0):
            count = -(-(n + before + after - span) // s) + 1
            if (count - 1) * s >= n + before:
                count -= 1
        else:
            count = (n + before + after - span) // s + 1
        axis = []
        for o in range(count):
            places = [o * s - before + k * d for k in range(kernel[i])]
            axis.append(([p for p in places if 0 <= p < n], sum(p < n + after for p in places)))
        found.append(axis)
    return tuple(len(axis) for axis in found), found


def pool(x: Array, attributes: dict[str, Any], kind: str) -> tuple[Array, Array]:
    """Values of MaxPool or AveragePool and, for MaxPool, the indices."""
    outputs, axes = windows(x.shape, attributes)
    y = np.zeros((*x.shape[:2], *outputs), x.dtype)
    indices = np.zeros(y.shape, np.int64)
    flat = np.arange(x.size).reshape(x.shape)
    for position in np.ndindex(*outputs):
        parts = [axes[i][o] for i, o in enumerate(position)]
        place = np.ix_(range(x.shape[0]), range(x.shape[1]), *(part[0] for part in parts))
        values = x[place].reshape(*x.shape[:2], -1)
        at = (..., *position)
        if kind == "MaxPool":
            y[at] = values.max(-1)
            indices[at] = np.take_along_axis(
                flat[place].reshape(*x.shape[:2], -1), values.argmax(-1)[..., None], -1
            )[..., 0]
        else:
            count = values.shape[-1]
            if attributes.get("count_include_pad", 0):
                count = int(np.prod([part[1] for part in parts]))
            y[at] = values.sum(-1) / count
    return y, indices


CASES: dict[str, tuple[Shape, dict[str, Any]]] = {
    "1d": ((2, 3, 9), {"kernel_shape": (3,), "strides": (2,)}),
    "halves": ((2, 3, 6, 4), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "odd-remainder": ((2, 3, 7, 5), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "overlapping": ((2, 3, 7, 6), {"kernel_shape": (3, 3), "strides": (2, 1), "pads": (1, 1, 1, 1)}),
    "asymmetric": ((1, 2, 7, 6), {"kernel_shape": (3, 4), "strides": (2, 2), "pads": (0, 2, 1, 1)}),
    "ceil": ((2, 2, 7, 6), {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1}),
    "ceil-padded": (
        (1, 2, 8, 7),
        {"kernel_shape": (3, 3), "strides": (3, 2), "ceil_mode": 1, "pads": (1, 0, 1, 1)},
    ),
    "ceil-dropped": (
        (1, 1, 4, 4),
        {"kernel_shape": (1, 2), "strides": (2, 3), "ceil_mode": 1, "pads": (0, 1, 0, 1)},
    ),
    "same-upper": ((1, 2, 5, 8), {"kernel_shape": (2, 3), "strides": (2, 2), "auto_pad": "SAME_UPPER"}),
    "same-lower": ((1, 2, 5, 8), {"kernel_shape": (2, 3), "strides": (1, 2), "auto_pad": "SAME_LOWER"}),
    "valid": ((1, 2, 5, 8), {"kernel_shape": (2, 3), "strides": (2, 2), "auto_pad": "VALID"}),
    "3d": ((1, 2, 4, 5, 3), {"kernel_shape": (2, 3, 2), "strides": (2, 1, 1), "pads": (0, 1, 1, 1, 1, 0)}),
    "single": ((1, 1, 1, 1), {"kernel_shape": (1, 1)}),
}
DILATED: dict[str, tuple[Shape, dict[str, Any]]] = {
    "dilated": ((1, 2, 8, 9), {"kernel_shape": (2, 3), "dilations": (3, 2), "pads": (1, 2, 1, 2)}),
    "dilated-strided": ((2, 1, 9), {"kernel_shape": (3,), "dilations": (2,), "strides": (2,)}),
}
LARGE: dict[str, tuple[Shape, dict[str, Any]]] = {
    "lenet": ((8, 32, 24, 24), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "stem": ((2, 64, 16, 15), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "odd-channels": ((3, 13, 16, 15), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "large-ceil": ((3, 16, 16, 15), {"kernel_shape": (3, 2), "strides": (2, 2), "ceil_mode": 1}),
    "large-1d": ((3, 20, 33), {"kernel_shape": (3,), "strides": (3,)}),
    "large-3d": ((2, 16, 6, 7, 8), {"kernel_shape": (2, 2, 2), "strides": (2, 2, 2)}),
}
SMALL = {**CASES, **DILATED}
EVERY = {**SMALL, **LARGE}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", EVERY)
def test_max_pool_equals_its_definition(name: str, dtype: Any) -> None:
    shape, attributes = EVERY[name]
    x = uniform(*shape, dtype=dtype)
    y, indices = pool(x, attributes, "MaxPool")
    check_forward(Op("MaxPool", attributes), [x], [y], rtol=0)
    check_forward(Op("MaxPool", attributes, outputs=2), [x], [y, indices], rtol=0)


def test_max_pool_of_bytes_and_of_nan() -> None:
    attributes = CASES["overlapping"][1]
    for dtype in (np.int8, np.uint8):
        x = uniform(*CASES["overlapping"][0], low=0, high=99, dtype=dtype)
        check_forward(Op("MaxPool", attributes), [x], [pool(x, attributes, "MaxPool")[0]])
    x = uniform(1, 1, 4, 4)
    x[0, 0, 1, 2] = np.nan
    y = run(Op("MaxPool", {"kernel_shape": (2, 2), "strides": (2, 2)}), [x])[0]
    assert np.isnan(y[0, 0]).tolist() == [[False, True], [False, False]]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("points", [1, 15, 16, 17, 70])
def test_global_max_pool_of_any_length_and_of_nan(points: int, dtype: Any) -> None:
    x = uniform(3, points, points, dtype=dtype)[:, :, None] - 5
    at = np.arange(points)
    x[0, at, 0, at] = 7  # the largest value at each place
    x[1, at, 0, at] = np.nan
    x[2, at, 0, at] = -np.inf
    expected = x.max(axis=(2, 3), keepdims=True)
    np.testing.assert_array_equal(run(Op("GlobalMaxPool"), [x])[0], expected)


def test_indices_in_column_major_order() -> None:
    attributes = {"kernel_shape": (2, 3), "strides": (2, 2)}
    x = uniform(2, 3, 6, 7)
    y, indices = pool(x, attributes, "MaxPool")
    plane, row, column = indices // 42, indices % 42 // 7, indices % 7
    expected = plane * 42 + column * 6 + row
    check_forward(Op("MaxPool", {**attributes, "storage_order": 1}, outputs=2), [x], [y, expected], rtol=0)


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", EVERY)
def test_average_pool_equals_its_definition(name: str, dtype: Any, count_include_pad: int) -> None:
    shape, attributes = EVERY[name]
    attributes = {**attributes, "count_include_pad": count_include_pad}
    x = uniform(*shape, dtype=dtype)
    op = Op("AveragePool", attributes, opset=19)
    check_forward(
        op, [x], [pool(x, attributes, "AveragePool")[0]], rtol=1e-5 if dtype == np.float32 else None
    )


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool", "GlobalAveragePool"])
def test_pools_of_constants_are_computed_beforehand(kind: str) -> None:
    shape, attributes = LARGE["lenet"]
    op, x = Op(kind, {} if kind.startswith("Global") else attributes), uniform(*shape, dtype=np.float32)
    np.testing.assert_allclose(run(op, [x], (0,))[0], run(op, [x])[0], 1e-5, 1e-6)


@pytest.mark.parametrize("name", SMALL)
def test_gradient_of_max_pool(name: str) -> None:
    shape, attributes = SMALL[name]
    check_gradient(Op("MaxPool", attributes), [apart(*shape)])


@pytest.mark.parametrize("count_include_pad", [0, 1])
@pytest.mark.parametrize("name", SMALL)
def test_gradient_of_average_pool(name: str, count_include_pad: int) -> None:
    shape, attributes = SMALL[name]
    op = Op("AveragePool", {**attributes, "count_include_pad": count_include_pad}, opset=19)
    check_gradient(op, [uniform(*shape)])


def pooled_loss(
    op: Op, x: Array, spatial: tuple[int | str, ...] | None = None
) -> tuple[bytes, dict[str, Array]]:
    """The gradient model of sum(weight * pool(x)); `spatial` are the dimensions that the model declares for x."""
    weight = uniform(*pool(np.zeros(x.shape), dict(op.attributes), op.type)[0].shape, dtype=x.dtype, seed=5)
    nodes = [
        helper.make_node(op.type, ["x"], ["y"], **op.attributes),
        helper.make_node("Mul", ["y", "weight"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
    ]
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "pooled",
        [helper.make_tensor_value_info("x", dtype, (*x.shape[:2], *(spatial or x.shape[2:])))],
        [helper.make_tensor_value_info("loss", dtype, ())],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", op.opset)], ir_version=8)
    return gradient_model(model.SerializeToString(), ["x"], "loss"), {"x": x}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_float_gradients_agree_with_double(kind: str, name: str) -> None:
    shape, attributes = EVERY[name]
    op, x = Op(kind, attributes, opset=19), apart(*shape, scale=1e-2)
    expected = run_model(*pooled_loss(op, x))["x_grad"]
    found = run_model(*pooled_loss(op, x.astype(np.float32)))["x_grad"]
    np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["odd-remainder", "ceil", "asymmetric"])
def test_gradient_of_max_pool_over_sizes_known_while_running(name: str) -> None:
    shape, attributes = CASES[name]
    op, x = Op("MaxPool", attributes, opset=17), apart(*shape)
    expected = run_model(*pooled_loss(op, x))["x_grad"]
    symbols = tuple(f"d{i}" for i in range(len(shape) - 2))
    np.testing.assert_array_equal(run_model(*pooled_loss(op, x, symbols))["x_grad"], expected)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 1, 1, 1), (2, 16, 7, 7), (3, 5, 6), (2, 3, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_global_pools_equal_numpy(shape: Shape, dtype: Any) -> None:
    x = uniform(*shape, dtype=dtype)
    axes = tuple(range(2, len(shape)))
    check_forward(Op("GlobalAveragePool"), [x], [x.mean(axes, keepdims=True)], rtol=1e-6)
    check_forward(Op("GlobalMaxPool"), [x], [x.max(axes, keepdims=True)], rtol=0)
    if dtype == np.float64 and x.size < 200:
        check_gradient(Op("GlobalAveragePool"), [x])
        check_gradient(Op("GlobalMaxPool"), [apart(*shape)])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_empty_batch_is_pooled_to_an_empty_result(dtype: Any) -> None:
    x = np.zeros((0, 3, 6, 6), dtype)
    attributes = {"kernel_shape": (2, 2), "strides": (2, 2)}
    assert run(Op("MaxPool", attributes), [x])[0].shape == (0, 3, 3, 3)
    assert run(Op("AveragePool", attributes), [x])[0].shape == (0, 3, 3, 3)
    assert run(Op("GlobalAveragePool"), [x])[0].shape == (0, 3, 1, 1)
    assert run(Op("GlobalMaxPool"), [x])[0].shape == (0, 3, 1, 1)


@pytest.mark.parametrize("channels", [3, 16, 20])
@pytest.mark.parametrize("pooling", ["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"])
def test_pools_between_convolutions_keep_their_values(pooling: str, channels: int) -> None:
    """Values in the layouts that convolutions produce, forward and backward, compared with the same in double."""
    attributes: dict[str, Any] = {}
    if not pooling.startswith("Global"):
        attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x, w = uniform(4, channels, 9, 8), uniform(channels, channels, 3, 3, seed=1)
    v = uniform(channels, channels, 1, 1, seed=2)

    def results(dtype: Any) -> list[Array]:
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node(pooling, ["a"], ["b"], **attributes),
            helper.make_node("Conv", ["b", "v"], ["c"]),
            helper.make_node("Mul", ["c", "c"], ["d"]),
            helper.make_node("ReduceSum", ["d"], ["loss"], keepdims=0),
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        feeds = {"x": x.astype(dtype), "w": w.astype(dtype), "v": v.astype(dtype)}
        values = [helper.make_tensor_value_info(name, kind, value.shape) for name, value in feeds.items()]
        graph = helper.make_graph(nodes, "net", values, [helper.make_tensor_value_info("loss", kind, ())])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        computed = run_model(gradient_model(model.SerializeToString(), list(feeds), "loss"), feeds)
        return [computed[name] for name in ("loss", "x_grad", "w_grad", "v_grad")]

    for found, expected in itertools.zip_longest(results(np.float32), results(np.float64)):
        np.testing.assert_allclose(found, expected, 0, 2e-5 * np.abs(expected).max())


def test_pools_that_do_not_fit_are_rejected() -> None:
    x = uniform(2, 3, 5, 5)
    check_rejected(Op("MaxPool", {"kernel_shape": (6, 2)}), [x], "spans 6 elements does not fit axis 2")
    check_rejected(Op("MaxPool", {"kernel_shape": (2,)}), [x], "kernel_shape must have 2 values")
    check_rejected(Op("MaxPool"), [x], "kernel_shape is required")
    check_rejected(
        Op("MaxPool", {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}), [x], "must be smaller than the window"
    )
    check_rejected(
        Op("AveragePool", {"kernel_shape": (2, 2), "strides": (1, 0)}), [x], "strides must be at least 1"
    )
    check_rejected(Op("AveragePool", {"kernel_shape": (2, 2)}), [x.astype(np.int64)], "int64")
    check_rejected(Op("GlobalAveragePool"), [uniform(2, 3)], r"\[N, C, D1, ...\], found \[2, 3\]")
    check_rejected(Op("GlobalMaxPool"), [uniform(2, 3, 0)], "without elements")
    halves = {"kernel_shape": (2, 2), "strides": (2, 2)}
    dy = uniform(1, 1, 2, 2)
    check_rejected(Op("AveragePoolGrad", halves), [dy], "4 and 5 both yield the 2 windows")
    whole = {"kernel_shape": (2, 2)}
    check_rejected(Op("MaxPoolGrad", whole), [dy, np.zeros((1, 1, 2, 1), np.int64)], "shape of dY")
    check_rejected(
        Op("MaxPoolGrad", whole),
        [dy, np.full((1, 1, 2, 2), 9)],
        "same channel of the input, which has 9 elements",
    )
