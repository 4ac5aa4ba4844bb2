"""Quantization against its formula, written with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_rejected, gradient_model, run_model, uniform
from onnx import TensorProto, helper, numpy_helper

SPECIAL_POINTS = {"not in PyTorch": ["DequantizeLinear", "QuantizeLinear", "com.microsoft.FakeQuant"]}

TYPES = [np.uint8, np.int8, np.uint16, np.int16]


def spread(shape: tuple[int, ...], like: Array, axis: int, block: int) -> Array:
    """Scales or zero points as an array of the shape of x."""
    if block:
        return np.repeat(like, block, axis)[tuple(slice(0, n) for n in shape)]
    if like.size == 1:
        return np.broadcast_to(like.reshape(()), shape)
    return np.broadcast_to(
        like.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))]), shape
    )


def quantized(
    x: Array, scale: Array, zero: Array | None, axis: int = 1, block: int = 0, dtype: Any = np.uint8
) -> Array:
    s = spread(x.shape, scale, axis, block)
    z: Any = 0 if zero is None else spread(x.shape, zero, axis, block).astype(np.int64)
    info = np.iinfo(dtype if zero is None else zero.dtype)
    return np.clip(np.rint((x / s).astype(s.dtype)) + z, info.min, info.max).astype(info.dtype)


def dequantized(q: Array, scale: Array, zero: Array | None, axis: int = 1, block: int = 0) -> Array:
    z = 0 if zero is None else spread(q.shape, zero, axis, block).astype(np.int64)
    return ((q.astype(np.int64) - z) * spread(q.shape, scale, axis, block)).astype(scale.dtype)


LAYOUTS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]] = [
    ((2, 3, 4), (), {}),
    ((5,), (1,), {}),
    ((), (), {}),
    ((0, 3), (), {}),
    ((3, 5001), (), {}),
    ((2, 3, 4), (3,), {}),
    ((2, 3, 4), (2,), {"axis": 0}),
    ((2, 3, 4), (4,), {"axis": -1}),
    ((2, 0, 4), (0,), {}),
    ((2, 6, 4), (2, 3, 4), {"axis": 1, "block_size": 2}),
    ((2, 5, 4), (2, 2, 4), {"axis": -2, "block_size": 3}),
    ((7,), (2,), {"axis": 0, "block_size": 4}),
]


def parameters(shape: tuple[int, ...], dtype: Any, scale_dtype: Any) -> tuple[Array, Array]:
    scale = np.abs(uniform(*shape, low=0.005, high=0.05, dtype=scale_dtype, seed=3))
    info = np.iinfo(dtype)
    zero = np.random.default_rng(5).integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    return scale, np.asarray(zero, dtype)


@pytest.mark.parametrize("scale_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "scales", "attributes"), LAYOUTS)
def test_to_integers_and_back(
    shape: tuple[int, ...], scales: tuple[int, ...], attributes: dict[str, int], dtype: Any, scale_dtype: Any
) -> None:
    scale, zero = parameters(scales, dtype, scale_dtype)
    x = uniform(*shape, low=-6, high=6, dtype=scale_dtype)
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    q = quantized(x, scale, zero, axis, block)
    check_forward(Op("QuantizeLinear", attributes, opset=21), [x, scale, zero], [q])
    back = dequantized(q, scale, zero, axis, block)
    check_forward(Op("DequantizeLinear", attributes, opset=21), [q, scale, zero], [back])
    if dtype == np.uint8:
        q = quantized(x, scale, None, axis, block)
        check_forward(Op("QuantizeLinear", attributes, opset=21), [x, scale], [q])
        check_forward(
            Op("DequantizeLinear", attributes, opset=21),
            [q, scale],
            [dequantized(q, scale, None, axis, block)],
        )


def test_halves_go_to_even_and_the_range_is_kept() -> None:
    x = np.array(
        [-0.5, 0.5, 1.5, 2.5, -1.5, 1e9, -1e9, np.inf, -np.inf, 126.5, 127.5, 254.5, 255.5], np.float32
    )
    for dtype in TYPES:
        zero = np.array(0, dtype)
        check_forward(
            Op("QuantizeLinear"), [x, np.float32(1), zero], [quantized(x, np.array(1, np.float32), zero)]
        )


def test_integers_of_32_bits() -> None:
    x = np.array([-(2**31), -7, 0, 7, 2**31 - 1], np.int32)
    check_forward(Op("DequantizeLinear"), [x, np.float64(0.5)], [x * 0.5])
    scale = np.array(3, np.float32)
    check_forward(Op("QuantizeLinear"), [x, scale], [quantized(x.astype(np.float32), scale, None)])


@pytest.mark.parametrize("opset", [12, 13, 19, 21, 23, 25])
def test_versions(opset: int) -> None:
    x, scale, zero = uniform(2, 3, dtype=np.float32), np.array(0.01, np.float32), np.array(3, np.int8)
    q = quantized(x, scale, zero)
    check_forward(Op("QuantizeLinear", opset=opset), [x, scale, zero], [q])
    check_forward(Op("DequantizeLinear", opset=opset), [q, scale, zero], [dequantized(q, scale, zero)])


def test_the_type_of_the_result_may_be_stated() -> None:
    x, scale = uniform(2, 3, dtype=np.float32), np.array(0.01, np.float32)
    op = Op("QuantizeLinear", {"output_dtype": int(TensorProto.INT16)}, opset=21)
    check_forward(op, [x, scale], [quantized(x, scale, None, dtype=np.int16)])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "scales", "attributes"), [row for row in LAYOUTS if 0 not in row[0]])
def test_a_pair_passes_the_gradient_on_inside_the_range(
    shape: tuple[int, ...], scales: tuple[int, ...], attributes: dict[str, int], dtype: Any
) -> None:
    scale, zero = parameters(scales, dtype, np.float64)
    x = uniform(*shape, low=-6, high=6)
    settings: dict[str, Any] = dict(attributes)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], **settings),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], **settings),
        helper.make_node("Mul", ["y", "w"], ["yw"]),
        helper.make_node("ReduceSum", ["yw"], ["loss"], keepdims=0),
    ]
    w = uniform(*shape, seed=9)
    graph = helper.make_graph(
        nodes,
        "pair",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, shape)],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (("s", scale), ("z", zero), ("w", w))],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    )
    found = run_model(gradient_model(model.SerializeToString(), ["x"], "loss"), {"x": x})["x_grad"]
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    q = np.rint(x / spread(shape, scale, axis, block)) + spread(shape, zero, axis, block).astype(np.int64)
    info = np.iinfo(dtype)
    np.testing.assert_array_equal(found, np.where((q >= info.min) & (q <= info.max), w, 0))


def test_dynamic_quantization() -> None:
    for x in (
        uniform(3, 4, low=-2, high=5, dtype=np.float32),
        uniform(7, low=1, high=5, dtype=np.float32),
        uniform(7, low=-5, high=-1, dtype=np.float32),
    ):
        check_forward(Op("DynamicQuantizeLinear", outputs=3), [x])
    zeros = np.zeros((2, 2), np.float32)
    wanted = [np.zeros((2, 2), np.uint8), np.array(1, np.float32), np.array(0, np.uint8)]
    check_forward(Op("DynamicQuantizeLinear", outputs=3), [zeros], wanted)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fake_quantization(dtype: Any) -> None:
    x = uniform(4, 5, low=-3, high=3, dtype=dtype)
    scale, zero = np.array(0.02, dtype), np.array(100, dtype)
    q = np.rint(x / scale + zero)
    wanted: list[Array] = [(np.clip(q, 0, 255) - zero) * scale, (q >= 0) & (q <= 255)]
    op = Op("FakeQuant", domain=MICROSOFT, outputs=2)
    check_forward(op, [x, scale, zero], wanted)
    narrow = Op("FakeQuant", {"quant_min": 64, "quant_max": 127}, MICROSOFT)
    check_forward(narrow, [x, scale, zero], [(np.clip(q, 64, 127) - zero) * scale])
    if dtype == np.float64:
        node = helper.make_node("FakeQuant", ["x", "s", "z"], ["y"], domain=MICROSOFT, name="fq")
        total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
        graph = helper.make_graph(
            [node, total],
            "fake",
            [helper.make_tensor_value_info("x", TensorProto.DOUBLE, x.shape)],
            [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
            [numpy_helper.from_array(scale, "s"), numpy_helper.from_array(zero, "z")],
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=imports)
        found = run_model(gradient_model(model.SerializeToString(), ["x"], "loss"), {"x": x})["x_grad"]
        np.testing.assert_array_equal(found, wanted[1].astype(np.float64))


def test_the_gradient_of_a_dequantized_constant_goes_nowhere() -> None:
    node = helper.make_node("DequantizeLinear", ["q", "s"], ["w"])
    product = helper.make_node("Mul", ["x", "w"], ["y"])
    total = helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)
    q = np.array([1, 2, 3], np.int8)
    graph = helper.make_graph(
        [node, product, total],
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3])],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(q, "q"), numpy_helper.from_array(np.array(0.5), "s")],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17), onnx.helper.make_opsetid(MICROSOFT, 1)]
    )
    found = run_model(gradient_model(model.SerializeToString(), ["x"], "loss"), {"x": np.ones(3)})["x_grad"]
    np.testing.assert_allclose(found, q * 0.5)


def test_bad_inputs_are_rejected() -> None:
    x, one = uniform(2, 3, dtype=np.float32), np.float32(1)
    op = Op("QuantizeLinear")
    check_rejected(op, [x, np.ones(2, np.float32)], "one for each of the 3 positions along axis 1")
    check_rejected(op, [x, np.float64(1)], "must have the same type before version 23")
    check_rejected(op, [x, one, np.zeros(3, np.uint8)], "must have the same shape")
    check_rejected(op, [x, one, np.int32(0)], "cannot quantize to int32")
    check_rejected(Op("QuantizeLinear", {"axis": 2}), [x, np.ones(3, np.float32)], "axis")
    check_rejected(
        Op("QuantizeLinear", {"block_size": 2}, opset=21), [x, np.ones(3, np.float32)], "must have shape"
    )
    check_rejected(
        Op("QuantizeLinear", opset=12),
        [x, np.ones(3, np.float32)],
        "before version 13 the scale must be a single value",
    )
    check_rejected(
        Op("DequantizeLinear"), [np.zeros(3, np.uint8), one, np.int8(0)], "must have the same type"
    )


def model_of_unknown_rank(*nodes: onnx.NodeProto) -> bytes:
    """A model from ``x``, for which only the type is declared, to ``loss``."""
    graph = helper.make_graph(
        nodes,
        "unknown",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])],
        [
            numpy_helper.from_array(np.array(0.1, np.float32), "scale"),
            numpy_helper.from_array(np.array(3, np.int8), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("attributes", "inputs", "low", "high"),
    [
        ({}, ["r", "scale"], 0, 255),
        ({}, ["r", "scale", "zero"], -131, 124),
        ({"output_dtype": onnx.TensorProto.INT8}, ["r", "scale"], -128, 127),
    ],
)
def test_the_gradient_knows_the_quantized_type_where_no_rank_is_known(
    attributes: dict[str, int], inputs: list[str], low: int, high: int
) -> None:
    model = model_of_unknown_rank(
        helper.make_node("Mul", ["x", "x"], ["r"]),
        helper.make_node("QuantizeLinear", inputs, ["q"], **attributes),
        helper.make_node("DequantizeLinear", ["q", *inputs[1:]], ["d"]),
        helper.make_node("ReduceSum", ["d"], ["loss"], keepdims=0),
    )
    x = np.array([[0.5, -2.0, 3.4, 4.9], [5.2, -5.2, 1.0, 0.0]], np.float32)
    found = run_model(gradient_model(model, ["x"], "loss"), {"x": x})["x_grad"]
    steps = np.rint(x * x / np.float32(0.1))
    np.testing.assert_allclose(found, np.where((steps >= low) & (steps <= high), 2 * x, 0), rtol=1e-6)
