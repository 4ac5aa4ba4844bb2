"""Resize and Upsample against the reference implementation, their gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
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

SPECIAL_POINTS = {"linear": ["Resize", "Upsample"]}

FLOATS = np.float32


def scaled(x: Array, *scales: float) -> list[Array | None]:
    return [x, None, np.array(scales, FLOATS)]


def sized(x: Array, *sizes: int) -> list[Array | None]:
    return [x, None, None, np.array(sizes, np.int64)]


MODES = {
    "nearest": {"mode": "nearest"},
    "floor": {"mode": "nearest", "nearest_mode": "floor"},
    "ceil": {"mode": "nearest", "nearest_mode": "ceil"},
    "prefer-ceil": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "linear": {"mode": "linear"},
    "cubic": {"mode": "cubic"},
    "cubic-a": {"mode": "cubic", "cubic_coeff_a": -0.5},
    "linear-inside": {"mode": "linear", "exclude_outside": 1},
    "cubic-inside": {"mode": "cubic", "exclude_outside": 1},
    "linear-antialias": {"mode": "linear", "antialias": 1},
    "cubic-antialias": {"mode": "cubic", "antialias": 1},
    "cubic-antialias-inside": {"mode": "cubic", "antialias": 1, "exclude_outside": 1},
}
COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
CONSTANTS = (1, 2, 3)


def precision(attributes: dict[str, Any]) -> float:
    """The reference implementation computes the weights of mode cubic in float."""
    return 5e-6 if attributes["mode"] == "cubic" else 1e-10


def expect_equal(attributes: dict[str, Any], inputs: list[Array | None], opset: int = 19) -> None:
    op = Op("Resize", attributes, opset=opset)
    expected = check_forward(op, inputs, constants=CONSTANTS, rtol=precision(attributes))
    x = inputs[0]
    assert x is not None
    single = run(op, [x.astype(np.float32), *inputs[1:]], CONSTANTS)
    np.testing.assert_allclose(single[0], expected[0], 0, 2e-6 * np.abs(expected[0]).max(initial=1))
    check_gradient(op, inputs, constants=CONSTANTS)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
def test_resize_by_scales(mode: str, coordinates: str) -> None:
    attributes = {**MODES[mode], "coordinate_transformation_mode": coordinates}
    expect_equal(attributes, scaled(uniform(2, 1, 4, 3), 1, 1, 2, 1.7))
    expect_equal(attributes, scaled(uniform(1, 2, 5, 7), 1, 1, 0.6, 0.4))
    expect_equal(attributes, scaled(uniform(1, 1, 3, 5), 1, 1, 0.8, 2.5))


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", MODES)
def test_resize_to_sizes(mode: str, coordinates: str) -> None:
    attributes = {**MODES[mode], "coordinate_transformation_mode": coordinates}
    expect_equal(attributes, sized(uniform(1, 2, 4, 5), 1, 2, 7, 3))
    expect_equal(attributes, sized(uniform(1, 1, 4, 4), 1, 1, 1, 1))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("roi", [(0.2, 0.3, 0.8, 0.7), (-0.4, 0.1, 1.3, 0.9), (0.9, 0.1, 0.1, 1.5)], ids=str)
def test_crop_and_resize(mode: str, roi: tuple[float, ...]) -> None:
    corners = np.array([0, 0, *roi[:2], 1, 1, *roi[2:]], np.float64)
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 5.0,
    }
    x = uniform(1, 2, 5, 4)
    expect_equal(attributes, [x, corners, None, np.array([1, 2, 4, 6], np.int64)])
    expect_equal(attributes, [x, corners, np.array([1, 1, 0.5, 2], FLOATS)])


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("axes", [(2, 3), (3, 2), (-1, -2), (3,)], ids=str)
def test_resize_of_some_axes(axes: tuple[int, ...], policy: str) -> None:
    x = uniform(1, 2, 4, 6)
    sizes = [7, 9][: len(axes)]
    attributes = {"mode": "linear", "axes": axes, "keep_aspect_ratio_policy": policy}
    op = Op("Resize", attributes, opset=19)
    dims = {axis % 4: size for axis, size in zip(axes, sizes, strict=True)}
    scales = {axis: size / x.shape[axis] for axis, size in dims.items()}
    if policy != "stretch":
        shared = (min if policy == "not_larger" else max)(scales.values())
        scales = dict.fromkeys(scales, shared)
        dims = {axis: int(shared * x.shape[axis] + 0.5) for axis in dims}
    found = run(op, sized(x, *sizes), CONSTANTS)[0]
    assert found.shape == tuple(dims.get(i, n) for i, n in enumerate(x.shape))
    every = np.array([scales.get(i, 1.0) for i in range(4)])
    if policy == "stretch":
        expected = run(Op("Resize", {"mode": "linear"}, opset=19), sized(x, *found.shape), CONSTANTS)[0]
    else:
        expected = run(
            Op("Resize", {"mode": "linear"}, opset=19), [x, None, every.astype(np.float64)], CONSTANTS
        )[0]
        found = found[tuple(slice(n) for n in expected.shape)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    check_gradient(op, sized(x, *sizes), constants=CONSTANTS)


@pytest.mark.parametrize("opset", [12, 13, 18, 19])
def test_every_opset_has_the_same_resize(opset: int) -> None:
    x = uniform(1, 2, 3, 4)
    op = Op("Resize", {"mode": "linear"}, opset=opset)
    inputs = [x, np.zeros(0), np.array([1, 1, 2, 2], FLOATS)]
    expected = run(Op("Resize", {"mode": "linear"}, opset=19), scaled(x, 1, 1, 2, 2), CONSTANTS)
    check_forward(op, inputs, expected, constants=CONSTANTS)
    check_gradient(op, inputs, constants=CONSTANTS)


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 2, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_every_rank(shape: tuple[int, ...], mode: str) -> None:
    expect_equal({"mode": mode}, scaled(uniform(*shape), *(1.5, 2, 0.6, 2, 1)[: len(shape)]))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.float16])
def test_nearest_moves_elements_of_any_type(dtype: Any) -> None:
    x = np.arange(12).reshape(1, 1, 3, 4).astype(dtype)
    found = run(Op("Resize", {"mode": "nearest"}, opset=19), scaled(x, 1, 1, 2, 3), CONSTANTS)[0]
    np.testing.assert_array_equal(found, x.repeat(2, 2).repeat(3, 3))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_of_nothing(mode: str) -> None:
    op = Op("Resize", {"mode": mode}, opset=19)
    assert run(op, scaled(np.zeros((0, 2, 3, 4)), 1, 1, 2, 2), CONSTANTS)[0].shape == (0, 2, 6, 8)
    assert run(op, sized(np.zeros((1, 2, 3, 4)), 1, 2, 0, 4), CONSTANTS)[0].shape == (1, 2, 0, 4)
    check_gradient(op, sized(uniform(1, 2, 3, 4), 1, 2, 0, 4), constants=CONSTANTS)
    check_gradient(op, scaled(uniform(1, 2, 3, 4), 1, 1, 1, 1), constants=CONSTANTS)


def test_resize_of_a_large_image_in_float() -> None:
    """More rows and threads than in a small case."""
    x = uniform(2, 8, 33, 47)
    for mode in ("nearest", "linear", "cubic"):
        for inputs in (scaled(x, 1, 1, 2, 2), scaled(x, 1, 1, 0.5, 0.4)):
            op = Op("Resize", {"mode": mode}, opset=19)
            double = check_forward(op, inputs, constants=CONSTANTS, rtol=precision({"mode": mode}))
            single = run(op, [x.astype(np.float32), *inputs[1:]], CONSTANTS)
            np.testing.assert_allclose(single[0], double[0], 0, 3e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample(mode: str) -> None:
    x = uniform(1, 2, 3, 2)
    op = Op("Upsample", {"mode": mode}, opset=12)
    scales = np.array([1, 1, 2, 3], FLOATS)
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    expected = run(Op("Resize", attributes, opset=13), [x, None, scales], (2,))
    check_forward(op, [x, scales], expected, constants=(1,))
    check_gradient(op, [x, scales], constants=(1,))
    check_forward(Op("Upsample", {"mode": mode, "scales": [1.0, 1.0, 2.0, 3.0]}, opset=8), [x], expected)


def test_sizes_that_follow_from_another_shape() -> None:
    """A decoder resizes to the size of the value that it is concatenated with: known when the program is compiled."""
    x, like = uniform(1, 2, 3, 4), uniform(1, 5, 7, 9, seed=1)
    nodes = [
        helper.make_node("Shape", ["like"], ["size"], start=2),
        helper.make_node("Resize", ["x", "", "", "size"], ["y"], mode="linear", axes=[2, 3]),
        helper.make_node("Mul", ["y", "y"], ["squared"]),
        helper.make_node("ReduceSum", ["squared"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info(name, 11, ["n", name + "c", name + "h", name + "w"])
            for name in ("x", "like")
        ],
        [helper.make_tensor_value_info("loss", 11, [])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    forward = model.SerializeToString()
    found = run_model(gradient_model(forward, ["x"], "loss"), {"x": x, "like": like})["x_grad"]
    step = np.zeros_like(x)
    step[0, 1, 2, 1] = 1e-5
    above, below = (run_model(forward, {"x": v, "like": like})["loss"] for v in (x + step, x - step))
    np.testing.assert_allclose(found[0, 1, 2, 1], (above - below) / 2e-5, rtol=1e-6)


def test_what_cannot_be_resized_is_rejected() -> None:
    x = uniform(1, 1, 4, 4)
    op = "Resize"
    check_rejected(Op(op, {"mode": "area"}), scaled(x, 1, 1, 2, 2), "mode must be one of", CONSTANTS)
    check_rejected(Op(op, {"nearest_mode": "up"}), scaled(x, 1, 1, 2, 2), "found 'up'", CONSTANTS)
    check_rejected(
        Op(op, {"coordinate_transformation_mode": "x"}), scaled(x, 1, 1, 2, 2), "found 'x'", CONSTANTS
    )
    check_rejected(Op(op), scaled(x, 2, 2), "scales must have 4 values, found 2", CONSTANTS)
    check_rejected(Op(op), scaled(x, 1, 1, 2, 0), "scales must be positive, found 0", CONSTANTS)
    check_rejected(Op(op), scaled(x, 1, 1, 2, 1e20), "makes axis 3 .* too long", CONSTANTS)
    check_rejected(Op(op), sized(x, 4, 4), "must have 4 values", CONSTANTS)
    check_rejected(Op(op), sized(x, 1, 1, -1, 4), "to -1 along axis 2", CONSTANTS)
    check_rejected(Op(op), [x], "exactly one of scales and sizes")
    both = [x, None, np.ones(4, FLOATS), np.array(x.shape)]
    check_rejected(Op(op), both, "exactly one of scales and sizes", CONSTANTS)
    crop = {"coordinate_transformation_mode": "tf_crop_and_resize"}
    check_rejected(Op(op, crop), scaled(x, 1, 1, 2, 2), "needs the input roi", CONSTANTS)
    check_rejected(
        Op(op, {"antialias": 1}, opset=18),
        scaled(x, 1, 1, 2, 2),
        "not supported with mode nearest",
        CONSTANTS,
    )
    check_rejected(Op(op, {"mode": "linear"}), scaled(x.astype(np.int32), 1, 1, 2, 2), "int32", CONSTANTS)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int32, np.int64])
def test_all_bits_of_integers_are_kept(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 256, 60 * np.dtype(dtype).itemsize).astype(np.uint8)
    x[3::4] = 0x7F  # as floats, many of them would be NaN
    x = x.view(dtype).reshape(1, 3, 4, 5)
    expected = x.repeat(2, axis=2).repeat(3, axis=3)
    scales = np.array([1, 1, 2, 3], np.float32)
    op = Op(
        "Resize", {"mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric"}
    )
    check_forward(op, [x, None, scales], [expected])
