"""A batch normalization and the Relu or Clip after it are one node, with the results and gradients of separate nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[np.floating]
SHAPE = (5, 7, 6, 11)
RESULTS = ("z", "dx", "dscale", "dbias", "running_mean", "running_variance")
# Channels 1 to 3 always have a value at a bound or outside, and channel 4 has values that are not finite.
SCALE = np.array([1.5, 0, 0, 0, 1, 4, -3])
BIAS = np.array([0.3, 0, 6, 7, 0, 3, 2])
EPSILON = 1e-3


def values(finite: bool) -> tuple[Array, Array]:
    rng = np.random.default_rng(4)
    x, dz = rng.normal(1, 2, SHAPE), rng.normal(0, 1, SHAPE)
    if not finite:
        x[0, 4, 0, :2] = np.nan, np.inf
    return x, dz


def model(
    activation: str, elements: int = TensorProto.FLOAT, *, reads_between: bool = False
) -> onnx.ModelProto:
    """Return a normalization, an activation, and their gradients, as gradient graphs have them."""
    dtype = helper.tensor_dtype_to_np_dtype(elements)
    constants = [
        numpy_helper.from_array(np.asarray(value, dtype), name)
        for name, value in {"scale": SCALE, "bias": BIAS, "zero": 0.0, "six": 6.0}.items()
    ]
    nodes = [
        helper.make_node(
            "BatchNormInternal",
            ["x", "scale", "bias", "mean", "variance"],
            ["y", "running_mean", "running_variance", "saved_mean", "saved_inverse"],
            domain="com.microsoft",
            epsilon=EPSILON,
            momentum=0.75,
            training_mode=1,
        )
    ]
    if activation == "Relu":
        nodes += [
            helper.make_node("Relu", ["y"], ["z"]),
            helper.make_node("ReluGrad", ["dz", "z"], ["dy"], domain="com.microsoft"),
        ]
    else:
        nodes += [
            helper.make_node("Clip", ["y", "zero", "six"], ["z"]),
            helper.make_node("GreaterOrEqual", ["y", "zero"], ["above"]),
            helper.make_node("LessOrEqual", ["y", "six"], ["below"]),
            helper.make_node("And", ["above", "below"], ["inside"]),
            helper.make_node("Cast", ["inside"], ["factor"], to=elements),
            helper.make_node("Mul", ["dz", "factor"], ["dy"]),
        ]
    nodes.append(
        helper.make_node(
            "BatchNormalizationGrad",
            ["dy", "x", "scale", "saved_mean", "saved_inverse"],
            ["dx", "dscale", "dbias"],
            domain="com.microsoft",
            epsilon=EPSILON,
        )
    )
    inputs = [helper.make_tensor_value_info(name, elements, SHAPE) for name in ("x", "dz")]
    inputs += [helper.make_tensor_value_info(name, elements, [SHAPE[1]]) for name in ("mean", "variance")]
    outputs = [*RESULTS, "y"] if reads_between else RESULTS
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info(name, elements, None) for name in outputs],
        constants,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(
    given: onnx.ModelProto, folder: Path, x: Array, dz: Array, *disabled: str, **entries: str
) -> tuple[dict[str, Array], list[str]]:
    """Return the results, and the operators that the session runs."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    for name in disabled:
        options.add_session_config_entry(f"ortrain.disable_pass.{name}", "1")
    for name, value in entries.items():
        options.add_session_config_entry(f"ortrain.{name}", value)
    session = ortrain.InferenceSession(given.SerializeToString(), options)
    statistics = {"mean": np.ones(SHAPE[1], x.dtype), "variance": np.full(SHAPE[1], 2, x.dtype)}
    found = session.run(list(RESULTS), {"x": x, "dz": dz, **statistics})
    ran = [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]
    return dict(zip(RESULTS, found, strict=True)), ran


def expected(activation: str, x: Array, dz: Array) -> dict[str, Array]:
    """Return the results in double precision, for finite values."""
    axes = (0, 2, 3)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    scale, bias = SCALE[:, None, None], BIAS[:, None, None]
    inverse = 1 / np.sqrt(variance + EPSILON)
    hat = (x - mean) * inverse
    y = scale * hat + bias
    passes = y > 0 if activation == "Relu" else (y >= 0) & (y <= 6)
    dy = np.where(passes, dz, 0)
    dscale, dbias = (dy * hat).sum(axes), dy.sum(axes)
    count = x.size / SHAPE[1]
    dx = scale * inverse * (dy - dbias[:, None, None] / count - hat * dscale[:, None, None] / count)
    return {
        "z": np.maximum(y, 0) if activation == "Relu" else np.clip(y, 0, 6),
        "dx": dx,
        "dscale": dscale,
        "dbias": dbias,
        "running_mean": 0.75 + 0.25 * mean.ravel(),
        "running_variance": 0.75 * 2 + 0.25 * variance.ravel(),
    }


# The gradient of a Clip of doubles stays several nodes, so that Clip is not fused either.
@pytest.mark.parametrize(
    ("activation", "elements"),
    [("Relu", TensorProto.FLOAT), ("Relu", TensorProto.DOUBLE), ("Clip", TensorProto.FLOAT)],
)
def test_two_nodes_have_the_results(activation: str, elements: int, tmp_path: Path) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(elements)
    x, dz = (v.astype(dtype) for v in values(finite=True))
    found, ran = run(model(activation, elements), tmp_path, x, dz)
    assert ran == ["ClippedBatchNormInternal", "ClippedBatchNormalizationGrad"]
    for name, value in expected(activation, x.astype(np.float64), dz.astype(np.float64)).items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("finite", [False, True])
@pytest.mark.parametrize("activation", ["Relu", "Clip"])
def test_results_are_those_of_separate_nodes(activation: str, finite: bool, tmp_path: Path) -> None:
    x, dz = (v.astype(np.float32) for v in values(finite))
    fused, _ = run(model(activation), tmp_path, x, dz)
    separate, ran = run(model(activation), tmp_path, x, dz, "fuse_batch_normalization_clip")
    assert not any(name.startswith("Clipped") for name in ran)
    for name in RESULTS:
        np.testing.assert_allclose(fused[name], separate[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_value_that_something_else_reads_is_kept(tmp_path: Path) -> None:
    x, dz = (v.astype(np.float32) for v in values(finite=True))
    _, ran = run(model("Relu", reads_between=True), tmp_path, x, dz)
    assert ran == ["BatchNormInternal", "Relu", "ReluGrad", "BatchNormalizationGrad"]


def test_an_activation_whose_gradient_goes_elsewhere_is_kept(tmp_path: Path) -> None:
    x, dz = (v.astype(np.float32) for v in values(finite=True))
    given = model("Relu")
    given.graph.node[-1].input[0] = "dz"
    _, ran = run(given, tmp_path, x, dz)
    assert "Relu" in ran
    assert "BatchNormInternal" in ran


def test_values_in_bfloat16(tmp_path: Path) -> None:
    x, dz = (v.astype(np.float32) for v in values(finite=True))
    found, _ = run(model("Relu"), tmp_path, x, dz, mixed_precision="bf16")
    for name, value in expected("Relu", x.astype(np.float64), dz.astype(np.float64)).items():
        np.testing.assert_allclose(found[name], value, rtol=0.02, atol=0.02, err_msg=name)
