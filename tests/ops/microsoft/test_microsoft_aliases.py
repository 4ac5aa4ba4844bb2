"""Operators of com.microsoft that are older or extended forms of those of ONNX, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    MICROSOFT,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    run,
    run_model,
    uniform,
)
from microsoft_cases import by_onnxruntime, check, f32


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


def test_unsupported_forms_are_named() -> None:
    check_rejected(Op("BiasAdd", {}, MICROSOFT), [f32(2, 3), f32(3)], "2 inputs .* fewer than it needs")
    check_rejected(Op("CDist", {"metric": "cosine"}, MICROSOFT), [f32(3, 4), f32(5, 4)], "'cosine'")
    check_rejected(
        Op("GroupNorm", {"groups": 2, "activation": 7}, MICROSOFT),
        [f32(1, 2, 4), f32(4), f32(4)],
        "activation must be",
    )
