"""Quantized operators of com.microsoft against stock onnxruntime, and gradients through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    make_model,
    run,
    run_model,
    uniform,
)
from onnx import TensorProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime")


def f32(*shape: int, seed: int = 0, low: float = -1, high: float = 1) -> Array:
    return uniform(*shape, dtype=np.float32, seed=seed, low=low, high=high)


def codes(*shape: int, dtype: Any = np.uint8, seed: int = 0) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max + 1, shape).astype(dtype)


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


# Integers in, integers out.


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul"])
def test_binary(kind: str, dtype: Any) -> None:
    zero = [np.array(z, dtype) for z in (100, 90, 70)]
    for a, b in [((3, 40), (3, 40)), ((3, 40), (40,)), ((3, 1), (1, 40))]:
        x, y = codes(*a, dtype=dtype), codes(*b, dtype=dtype, seed=1)
        inputs = [x, scale(0.02), zero[0], y, scale(0.03), zero[1], scale(0.05), zero[2]]
        check_quantized(Op(kind, {}, MICROSOFT), inputs)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_unary(dtype: Any) -> None:
    x = codes(3, 50, dtype=dtype)
    parameters = [scale(0.04), np.array(20, dtype), scale(1 / 256), np.array(0, dtype)]
    check_quantized(Op("QLinearSigmoid", {}, MICROSOFT), [x, *parameters])
    parameters[2:] = [scale(0.05), np.array(9, dtype)]
    check_quantized(Op("QLinearLeakyRelu", {"alpha": 0.2}, MICROSOFT), [x, *parameters])


@pytest.mark.parametrize(("opset", "axis"), [(13, -1), (13, 1), (11, 1), (11, 2)])
@pytest.mark.parametrize("model_opset", [12, 17])
def test_softmax(opset: int, axis: int, model_opset: int) -> None:
    inputs = [codes(2, 3, 4), scale(0.03), np.array(3, np.uint8), scale(1 / 256), np.array(0, np.uint8)]
    check_quantized(Op("QLinearSoftmax", {"opset": opset, "axis": axis}, MICROSOFT, model_opset), inputs)


def test_where_and_concat() -> None:
    condition = np.random.default_rng(1).integers(0, 2, (3, 1)).astype(bool)
    z = [np.array(v, np.uint8) for v in (100, 120, 90)]
    x, y = codes(3, 30), codes(3, 30, seed=1)
    check_quantized(
        Op("QLinearWhere", {}, MICROSOFT),
        [condition, x, scale(0.02), z[0], y, scale(0.03), z[1], scale(0.04), z[2]],
    )
    check_quantized(
        Op("QLinearConcat", {"axis": 1}, MICROSOFT),
        [scale(0.03), z[2], x, scale(0.02), z[0], y, scale(0.03), z[1]],
    )


@pytest.mark.parametrize("last", [0, 1])
def test_pools(last: int) -> None:
    x = codes(2, 6, 6, 3) if last else codes(2, 3, 6, 6)
    parameters = [scale(0.1), np.array(30, np.uint8), scale(0.08), np.array(40, np.uint8)]
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 0, 0], "channels_last": last}
    check_quantized(Op("QLinearAveragePool", attributes, MICROSOFT), [x, *parameters])
    check_quantized(Op("QLinearGlobalAveragePool", {"channels_last": last}, MICROSOFT), [x, *parameters])


def test_reduce_mean() -> None:
    x = codes(2, 3, 40)
    op = Op("QLinearReduceMean", {"axes": [-1], "keepdims": 0}, MICROSOFT)
    mean = ((x.astype(np.float64) - 30) * 0.1).mean(-1)
    expected = np.clip(np.rint(mean / 0.08) + 40, 0, 255).astype(np.uint8)
    check_forward(
        op, [x, scale(0.1), np.array(30, np.uint8), scale(0.08), np.array(40, np.uint8)], [expected]
    )


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_conv(last: int, per_channel: bool, biased: bool) -> None:
    x = codes(2, 7, 6, 4) if last else codes(2, 4, 7, 6)
    w = codes(6, 2, 3, 3, dtype=np.int8, seed=1)
    w_scale = f32(6, low=0.001, high=0.003) if per_channel else scale(0.002)
    w_zero = np.zeros(6, np.int8) if per_channel else np.array(0, np.int8)
    bias = [codes(6, dtype=np.int16, seed=2).astype(np.int32)] if biased else []
    inputs = [
        x,
        scale(0.1),
        np.array(30, np.uint8),
        w,
        w_scale,
        w_zero,
        scale(0.3),
        np.array(128, np.uint8),
        *bias,
    ]
    attributes = {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 1], "channels_last": last}
    check_quantized(Op("QLinearConv", attributes, MICROSOFT), inputs)


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
def test_gemm(trans_b: int, per_column: bool) -> None:
    a, b = codes(5, 8), codes(*((6, 8) if trans_b else (8, 6)), dtype=np.int8, seed=1)
    b_scale = f32(6, low=0.001, high=0.003) if per_column else scale(0.002)
    b_zero = np.zeros(6, np.int8) if per_column else np.array(0, np.int8)
    c = codes(6, dtype=np.int16, seed=2).astype(np.int32)
    attributes = {"transB": trans_b, "alpha": 0.5}
    inputs = [a, scale(0.05), np.array(3, np.uint8), b, b_scale, b_zero, c]
    check_quantized(Op("QGemm", attributes, MICROSOFT), [*inputs, scale(0.02), np.array(9, np.uint8)])
    op = Op("QGemm", attributes, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-5)


# Floats on one side.


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_quantize_and_dequantize(dtype: Any, axis: int | None) -> None:
    x = f32(4, 30)
    shape = () if axis is None else (x.shape[axis],)
    s, z = f32(*shape, low=0.004, high=0.009), codes(*shape, dtype=dtype) // 4
    attributes = {} if axis is None else {"axis": axis}
    check_quantized(Op("QuantizeLinear", attributes, MICROSOFT), [x, np.asarray(s), np.asarray(z, dtype)])
    inputs = [codes(4, 30, dtype=dtype), np.asarray(s), np.asarray(z, dtype)]
    op = Op("DequantizeLinear", attributes, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-6)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("biased", [False, True])
def test_matmul_integer_to_float(per_column: bool, dtype: Any, biased: bool) -> None:
    b_scale, b_zero = (
        (f32(6, low=0.01), codes(6, dtype=dtype)) if per_column else (scale(0.02), np.array(7, dtype))
    )
    inputs = [codes(2, 5, 8), codes(8, 6, dtype=dtype), scale(0.1), b_scale, np.array(3, np.uint8), b_zero]
    op = Op("MatMulIntegerToFloat", {}, MICROSOFT)
    inputs += [f32(6, seed=4)] if biased else []
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-5)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_dynamic_quantize_matmul(per_column: bool, zero: bool, biased: bool) -> None:
    b_scale = f32(6, low=0.01) if per_column else scale(0.02)
    b_zero = None if not zero else codes(6, dtype=np.int8) if per_column else np.array(7, np.int8)
    inputs = [f32(2, 5, 8), codes(8, 6, dtype=np.int8), b_scale, b_zero, f32(6, seed=4) if biased else None]
    op = Op("DynamicQuantizeMatMul", {}, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-5)


def test_a_long_product_is_summed_in_integers() -> None:
    """The sum does not fit in the 24 bits of a float, and must not lose precision before it is scaled."""
    length = 1024
    a = np.full((1, length), 255, np.uint8)
    b = np.full((length, 2), 127, np.int8)
    b[:, 1] = -128
    a[0, -1] = 254
    one = np.float32(1)
    op = Op("MatMulIntegerToFloat", {}, MICROSOFT)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert np.abs(exact).min() > 2**24
    inputs = [a, b, np.asarray(one), np.asarray(one), np.array(0, np.uint8), np.array(0, np.int8)]
    np.testing.assert_array_equal(run(op, inputs)[0], exact.astype(np.float32))


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


def test_dynamic_quantize_matmul_passes_gradients_to_its_activations() -> None:
    a, b, s, weight = f32(5, 8), codes(8, 6, dtype=np.int8), scale(0.02), f32(5, 6, seed=3)
    found = straight_through(Op("DynamicQuantizeMatMul", {}, MICROSOFT), [a, b, s], 0, weight)
    np.testing.assert_allclose(found, weight @ (b * 0.02).T.astype(np.float32), 1e-5, 1e-6)


def test_a_quantized_chain_passes_gradients_straight_through() -> None:
    """x → QuantizeLinear → QLinearAdd with a constant → QLinearSigmoid → DequantizeLinear."""
    x = f32(4, 10)
    zero = numpy_helper.from_array(np.array(128, np.uint8), "z")
    step = numpy_helper.from_array(scale(0.01), "s")
    fine = numpy_helper.from_array(scale(1 / 256), "t")
    nil = numpy_helper.from_array(np.array(0, np.uint8), "n")
    other = numpy_helper.from_array(codes(10), "c")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], domain=MICROSOFT),
        helper.make_node("QLinearAdd", ["q", "s", "z", "c", "s", "z", "s", "z"], ["a"], domain=MICROSOFT),
        helper.make_node("QLinearSigmoid", ["a", "s", "z", "t", "n"], ["g"], domain=MICROSOFT),
        helper.make_node("DequantizeLinear", ["g", "t", "n"], ["y"], domain=MICROSOFT),
        helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes, "chain", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 10])],
        [
            helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
            helper.make_tensor_value_info("a", TensorProto.UINT8, [4, 10]),
        ],
        [zero, step, fine, nil, other],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    found = run_model(gradient_model(model.SerializeToString(), ["x"], "loss"), {"x": x})
    sigmoid = 1 / (1 + np.exp(-(found["a"].astype(np.float32) - 128) * 0.01))
    quantized = np.rint(x / np.float32(0.01)) + 128
    total = np.clip(quantized, 0, 255) - 128 + codes(10).astype(np.float32)
    inside = (quantized >= 0) & (quantized <= 255) & (total >= 0) & (total <= 255)
    np.testing.assert_allclose(found["x_grad"], sigmoid * (1 - sigmoid) * inside, 1e-5, 1e-6)


@pytest.mark.parametrize("segments", [False, True])
def test_embed_layer_normalization(segments: bool) -> None:
    random = np.random.default_rng(1)
    ids = random.integers(0, 9, (2, 5)).astype(np.int32)
    tables = [
        codes(9, 8),
        codes(7, 8, seed=1),
        codes(2, 8, seed=2) if segments else None,
        codes(8),
        codes(8, seed=3),
    ]
    scales = [scale(0.01 + 0.001 * i) if table is not None else None for i, table in enumerate(tables)]
    zeros = [np.array(100 + i, np.uint8) if table is not None else None for i, table in enumerate(tables)]
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32)
    kinds = random.integers(0, 2, (2, 5)).astype(np.int32) if segments else None
    op = Op("QEmbedLayerNormalization", {"epsilon": 1e-5}, MICROSOFT, outputs=2)
    inputs = [ids, kinds, *tables, mask, *scales, *zeros]
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-5)


# Packed weights.


def unpacked(packed: Array, bits: int) -> Array:
    """The codes along the last axis."""
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    return np.stack([(packed >> (bits * i)) & mask for i in range(per_byte)], -1).reshape(
        *packed.shape[:-1], -1
    )


def weights_of(
    packed: Array, scales: Array, zeros: Array | None, groups: Array | None, bits: int, k: int
) -> Array:
    n, blocks, _ = packed.shape
    value = unpacked(packed, bits).reshape(n, -1)[:, :k].astype(np.float64)
    place = np.repeat(np.arange(blocks), value.shape[1] // blocks + 1)[:k] if groups is None else groups[:k]
    if groups is None:
        place = np.arange(k) // (packed.shape[2] * 8 // bits)
    if zeros is None:
        zero = np.full((n, blocks), float(1 << (bits - 1)))
    elif zeros.dtype == np.uint8:
        zero = unpacked(zeros.reshape(n, -1), bits)[:, :blocks].astype(np.float64)
    else:
        zero = zeros.reshape(n, blocks).astype(np.float64)
    return (value - zero[:, place]) * scales.reshape(n, blocks).astype(np.float64)[:, place]


def packed_inputs(
    n: int, k: int, block: int, bits: int, zeros: str, dtype: Any = np.float32
) -> list[Array | None]:
    blocks = -(-k // block)
    packed = codes(n, blocks, block * bits // 8, seed=bits)
    scales = uniform(n, blocks, dtype=dtype, seed=1, low=0.01, high=0.1)
    zero: Array | None = None
    if zeros == "packed":
        zero = codes(n, -(-blocks * bits // 8), seed=2)
    elif zeros == "float":
        zero = uniform(n, blocks, dtype=dtype, seed=3, low=0, high=1 << bits)
    return [packed, scales, zero]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(("lead", "n", "k"), [((3,), 6, 40), ((2, 3), 130, 128), ((1,), 65, 17)], ids=str)
def test_matmul_nbits(lead: tuple[int, ...], n: int, k: int, bits: int, block: int, zeros: str) -> None:
    a = f32(*lead, k)
    packed, scales, zero = packed_inputs(n, k, block, bits, zeros)
    assert packed is not None
    assert scales is not None
    op = Op("MatMulNBits", {"N": n, "K": k, "bits": bits, "block_size": block}, MICROSOFT)
    w = weights_of(packed, scales, zero, None, bits, k)
    check_forward(op, [a, packed, scales, zero], [(a @ w.T).astype(np.float32)], rtol=2e-5)
    if not (bits == 8 and zeros == "float"):  # which onnxruntime does not run
        inputs: list[Array | None] = [a, packed, scales.ravel(), None if zero is None else zero.ravel()]
        check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-3)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("grouped", [False, True])
def test_matmul_nbits_gradient(bits: int, grouped: bool) -> None:
    n, k, block = 70, 40, 16
    packed, scales, zero = packed_inputs(n, k, block, bits, "packed", np.float64)
    assert packed is not None
    assert scales is not None
    groups = np.random.default_rng(1).integers(0, 3, k).astype(np.int32) if grouped else None
    a, bias = uniform(3, k), uniform(n, seed=5)
    op = Op("MatMulNBits", {"N": n, "K": k, "bits": bits, "block_size": block}, MICROSOFT)
    inputs = [a, packed, scales, zero, groups, bias]
    w = weights_of(packed, scales, zero, groups, bits, k)
    check_forward(op, inputs, [a @ w.T + bias], rtol=1e-11)
    check_gradient(op, inputs, wrt=[0, 5])
    back = Op("MatMulNBitsGrad", op.attributes, MICROSOFT)
    dy = uniform(2, 3, n)
    check_forward(back, [dy, *inputs[1:5]], [dy @ w], rtol=1e-11)
    check_gradient(back, [uniform(1, n), *inputs[1:5]], wrt=[0])


@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_in_half_precision(bits: int) -> None:
    packed, scales, zero = packed_inputs(6, 40, 16, bits, "packed")
    assert packed is not None
    assert scales is not None
    scales = scales.astype(np.float16)
    a = f32(3, 40).astype(np.float16)
    op = Op("MatMulNBits", {"N": 6, "K": 40, "bits": bits, "block_size": 16}, MICROSOFT)
    expected = a.astype(np.float64) @ weights_of(packed, scales, zero, None, bits, 40).T
    [found] = run(op, [a, packed, scales, zero])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, 2e-3, 2e-3 * np.abs(expected).max())


def test_matmul_nbits_refuses_what_does_not_fit() -> None:
    op = Op("MatMulNBits", {"N": 6, "K": 40, "bits": 4, "block_size": 16}, MICROSOFT)
    packed, scales, zero = packed_inputs(6, 40, 16, 4, "packed")
    a = f32(3, 40)
    check_rejected(op, [f32(3, 41), packed, scales, zero], "last axis of A must have size 40")
    check_rejected(op, [a, packed[:5], scales, zero], "the weights must hold 144")
    check_rejected(op, [a, packed, scales[:5], zero], "scales must hold 18")
    check_rejected(op, [a, packed, scales, zero[:5]], "zero_points must hold 12")
    check_rejected(op, [a, packed, scales.astype(np.float64), zero], "type of A")
    odd = Op("MatMulNBits", {"N": 6, "K": 40, "bits": 3, "block_size": 16}, MICROSOFT)
    check_rejected(odd, [a, packed, scales, zero], "bits must be 2, 4 or 8")
    groups = np.full(40, 3, np.int32)
    with pytest.raises(RuntimeError, match=r"under_test.*3"):
        run(op, [a, packed, scales, zero, groups])


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind: int) -> None:
    n, k = 5, 32
    packed, largest = codes(n * k // 2), f32(n * k // 16, low=0.1, seed=1)
    attributes = {"N": n, "K": k, "block_size": 16, "quant_type": kind}
    op = Op("MatMulBnb4", attributes, MICROSOFT)
    inputs = [f32(3, k), packed, largest]
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-5)
    wide = [uniform(3, k), packed, largest.astype(np.float64)]
    check_gradient(op, wide, wrt=[0])
    w = run(op, [np.eye(k), *wide[1:]])[0].T
    back = Op("MatMulBnb4", attributes | {"transB": 0}, MICROSOFT)
    dy = uniform(3, n)
    check_forward(back, [dy, *wide[1:]], [dy @ w], rtol=1e-12)
    check_gradient(back, [dy, *wide[1:]], wrt=[0])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_block_quantized(bits: int, zeros: bool, dtype: Any) -> None:
    table = codes(5, 64 * bits // 8)
    zero = codes(5, -(-2 * bits // 8), seed=1) if zeros else None
    inputs = [table, np.array([[1, 4], [0, -1]], dtype), f32(5, 2, low=0.01, seed=2), zero]
    op = Op("GatherBlockQuantized", {"bits": bits, "block_size": 32, "quantize_axis": 1}, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-6)
    with pytest.raises(RuntimeError, match=r"under_test.*5"):
        run(op, [table, np.array([5], dtype), *inputs[2:]])
