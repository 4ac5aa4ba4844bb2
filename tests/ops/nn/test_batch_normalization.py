"""Batch normalization against its formulas, its gradients against differences, and its running statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    run,
    run_model,
    uniform,
)
from onnx import helper

SPECIAL_POINTS = {
    "not in PyTorch": ["com.microsoft.BatchNormInternal"],
    "not recorded": ["BatchNormalization"],
}

EPSILON = 1e-3

# Planes, vectors, one value per channel, channel counts that are multiples of a vector, and others.
SHAPES = [
    (4, 3, 5, 6),
    (2, 16, 4, 4),
    (7, 5),
    (6, 4, 9),
    (2, 3, 2, 3, 4),
    (3, 1, 1, 1),
    (1, 2, 3, 3),
    (8, 20, 3, 5),
    (20_000, 7),  # several pieces of rows for each thread
]


def inputs(shape: tuple[int, ...], dtype: Any = np.float64) -> list[Array]:
    c = shape[1]
    return [
        uniform(*shape, low=-2, high=3, dtype=dtype),
        uniform(c, low=0.5, high=2, dtype=dtype, seed=1),
        uniform(c, dtype=dtype, seed=2),
        uniform(c, dtype=dtype, seed=3),
        uniform(c, low=0.5, high=2, dtype=dtype, seed=4),
    ]


def channels(v: Array, like: Array) -> Array:
    return v.reshape(-1, *(1,) * (like.ndim - 2))


def normalize(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> Array:
    centered = x - channels(mean, x)
    return centered / np.sqrt(channels(variance, x) + EPSILON) * channels(scale, x) + channels(bias, x)


def statistics(x: Array) -> tuple[Array, Array]:
    axes = (0, *range(2, x.ndim))
    return x.mean(axes, dtype=np.float64), x.var(axes, dtype=np.float64)


def as_type(values: list[Array], dtype: Any) -> list[Array]:
    return [v.astype(dtype) for v in values]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("opset", [12, 14, 15])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_inference_uses_the_given_statistics(shape: tuple[int, ...], opset: int, dtype: Any) -> None:
    values = inputs(shape, dtype)
    expected = normalize(*as_type(values, np.float64)).astype(dtype)
    op = Op("BatchNormalization", {"epsilon": EPSILON}, opset=opset)
    check_forward(op, values, [expected], rtol=1e-5 if dtype == np.float32 else 1e-7)


def test_inference_passes_statistics_on_where_the_node_names_them() -> None:
    values = inputs((2, 3, 4, 4), np.float32)
    op = Op("BatchNormalization", {"epsilon": EPSILON, "training_mode": 0}, opset=15, outputs=3)
    check_forward(op, values, [normalize(*values), values[3], values[4]], rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_uses_the_statistics_of_the_batch(shape: tuple[int, ...], dtype: Any) -> None:
    values = inputs(shape, dtype)
    x, scale, bias, mean, variance = as_type(values, np.float64)
    batch_mean, batch_variance = statistics(x)
    y = normalize(x, scale, bias, batch_mean, batch_variance)
    running = [0.75 * mean + 0.25 * batch_mean, 0.75 * variance + 0.25 * batch_variance]
    attributes = {"epsilon": EPSILON, "momentum": 0.75}
    rtol = 1e-5 if dtype == np.float32 else 1e-7  # attributes are single precision
    training = Op("BatchNormalization", {**attributes, "training_mode": 1}, opset=15, outputs=3)
    check_forward(training, values, as_type([y, *running], dtype), rtol)
    before_opset_14 = Op("BatchNormalization", attributes, opset=12, outputs=5)
    check_forward(before_opset_14, values, as_type([y, *running, batch_mean, batch_variance], dtype), rtol)
    internal = Op("BatchNormInternal", attributes, domain=MICROSOFT, outputs=5)
    inverse = 1 / np.sqrt(batch_variance + EPSILON)
    check_forward(internal, values, as_type([y, *running, batch_mean, inverse], dtype), rtol)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_in_inference(shape: tuple[int, ...]) -> None:
    if np.prod(shape) < 200:
        check_gradient(Op("BatchNormalization", {"epsilon": EPSILON}, opset=15), inputs(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradient_in_training(shape: tuple[int, ...]) -> None:
    if np.prod(shape) < 200:
        attributes = {"epsilon": EPSILON, "training_mode": 1}
        op = Op("BatchNormalization", attributes, opset=15, outputs=3)
        check_gradient(op, inputs(shape), wrt=[0, 1, 2], outputs=[0])


@pytest.mark.parametrize("wrt", [[0], [1], [2], [0, 2]], ids=str)
@pytest.mark.parametrize("training", [0, 1])
def test_gradient_of_some_inputs(training: int, wrt: list[int]) -> None:
    op = Op("BatchNormalization", {"epsilon": EPSILON, "training_mode": training}, opset=15)
    check_gradient(op, inputs((3, 2, 3, 2)), wrt=wrt)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_float_backward_agrees_with_double(shape: tuple[int, ...]) -> None:
    x, scale, *_ = inputs(shape)
    mean, variance = statistics(x)
    op = Op("BatchNormalizationGrad", {"epsilon": EPSILON}, domain=MICROSOFT, outputs=3)
    values = [uniform(*shape, seed=9), x, scale, mean, 1 / np.sqrt(variance + EPSILON)]
    for found, expected in zip(run(op, as_type(values, np.float32)), run(op, values), strict=True):
        np.testing.assert_allclose(found, expected, 0, 2e-5 * np.abs(expected).max() + 1e-6)


@pytest.mark.parametrize("shape", [(3, 8, 40, 41), (2, 20, 64, 64), (5000, 16)], ids=str)
def test_gradients_are_accurate_where_one_number_is_repeated(shape: tuple[int, ...]) -> None:
    """As behind an average over a plane. Added one by one in float, every addition rounds in the same direction."""
    x, scale, *_ = inputs(shape)
    mean, variance = statistics(x)
    op = Op("BatchNormalizationGrad", {"epsilon": EPSILON}, domain=MICROSOFT, outputs=3)
    dy = np.broadcast_to(channels(uniform(shape[1], low=0.1, high=1, seed=9), x), shape)
    values = as_type([np.ascontiguousarray(dy), x, scale, mean, 1 / np.sqrt(variance + EPSILON)], np.float32)
    dx, dscale, dbias = run(op, values)
    expected = run(op, as_type(values, np.float64))
    np.testing.assert_allclose(dbias, expected[2], rtol=3e-7)
    np.testing.assert_allclose(dscale, expected[1], 0, 1e-7 * np.abs(expected[2]).max())
    np.testing.assert_allclose(dx, expected[0], 0, 1e-6)


def test_statistics_of_values_far_from_zero() -> None:
    values = inputs((8, 4, 16, 16), np.float32)
    values[0] = (values[0] * 0.1 + 50).astype(np.float32)
    x, scale, bias, *_ = as_type(values, np.float64)
    expected = normalize(x, scale, bias, *statistics(x))
    op = Op("BatchNormalization", {"epsilon": EPSILON, "training_mode": 1}, opset=15)
    np.testing.assert_allclose(run(op, values)[0], expected, 0, 1e-3)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_empty_batch_leaves_running_statistics_as_they_are(dtype: Any) -> None:
    values = inputs((2, 3, 4, 4), dtype)
    values[0] = np.zeros((0, 3, 4, 4), dtype)
    op = Op("BatchNormInternal", {"epsilon": EPSILON}, domain=MICROSOFT, outputs=3)
    y, mean, variance = run(op, values)
    assert y.shape == (0, 3, 4, 4)
    np.testing.assert_array_equal(mean, values[3])
    np.testing.assert_array_equal(variance, values[4])
    grad = Op("BatchNormalizationGrad", {"epsilon": EPSILON}, domain=MICROSOFT, outputs=3)
    dx, dscale, dbias = run(grad, [values[0], values[0], values[1], values[3], values[4]])
    assert dx.shape == (0, 3, 4, 4)
    assert not dscale.any()
    assert not dbias.any()


@pytest.mark.parametrize("count", [8, 16, 20])
def test_normalization_between_convolutions_keeps_its_values(count: int) -> None:
    """In the layouts that convolutions produce, forward and backward, compared with the same in double."""
    x, w = uniform(4, count, 9, 8), uniform(count, count, 3, 3, seed=1)
    v = uniform(count, count, 1, 1, seed=2)
    _, scale, bias, mean, variance = inputs((1, count))

    def results(dtype: Any) -> list[Array]:
        feeds = {"x": x, "w": w, "v": v, "scale": scale, "bias": bias, "mean": mean, "variance": variance}
        feeds = {name: value.astype(dtype) for name, value in feeds.items()}
        nodes = [
            helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node(
                "BatchNormalization",
                ["a", "scale", "bias", "mean", "variance"],
                ["b", "m", "n"],
                training_mode=1,
            ),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("Conv", ["c", "v"], ["d"]),
            helper.make_node("Mul", ["d", "d"], ["e"]),
            helper.make_node("ReduceSum", ["e"], ["loss"], keepdims=0),
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        values = [helper.make_tensor_value_info(name, kind, value.shape) for name, value in feeds.items()]
        graph = helper.make_graph(nodes, "net", values, [helper.make_tensor_value_info("loss", kind, ())])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        model = onnx.shape_inference.infer_shapes(model)
        computed = run_model(
            gradient_model(model.SerializeToString(), ["x", "w", "v", "scale", "bias"], "loss"), feeds
        )
        return [computed[name] for name in ("loss", "x_grad", "w_grad", "v_grad", "scale_grad", "bias_grad")]

    for found, expected in zip(results(np.float32), results(np.float64), strict=True):
        np.testing.assert_allclose(found, expected, 0, 1e-4 * np.abs(expected).max())


def test_wrong_shapes_are_rejected() -> None:
    x, scale, bias, mean, variance = inputs((2, 3, 4, 4))
    op = Op("BatchNormalization", opset=15)
    check_rejected(
        op, [x, scale[:2], bias, mean, variance], r"scale must have one value for each of the 3.*\[2\]"
    )
    check_rejected(op, [x, scale, bias, mean.reshape(1, 3), variance], r"mean must have one value.*\[1, 3\]")
    check_rejected(
        op, [x[0, 0, 0], scale, bias, mean, variance], r"must have shape \[N, C, ...\], found \[4\]"
    )
    check_rejected(
        op, [x, scale.astype(np.float32), bias, mean, variance], "type of X, float64, found float32"
    )
    check_rejected(op, [v.astype(np.int64) for v in (x, scale, bias, mean, variance)], "int64")
    grad = Op("BatchNormalizationGrad", {"epsilon": EPSILON}, domain=MICROSOFT, outputs=3)
    check_rejected(
        grad, [x[:1], x, scale, mean, variance], r"dY must match X.*\[2, 3, 4, 4\].*\[1, 3, 4, 4\]"
    )


@pytest.mark.parametrize("shape", [(3, 2), (4, 3, 2), (2, 2, 3, 2)], ids=str)
def test_gradient_of_the_form_in_training_models(shape: tuple[int, ...]) -> None:
    op = Op("BatchNormInternal", {"epsilon": EPSILON, "training_mode": 1}, domain=MICROSOFT, outputs=5)
    check_gradient(op, inputs(shape), wrt=[0, 1, 2], outputs=[0])
