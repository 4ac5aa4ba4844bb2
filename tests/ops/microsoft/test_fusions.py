"""Fused operators of com.microsoft against stock onnxruntime, or formulas if it has no kernel; gradients against differences."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import erf, sqrt
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    make_model,
    run,
    run_model,
    uniform,
)

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


# Products.

ACTIVATIONS: list[tuple[str, dict[str, float]]] = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("LeakyRelu", {"activation_alpha": 0.2}),
    ("Elu", {"activation_alpha": 1.5}),
    ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ("ThresholdedRelu", {"activation_alpha": 0.05}),
]


@pytest.mark.parametrize(("activation", "settings"), ACTIVATIONS, ids=[a for a, _ in ACTIVATIONS])
def test_fused_gemm(activation: str, settings: dict[str, float]) -> None:
    attributes: dict[str, Any] = {
        "activation": activation,
        "alpha": 0.7,
        "beta": 1.3,
        "transB": 1,
        **settings,
    }
    check(Op("FusedGemm", attributes, MICROSOFT), [f32(2, 3), f32(4, 3, seed=1), f32(4, seed=2)])


def test_fused_gemm_without_activation_or_bias() -> None:
    a, b = uniform(3, 2), uniform(3, 4)
    check(Op("FusedGemm", {"activation": "Relu", "transA": 1}, MICROSOFT), [f32(3, 2), f32(3, 4, seed=1)])
    check_forward(Op("FusedGemm", {"transA": 1}, MICROSOFT), [a, b], [a.T @ b])


def test_an_unknown_activation_is_named() -> None:
    op = Op("FusedGemm", {"activation": "Cubic"}, MICROSOFT)
    check_rejected(op, [f32(2, 3), f32(3, 4)], "'Cubic' is not supported")


@pytest.mark.parametrize("a", [(2, 3, 4, 5), (3, 4, 5), (1, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch", [(1, 0), (0, 1), (1, 1), (0, 0)], ids=str)
def test_fused_matmul_with_turned_batches(
    a: tuple[int, ...], trans_a: int, trans_b: int, batch: tuple[int, int]
) -> None:
    front, (m, n, k) = list(a[:-2]), (3, 2, 4)

    def operand(rows: int, columns: int, trans: int, turned: int, front: list[int], seed: int) -> Array:
        if trans:
            rows, columns = columns, rows
        return f32(*([rows, *front, columns] if turned else [*front, rows, columns]), seed=seed)

    inputs = [operand(m, k, trans_a, batch[0], front, 0), operand(k, n, trans_b, batch[1], front, 1)]
    attributes = {
        "transA": trans_a, "transB": trans_b, "transBatchA": batch[0], "transBatchB": batch[1], "alpha": 0.5,
    }  # fmt: skip
    check(Op("FusedMatMul", attributes, MICROSOFT), inputs)


def test_transpose_matmul() -> None:
    op = Op("TransposeMatMul", {"transA": 1, "alpha": 2.0}, MICROSOFT)
    check(op, [f32(2, 4, 3), f32(2, 4, 5, seed=1)])


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("biased", [False, True])
def test_gemm_fast_gelu(biased: bool) -> None:
    x, w, b = uniform(2, 3), uniform(3, 4, seed=1), uniform(4, seed=2)
    op = Op("GemmFastGelu", {}, MICROSOFT)
    inputs = [x, w, b] if biased else [x, w]
    check_forward(op, inputs, [_gelu_tanh(x @ w + (b if biased else 0))], rtol=1e-10)
    check_gradient(op, inputs)


def test_fused_matmul_activation() -> None:
    a, b = uniform(2, 3, 4), uniform(4, 5, seed=1)
    op = Op("FusedMatMulActivation", {"activation": "Softmax", "activation_axis": -1}, MICROSOFT)
    y = np.exp(a @ b)
    check_forward(op, [a, b], [y / y.sum(-1, keepdims=True)], rtol=1e-12)
    check_gradient(op, [a, b])


# Biases.


def test_bias_add() -> None:
    inputs = [uniform(2, 3, 4), uniform(4, seed=1), uniform(2, 3, 4, seed=2)]
    check_forward(Op("BiasAdd", {}, MICROSOFT), inputs, [inputs[0] + inputs[1] + inputs[2]])
    check_gradient(Op("BiasAdd", {}, MICROSOFT), inputs)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_bias_split_gelu(opset: int) -> None:
    x, b = uniform(2, 3, 6), uniform(6, seed=1)
    left, right = np.split(x + b, 2, -1)
    gelu = right * (1 + np.vectorize(erf)(right / sqrt(2))) / 2
    op = Op("BiasSplitGelu", {}, MICROSOFT, opset)
    check_forward(op, [x, b], [left * gelu], rtol=1e-7)
    check_gradient(op, [x, b])


@pytest.mark.parametrize("opset", [12, 17])
@pytest.mark.parametrize(
    ("axis", "bias"), [(2, (2, 1, 4)), (2, (3, 4)), (1, (3, 4)), (-1, (1, 3, 4))], ids=str
)
def test_bias_softmax(axis: int, bias: tuple[int, ...], opset: int) -> None:
    x, b = uniform(2, 3, 4), uniform(*bias, seed=1)
    op = Op("BiasSoftmax", {"axis": axis, "is_inner_broadcast": 1}, MICROSOFT, opset)
    y = np.exp((x + b).reshape((2, -1) if axis == 1 else (6, -1)))
    check_forward(op, [x, b], [(y / y.sum(-1, keepdims=True)).reshape(x.shape)], rtol=1e-12)
    check_gradient(op, [x, b])


# Normalizations.


@pytest.mark.parametrize("skip", [(2, 3, 8), (3, 8), (1, 3, 8)], ids=str)
@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_skip_layer_normalization(skip: tuple[int, ...], beta: bool, bias: bool) -> None:
    inputs = [
        f32(2, 3, 8), f32(*skip, seed=1), f32(8, seed=2), f32(8, seed=3) if beta else None, f32(8, seed=4) if bias else None,
    ]  # fmt: skip
    op = Op("SkipLayerNormalization", {"epsilon": 1e-5}, MICROSOFT, outputs=(True, False, False, True))
    check(op, inputs)


def test_skip_layer_normalization_leaves_its_statistics() -> None:
    x, skip, gamma = uniform(2, 3, 8), uniform(2, 3, 8, seed=1), uniform(8, seed=2)
    y, mean, inv_std, total = run(Op("SkipLayerNormalization", {}, MICROSOFT, outputs=4), [x, skip, gamma])
    s = x + skip
    np.testing.assert_array_equal(total, s)
    np.testing.assert_allclose(mean, s.mean(-1, keepdims=True), 1e-12, 1e-15)
    np.testing.assert_allclose(inv_std, 1 / s.std(-1, keepdims=True), 1e-9)
    np.testing.assert_allclose(
        y, (s - s.mean(-1, keepdims=True)) / s.std(-1, keepdims=True) * gamma, 1e-8, 1e-12
    )


@pytest.mark.parametrize("bias", [False, True])
def test_skip_simplified_layer_normalization(bias: bool) -> None:
    inputs = [f32(2, 3, 8), f32(2, 3, 8, seed=1), f32(8, seed=2)] + ([f32(8, seed=3)] if bias else [])
    op = Op(
        "SkipSimplifiedLayerNormalization", {"epsilon": 1e-5}, MICROSOFT, outputs=(True, False, False, True)
    )
    check(op, inputs)


@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("positions", [None, (1, 5), (2, 5)], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_embed_layer_normalization(segments: bool, positions: tuple[int, int] | None, masked: bool) -> None:
    random = np.random.default_rng(1)
    ids = random.integers(0, 9, (2, 5)).astype(np.int32)
    mask = np.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], np.int32) if masked else None
    inputs = [
        ids,
        random.integers(0, 2, (2, 5)).astype(np.int32) if segments else None,
        f32(9, 8), f32(7, 8, seed=1), f32(2, 8, seed=2) if segments else None, f32(8, seed=3), f32(8, seed=4), mask,
        None if positions is None else random.integers(0, 7, positions).astype(np.int32),
    ]  # fmt: skip
    op = Op("EmbedLayerNormalization", {"epsilon": 1e-5}, MICROSOFT, outputs=3)
    check(op, inputs, outputs=[0, 2])


def test_segments_without_their_embedding_are_refused() -> None:
    ids = np.zeros((2, 5), np.int32)
    inputs = [ids, ids, f32(9, 8), f32(7, 8), None, f32(8), f32(8)]
    check_rejected(Op("EmbedLayerNormalization", {}, MICROSOFT), inputs, "must be given together")


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("skip", [None, False, True])
def test_group_norm(last: int, activation: int, skip: bool | None) -> None:
    x = uniform(2, 3, 4, 6) if last else uniform(2, 6, 3, 4)
    gamma, beta, other = uniform(6, seed=1), uniform(6, seed=2), uniform(*x.shape, seed=3)
    inputs = [x, gamma, beta] + ([] if skip is None else [other]) + ([uniform(6, seed=4)] if skip else [])
    kind = "GroupNorm" if skip is None else "SkipGroupNorm"
    attributes = {"groups": 3, "activation": activation, "channels_last": last, "epsilon": 1e-3}
    channel = (-1,) if last else (-1, 1, 1)
    s = x + (0 if skip is None else other) + (inputs[4].reshape(channel) if skip else 0)
    first = np.moveaxis(s, -1, 1) if last else s
    rows = first.reshape(2, 3, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-3)
    normal = normal.reshape(first.shape)
    y = (np.moveaxis(normal, 1, -1) if last else normal) * gamma.reshape(channel) + beta.reshape(channel)
    y = y / (1 + np.exp(-y)) if activation else y
    op = Op(kind, attributes, MICROSOFT, outputs=1 if skip is None else 2)
    check_forward(op, inputs, [y] if skip is None else [y, s], rtol=1e-10)
    check_gradient(op, inputs)


# Convolution with an activation.

CONV_ACTIVATIONS: list[tuple[str, list[float]]] = [
    ("", []),
    ("Relu", []),
    ("LeakyRelu", [0.2]),
    ("Clip", [-0.3, 0.4]),
    ("Sigmoid", []),
    ("Tanh", []),
    ("HardSigmoid", [0.3, 0.4]),
]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(
    ("activation", "settings"), CONV_ACTIVATIONS, ids=[a or "none" for a, _ in CONV_ACTIVATIONS]
)
def test_fused_conv(activation: str, settings: list[float], biased: bool, added: bool) -> None:
    attributes: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 1]}
    attributes |= {"activation": activation} if activation else {}
    attributes |= {"activation_params": settings} if settings else {}
    inputs: list[Array | None] = [
        f32(1, 2, 5, 4),
        f32(3, 2, 3, 3, seed=1),
        f32(3, seed=2) if biased else None,
    ]
    if added:
        inputs.append(f32(1, 3, 3, 4, seed=3))
    check(Op("FusedConv", attributes, MICROSOFT), inputs)


# Variants of the standard's operators.


def test_expand_dims() -> None:
    for axis, shape in [(0, (1, 2, 3)), (1, (2, 1, 3)), (-1, (2, 3, 1))]:
        inputs = [f32(2, 3), np.array(axis, np.int32)]
        check_forward(Op("ExpandDims", {}, MICROSOFT), inputs, [inputs[0].reshape(shape)], constants=[1])
    check_gradient(Op("ExpandDims", {}, MICROSOFT), [uniform(2, 3), np.array(1, np.int32)], constants=[1])


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int) -> None:
    check(Op("Trilu", {"upper": upper}, MICROSOFT), [f32(3, 4)])


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
@pytest.mark.parametrize("opset", [17, 20])
def test_grid_sample(mode: str, opset: int) -> None:
    op = Op("GridSample", {"mode": mode, "padding_mode": "border"}, MICROSOFT, opset)
    check(op, [f32(1, 2, 4, 5), f32(1, 3, 2, 2, seed=1, low=-0.7, high=0.7)], wrt=[0])


def test_gather_nd() -> None:
    check(Op("GatherND", {}, MICROSOFT), [f32(3, 4), np.array([[0, 1], [2, 3]], np.int64)])


@pytest.mark.parametrize("pads", [[0, 1, 1, 0], [[0, 1, 1, 0]]], ids=str)
def test_pad(pads: list[Any]) -> None:
    inputs = [f32(2, 3), np.array(pads, np.int64), np.array(3, np.float32)]
    op = Op("Pad", {}, MICROSOFT)
    check(op, inputs, constants=[1], wrt=[0])


def test_range() -> None:
    check(
        Op("Range", {}, MICROSOFT),
        [np.array(1, np.int32), np.array(7, np.int32)],
        constants=[0, 1],
        gradient=False,
    )
    inputs = [np.array(1, np.float32), np.array(7, np.float32), np.array(1.5, np.float32)]
    check(Op("Range", {}, MICROSOFT), inputs, constants=[0, 1, 2], gradient=False)


@pytest.mark.parametrize("ids", [(1,), (2, 5)], ids=str)
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ((2, 5, 8), {}),
        ((2, 5, 8), {"num_heads": 2}),
        ((2, 3, 5, 4), {}),
        ((2, 5, 12), {"num_heads": 2, "rotary_embedding_dim": 4}),
    ],
    ids=str,
)
def test_rotary_embedding(
    shape: tuple[int, ...], settings: dict[str, int], ids: tuple[int, ...], interleaved: int
) -> None:
    positions = np.array([3], np.int64) if ids == (1,) else np.random.default_rng(1).integers(0, 9, ids)
    inputs = [f32(*shape), positions, f32(9, 2, seed=1), f32(9, 2, seed=2)]
    check(Op("RotaryEmbedding", {"interleaved": interleaved, **settings}, MICROSOFT), inputs, wrt=[0])


@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
def test_cdist(metric: str) -> None:
    check(Op("CDist", {"metric": metric}, MICROSOFT), [f32(3, 4), f32(5, 4, seed=1)])


def test_complex_product() -> None:
    x, y = uniform(2, 3, 2), uniform(2, 3, 2, seed=1)
    a, b = x[..., 0] + 1j * x[..., 1], y[..., 0] + 1j * y[..., 1]
    for kind, product in [("ComplexMul", a * b), ("ComplexMulConj", a * b.conj())]:
        op = Op(kind, {}, MICROSOFT)
        check_forward(op, [x, y], [np.stack([product.real, product.imag], -1)], rtol=1e-12)
        check_gradient(op, [x, y])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.float32])
def test_nhwc_max_pool(dtype: Any) -> None:
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2], "pads": [0, 0, 1, 1]}
    op = Op("NhwcMaxPool", attributes, MICROSOFT)
    x = apart(1, 5, 5, 2, scale=5).astype(dtype)
    if dtype is np.float32:
        padded = np.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0)), constant_values=-np.inf)
        check_forward(op, [x], [padded.reshape(1, 3, 2, 3, 2, 2).max((2, 4))])
        check_gradient(op, [apart(1, 5, 5, 2)])
    else:
        check(op, [x], gradient=False)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_unfold_tensor(dim: int) -> None:
    check(Op("UnfoldTensor", {"dim": dim, "size": 3, "step": 2}, MICROSOFT), [f32(7, 3, 8)])


def test_unique() -> None:
    op = Op("Unique", {}, MICROSOFT, outputs=3)
    x = np.array([3, 1, 3, 2, 1], np.float32)
    check_forward(op, [x], by_onnxruntime(op, [x]))


def test_matmul_integer16() -> None:
    a, b = (
        np.random.default_rng(i).integers(-900, 900, s).astype(np.int16)
        for i, s in enumerate([(2, 3), (3, 4)])
    )
    check_forward(Op("MatMulInteger16", {}, MICROSOFT), [a, b], [a.astype(np.int32) @ b.astype(np.int32)])


@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1), (2, 1, 5, 5), (0, 3, 3)], ids=str)
def test_inverse(shape: tuple[int, ...]) -> None:
    x = f32(*shape) + 2 * np.eye(shape[-1], dtype=np.float32)
    check_forward(Op("Inverse", {}, MICROSOFT), [x], [np.linalg.inv(x.astype(np.float64)).astype(np.float32)])
    check_gradient(Op("Inverse", {}, MICROSOFT), [x.astype(np.float64)])


def test_inverse_pivots_and_names_singular_matrices() -> None:
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    check_forward(Op("Inverse", {}, MICROSOFT), [swap], [swap])
    with pytest.raises(RuntimeError, match=r"under_test.*matrix 1 .* no inverse"):
        run(Op("Inverse", {}, MICROSOFT), [np.stack([swap, np.ones((2, 2))])])
    check_rejected(Op("Inverse", {}, MICROSOFT), [uniform(2, 3)], "square matrices")


# Half precision: as in float, except for the rounding of inputs and results.

HALF: list[tuple[str, dict[str, Any], list[tuple[int, ...]]]] = [
    ("SkipLayerNormalization", {"epsilon": 1e-5}, [(2, 3, 8), (2, 3, 8), (8,), (8,), (8,)]),
    ("SkipSimplifiedLayerNormalization", {"epsilon": 1e-5}, [(2, 3, 8), (2, 3, 8), (8,), (8,)]),
    ("GroupNorm", {"groups": 2, "activation": 1}, [(2, 3, 4, 6), (6,), (6,)]),
    ("BiasSplitGelu", {}, [(2, 3, 8), (8,)]),
    ("BiasAdd", {}, [(2, 3, 8), (8,), (2, 3, 8)]),
    ("FusedGemm", {"activation": "Tanh"}, [(2, 3), (3, 4), (4,)]),
    ("FusedMatMul", {"alpha": 0.5, "transB": 1}, [(2, 3, 4), (2, 5, 4)]),
    ("FusedConv", {"activation": "Relu"}, [(1, 2, 5, 5), (3, 2, 3, 3), (3,)]),
    ("GemmFastGelu", {}, [(2, 3), (3, 4), (4,)]),
    ("QuickGelu", {}, [(2, 3)]),
    ("ScaledSum", {"scale_0": 0.5, "scale_1": 2.0}, [(2, 3), (2, 3)]),
    ("SoftmaxCrossEntropy", {}, [(4, 5), (4, 5)]),
    ("Inverse", {}, [(1, 1)]),
]


@pytest.mark.parametrize(("kind", "attributes", "shapes"), HALF, ids=[kind for kind, _, _ in HALF])
def test_half(kind: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]]) -> None:
    op = Op(kind, attributes, MICROSOFT)
    inputs = [uniform(*shape, low=0.2, seed=i).astype(np.float16) for i, shape in enumerate(shapes)]
    [found], [expected] = run(op, inputs), run(op, [x.astype(np.float64) for x in inputs])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found.astype(np.float64), expected, 4e-3, 4e-3)


@pytest.mark.parametrize("opset", [12, 17])
def test_an_expansion_inside_a_branch(opset: int) -> None:
    """The branch reads values of the enclosing graph, and its own nodes are decomposed."""
    h = onnx.helper
    nodes = [
        h.make_node("BiasAdd", ["x", "bias", "x"], ["sum"], "inner", domain=MICROSOFT),
        h.make_node("BiasSplitGelu", ["sum", "bias"], ["then_y"], "inner_gelu", domain=MICROSOFT),
    ]
    one = onnx.numpy_helper.from_array(np.zeros((2, 3, 2)), "none")
    shape = h.make_tensor_value_info("", 11, [2, 3, 2])
    infos = []
    for name in ("then_y", "else_y", "y"):
        infos.append(onnx.ValueInfoProto())
        infos[-1].CopyFrom(shape)
        infos[-1].name = name
    then = h.make_graph(nodes, "then", [], infos[:1])
    other = h.make_graph([h.make_node("Identity", ["none"], ["else_y"])], "else", [], infos[1:2], [one])
    graph = h.make_graph(
        [h.make_node("If", ["c"], ["y"], "branch", then_branch=then, else_branch=other)],
        "graph",
        [
            h.make_tensor_value_info("c", 9, []),
            h.make_tensor_value_info("x", 11, [2, 3, 4]),
            h.make_tensor_value_info("bias", 11, [4]),
        ],
        infos[2:],
    )  # fmt: skip
    imports = [h.make_opsetid("", opset), h.make_opsetid(MICROSOFT, 1)]
    model = h.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    x, bias = uniform(2, 3, 4), uniform(4, seed=1)
    expected = run(Op("BiasSplitGelu", {}, MICROSOFT, opset), [2 * x + bias, bias])[0]
    found = run_model(model, {"c": np.array(True), "x": x, "bias": bias})["y"]
    np.testing.assert_allclose(found, expected, 1e-12)
    assert not run_model(model, {"c": np.array(False), "x": x, "bias": bias})["y"].any()


# A decomposition that fails names the node.


def test_unsupported_forms_are_named() -> None:
    check_rejected(Op("BiasAdd", {}, MICROSOFT), [f32(2, 3), f32(3)], "2 inputs .* fewer than it needs")
    check_rejected(Op("CDist", {"metric": "cosine"}, MICROSOFT), [f32(3, 4), f32(5, 4)], "'cosine'")
    check_rejected(
        Op("GroupNorm", {"groups": 2, "activation": 7}, MICROSOFT),
        [f32(1, 2, 4), f32(4), f32(4)],
        "activation must be",
    )
