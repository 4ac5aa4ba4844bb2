"""Operators of com.microsoft on quantized tensors, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, gradient_model, run, run_model
from onnx import TensorProto, helper, numpy_helper
from quantized_cases import by_onnxruntime, check_quantized, codes, f32, scale


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm_of_quantized_weights(direction: str, by_column: bool, dtype: Any) -> None:
    d, hidden, inputs = (2 if direction == "bidirectional" else 1), 4, 3
    x, bias = f32(5, 2, inputs), f32(d, 8 * hidden, seed=1)
    w, r = codes(d, inputs, 4 * hidden, dtype=dtype), codes(d, hidden, 4 * hidden, dtype=dtype, seed=1)
    dims = (d, 4 * hidden) if by_column else (d,)
    scales = [f32(*dims, seed=seed, low=0.002, high=0.006) for seed in (2, 3)]
    zeros = [np.full(dims, zero, dtype) for zero in (0, 0)]
    attributes = {"hidden_size": hidden, "direction": direction}
    op = Op("DynamicQuantizeLSTM", attributes, MICROSOFT, outputs=3)
    given = [x, w, r, bias, None, None, None, None, scales[0], zeros[0], scales[1], zeros[1]]
    found = run(op, given, constants={1, 2, 8, 9, 10, 11})

    # The same with floats, exactly, and onnxruntime, which also quantizes the hidden state.
    lows, highs = min(x.min(), 0), max(x.max(), 0)
    step = (highs - lows) / 255
    rounded = ((np.round(x / step) + np.round(-lows / step)).clip(0, 255) - np.round(-lows / step)) * step
    floats = [
        (value * scale.reshape(d, 1, -1)).transpose(0, 2, 1).astype(np.float32)
        for value, scale in zip((w.astype(np.float32), r.astype(np.float32)), scales, strict=True)
    ]
    exact = run(Op("LSTM", attributes, outputs=3), [rounded.astype(np.float32), *floats, bias])
    for value, expected, close in zip(found, exact, by_onnxruntime(op, given), strict=True):
        np.testing.assert_allclose(value, expected, 1e-4, 1e-5)
        np.testing.assert_allclose(value, close, 0, 0.02)


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("constants", [(), (1, 2, 8, 9, 10, 11)])
def test_lstm_of_quantized_weights_with_states_and_zero_points(
    by_column: bool, constants: tuple[int, ...]
) -> None:
    """The hidden state keeps its precision: as with float weights, which onnxruntime computes."""
    d, hidden, inputs, steps, batch = 2, 37, 9, 6, 3
    w, r = codes(d, inputs, 4 * hidden), codes(d, hidden, 4 * hidden, dtype=np.int8, seed=1)
    dims = (d, 4 * hidden) if by_column else (d,)
    scales = [f32(*dims, seed=seed, low=0.001, high=0.003) for seed in (2, 3)]
    zeros = [codes(*dims, seed=4), codes(*dims, dtype=np.int8, seed=5)]
    h, c = f32(d, batch, hidden, seed=6), f32(d, batch, hidden, seed=7)
    x = np.round(f32(steps, batch, inputs, seed=8) * 127).astype(np.float32) / np.float32(255)
    x[0, 0, :2] = -1 / 3, 2 / 3  # the range, of 255 steps
    x = np.round(x * 255) / np.float32(255)
    x = x.clip(-85 / np.float32(255), 170 / np.float32(255)).astype(np.float32)
    rest = [f32(d, 8 * hidden, seed=9), np.array([6, 4, 1], np.int32), h, c, f32(d, 3 * hidden, seed=10)]
    floats = [
        ((value.astype(np.float64) - zero.reshape(d, 1, -1)) * scale.reshape(d, 1, -1))
        .transpose(0, 2, 1)
        .astype(np.float32)
        for value, scale, zero in zip((w, r), scales, zeros, strict=True)
    ]
    attributes = {"hidden_size": hidden, "direction": "bidirectional"}
    exact = by_onnxruntime(Op("LSTM", attributes, outputs=3), [x, *floats, *rest])
    given = [x, w, r, *rest, scales[0], zeros[0], scales[1], zeros[1]]
    found = run(Op("DynamicQuantizeLSTM", attributes, MICROSOFT, outputs=3), given, constants)
    for value, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(value, expected, 2e-5, 2e-5)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_lstm_of_quantized_weights_does_not_hide_states_that_are_not_finite(value: float) -> None:
    w, r = codes(1, 2, 12, dtype=np.int8), codes(1, 3, 12, dtype=np.int8, seed=1)
    scale, zero = f32(1, low=0.01), np.zeros(1, np.int8)
    h = f32(1, 2, 3)
    h[0, 1, 2] = value
    given = [f32(1, 2, 2), w, r, None, None, h, None, None, scale, zero, scale, zero]
    op = Op("DynamicQuantizeLSTM", {"hidden_size": 3}, MICROSOFT, outputs=3)
    last = run(op, given)[1][0]
    assert np.isfinite(last[0]).all()
    assert np.isnan(last[1]).all()
