"""SkipLayerNormalization, EmbedLayerNormalization and GroupNorm, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    run,
    run_model,
    uniform,
)
from microsoft_cases import check, f32
from onnx import TensorProto, helper, numpy_helper


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


def test_segments_without_their_embedding_are_rejected() -> None:
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


def test_the_shape_of_embeddings_is_known_behind_them() -> None:
    """The number of positions is free, so the nodes of the decomposition do not show that words and positions match."""
    tables = {"words": uniform(9, 4), "places": uniform(7, 4, seed=1), "weight": uniform(4, 3, seed=2)}
    nodes = [
        helper.make_node(
            "EmbedLayerNormalization",
            ["ids", "", "words", "places", "", "gamma", "beta"],
            ["rows", ""],
            domain=MICROSOFT,
        ),
        helper.make_node("MatMul", ["rows", "weight"], ["scores"]),
        helper.make_node("ReduceSum", ["scores"], ["loss"], keepdims=0),
    ]
    tables |= {"gamma": uniform(4, seed=3), "beta": uniform(4, seed=4)}
    graph = helper.make_graph(
        nodes,
        "embeddings",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, ["rows", "positions"])],
        [helper.make_tensor_value_info("loss", TensorProto.DOUBLE, [])],
        [numpy_helper.from_array(value, name) for name, value in tables.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    ids = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    found = run_model(gradient_model(model, ["weight"], "loss"), {"ids": ids})["weight_grad"]
    rows = tables["words"][ids] + tables["places"][:3]
    rows = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + 1e-12)
    rows = (rows * tables["gamma"] + tables["beta"]).reshape(-1, 4)
    np.testing.assert_allclose(found, np.repeat(rows.sum(0)[:, None], 3, axis=1), 1e-9)
