"""Transposed convolution in one to three dimensions against its definition, gradients against differences."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from convolutions import SOME_OUTPUTS, check_float_agrees_with_double, check_wanted_outputs
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
from onnx import helper, numpy_helper

SPECIAL_POINTS = {"linear": ["ConvTranspose"]}

Shape = tuple[int, ...]


def spread(x: Array, w: Array, bias: Array | None = None, **attributes: Any) -> Array:
    """The definition: every element of X adds its multiple of the kernel to the result."""
    axes = x.ndim - 2
    strides = attributes.get("strides", (1,) * axes)
    dilations = attributes.get("dilations", (1,) * axes)
    extra = attributes.get("output_padding", (0,) * axes)
    pads = list(attributes.get("pads", (0,) * (2 * axes)))
    auto_pad = attributes.get("auto_pad", "NOTSET")
    group = attributes.get("group", 1)
    full = [
        (x.shape[2 + i] - 1) * strides[i] + (w.shape[2 + i] - 1) * dilations[i] + 1 + extra[i]
        for i in range(axes)
    ]
    wanted = attributes.get("output_shape")
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [x.shape[2 + i] * strides[i] for i in range(axes)]
    if wanted is not None:
        for i in range(axes):
            total = max(0, full[i] - wanted[i])
            pads[i] = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            pads[axes + i] = total - pads[i]
    else:
        wanted = [full[i] - pads[i] - pads[axes + i] for i in range(axes)]
    room = [max(f, p + o) for f, p, o in zip(full, pads, wanted, strict=False)]
    filters = w.shape[1]
    y = np.zeros((x.shape[0], filters * group, *room), x.dtype)
    each = x.shape[1] // group
    for g in range(group):
        source, weights = x[:, g * each : (g + 1) * each], w[g * each : (g + 1) * each]
        for position in np.ndindex(*w.shape[2:]):
            places = tuple(
                slice(p * d, p * d + (n - 1) * s + 1, s)
                for p, d, n, s in zip(position, dilations, x.shape[2:], strides, strict=True)
            )
            part = np.einsum("nc...,cf->nf...", source, weights[(slice(None), slice(None), *position)])
            y[(slice(None), slice(g * filters, (g + 1) * filters), *places)] += part
    y = y[(slice(None), slice(None), *(slice(p, p + o) for p, o in zip(pads, wanted, strict=False)))]
    return y if bias is None else y + bias.reshape(-1, *(1,) * axes)


# name: shape of X, shape of W, attributes
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1d": ((2, 3, 5), (3, 4, 3), {}),
    "1d-strided-dilated": ((2, 3, 4), (3, 2, 3), {"strides": (2,), "dilations": (2,), "pads": (1, 2)}),
    "pointwise": ((2, 5, 4, 3), (5, 6, 1, 1), {}),
    "doubling": ((2, 4, 3, 4), (4, 2, 2, 2), {"strides": (2, 2)}),
    "one-of-each": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "padded": ((2, 3, 4, 5), (3, 4, 3, 3), {"pads": (1, 1, 1, 1)}),
    "asymmetric": ((2, 3, 4, 5), (3, 2, 4, 3), {"pads": (2, 0, 1, 1), "strides": (2, 3)}),
    "output-padding": (
        (2, 3, 3, 4),
        (3, 2, 3, 3),
        {"strides": (2, 3), "pads": (1, 1, 1, 1), "output_padding": (1, 2)},
    ),
    "padding-beyond-the-stride": (
        (1, 2, 3, 2),
        (2, 3, 2, 2),
        {"dilations": (3, 3), "strides": (2, 1), "output_padding": (2, 2)},
    ),
    "gaps": ((1, 2, 3, 3), (2, 2, 2, 1), {"strides": (4, 3)}),
    "output-shape": ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (3, 2), "output_shape": (8, 6)}),
    "output-shape-upper": (
        (1, 2, 3, 3),
        (2, 2, 3, 3),
        {"strides": (3, 2), "output_shape": (8, 6), "auto_pad": "SAME_UPPER"},
    ),
    "output-shape-beyond": ((1, 2, 3, 3), (2, 2, 3, 3), {"strides": (3, 2), "output_shape": (10, 8)}),
    "same-upper": ((1, 2, 3, 4), (2, 3, 3, 4), {"strides": (2, 1), "auto_pad": "SAME_UPPER"}),
    "same-lower": ((1, 2, 3, 4), (2, 3, 3, 4), {"strides": (2, 1), "auto_pad": "SAME_LOWER"}),
    "valid": ((1, 2, 3, 4), (2, 3, 2, 2), {"strides": (2, 1), "auto_pad": "VALID"}),
    "grouped": ((2, 4, 3, 3), (4, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "depthwise": ((2, 3, 4, 3), (3, 1, 3, 3), {"group": 3, "strides": (2, 1), "pads": (1, 0, 0, 1)}),
    "3d": ((1, 2, 2, 3, 2), (2, 3, 2, 3, 2), {"strides": (1, 2, 2), "pads": (0, 1, 0, 1, 1, 0)}),
    "3d-grouped": ((1, 4, 2, 2, 3), (4, 1, 2, 2, 2), {"group": 2, "dilations": (1, 1, 2)}),
}

# Channel counts that are multiples of a vector, and others.
FLOAT_CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    **CASES,
    "decoder": ((2, 64, 7, 9), (64, 32, 2, 2), {"strides": (2, 2)}),
    "decoder-3x3": (
        (2, 32, 7, 9),
        (32, 16, 3, 3),
        {"strides": (2, 2), "pads": (1, 1, 1, 1), "output_padding": (1, 1)},
    ),
    "generator": ((3, 48, 5, 4), (48, 32, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "to-image": ((2, 32, 9, 11), (32, 3, 4, 4), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
    "odd-channels": ((3, 13, 6, 5), (13, 27, 3, 3), {"pads": (1, 1, 1, 1)}),
    "blocked-grouped": ((2, 64, 5, 6), (64, 16, 3, 3), {"group": 4, "strides": (2, 2)}),
    "blocked-depthwise": ((2, 32, 5, 6), (32, 1, 3, 3), {"group": 32, "strides": (2, 2)}),
    "wide-1d": ((4, 20, 25), (20, 24, 5), {"strides": (2,), "pads": (2, 2)}),
    "wide-3d": ((2, 16, 3, 4, 5), (16, 16, 2, 2, 2), {"strides": (2, 2, 2)}),
    "long-lines": ((2, 8, 1100), (8, 6, 2), {"strides": (2,)}),
    "wide-images": ((2, 4, 3, 700), (4, 5, 2, 2), {"strides": (2, 2)}),
}


def inputs_of(case: tuple[Shape, Shape, dict[str, Any]]) -> tuple[Array, Array, Array]:
    x, w, attributes = case
    return uniform(*x), uniform(*w, seed=1), uniform(w[1] * attributes.get("group", 1), seed=2)


def grad(attributes: dict[str, Any], wanted: tuple[bool, ...] = (True, True, True)) -> Op:
    return Op("ConvTransposeGrad", attributes, domain=MICROSOFT, outputs=wanted)


@pytest.mark.parametrize("name", CASES)
def test_conv_transpose_equals_its_definition(name: str) -> None:
    attributes = CASES[name][2]
    x, w, bias = inputs_of(CASES[name])
    op = Op("ConvTranspose", attributes)
    check_forward(op, [x, w], [spread(x, w, **attributes)])
    check_forward(op, [x, w, bias], [spread(x, w, bias, **attributes)])


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_float_conv_transpose_agrees_with_double(name: str) -> None:
    attributes = FLOAT_CASES[name][2]
    inputs = inputs_of(FLOAT_CASES[name])
    expected = spread(*inputs, **attributes)
    single = [v.astype(np.float32) for v in inputs]
    for constants in ((), (1, 2), (0, 1, 2)):
        found = run(Op("ConvTranspose", attributes), single, constants)[0]
        np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_conv_transpose(name: str) -> None:
    check_gradient(Op("ConvTranspose", CASES[name][2]), list(inputs_of(CASES[name])))


@pytest.mark.parametrize("wrt", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_gradient_of_some_inputs_of_conv_transpose(wrt: tuple[int, ...]) -> None:
    check_gradient(Op("ConvTranspose", CASES["asymmetric"][2]), list(inputs_of(CASES["asymmetric"])), wrt=wrt)


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_float_conv_transpose_gradient_agrees_with_double(name: str) -> None:
    attributes = FLOAT_CASES[name][2]
    x, w, _ = inputs_of(FLOAT_CASES[name])
    dy = uniform(*spread(x, w, **attributes).shape, seed=3)
    check_float_agrees_with_double(partial(grad, attributes), [dy, x, w])


@pytest.mark.parametrize("wanted", SOME_OUTPUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_conv_transpose_gradient_makes_what_is_wanted(wanted: tuple[bool, ...], dtype: Any) -> None:
    attributes = FLOAT_CASES["decoder"][2]
    x, w, _ = inputs_of(FLOAT_CASES["decoder"])
    dy = uniform(*spread(x, w, **attributes).shape, seed=3)
    check_wanted_outputs(partial(grad, attributes), [dy, x, w], wanted, dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_empty_batch_gives_empty_results_and_zero_gradients(dtype: Any) -> None:
    x, w, bias = (v.astype(dtype) for v in (np.zeros((0, 3, 5, 5)), uniform(3, 4, 2, 2), uniform(4)))
    assert run(Op("ConvTranspose"), [x, w, bias])[0].shape == (0, 4, 6, 6)
    dx, dw, db = run(grad({}), [np.zeros((0, 4, 6, 6), dtype), x, w])
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    assert not dw.any()
    assert db.shape == bias.shape
    assert not db.any()


def test_transposed_convolutions_that_do_not_fit_are_rejected() -> None:
    x, w = uniform(2, 4, 5, 5), uniform(4, 3, 3, 3)
    op = "ConvTranspose"
    check_rejected(Op(op), [x, uniform(3, 4, 3, 3)], "4 channels.*take 3")
    check_rejected(Op(op, {"group": 3}), [x, w], "4 channels.*3 groups")
    check_rejected(Op(op, {"group": 0}), [x, w], "group must be at least 1, found 0")
    check_rejected(Op(op), [x, uniform(4, 3, 3)], "as many axes")
    check_rejected(Op(op), [uniform(2, 4), uniform(4, 3)], "must have shape")
    check_rejected(Op(op), [x, w, uniform(4)], r"bias B must have shape \[3\], found \[4\]")
    check_rejected(Op(op, {"pads": (1, 1)}), [x, w], "pads must have 4 values")
    check_rejected(Op(op, {"pads": (4, 0, 4, 0)}), [x, w], "leave nothing of 7")
    check_rejected(Op(op, {"strides": (0, 1)}), [x, w], "strides must be at least 1")
    check_rejected(Op(op, {"output_padding": (-1, 0)}), [x, w], "at least 0")
    check_rejected(Op(op, {"output_shape": (5,)}), [x, w], "output_shape must have 2 values")
    check_rejected(Op(op, {"kernel_shape": (2, 2)}), [x, w], "kernel_shape")
    check_rejected(Op(op, {"auto_pad": "SAME"}), [x, w], "found 'SAME'")
    check_rejected(Op(op), [x, w.astype(np.float32)], "the same type")
    check_rejected(grad({}), [uniform(2, 3, 5, 5), x, w], r"dY must have shape \[2, 3, 7, 7\]")


def test_a_decoder_in_float_agrees_with_double() -> None:
    """Convolution, transposed convolution, resize and normalization, which pass their layouts on."""
    x = uniform(2, 3, 8, 10)
    weights = {
        "down": uniform(16, 3, 3, 3, seed=1),
        "up": uniform(16, 8, 2, 2, seed=2),
        "scale": uniform(8, low=0.5, high=1.5, seed=3),
        "shift": uniform(8, seed=4),
        "last": uniform(4, 11, 3, 3, seed=5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "down"], ["a"], pads=(1, 1, 1, 1), strides=(2, 2)),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ConvTranspose", ["b", "up"], ["c"], strides=(2, 2)),
        helper.make_node("InstanceNormalization", ["c", "scale", "shift"], ["d"]),
        helper.make_node("Concat", ["d", "x"], ["e"], axis=1),
        helper.make_node("Resize", ["e", "", "twice"], ["f"], mode="linear"),
        helper.make_node("Conv", ["f", "last"], ["g"]),
        helper.make_node("Mul", ["g", "g"], ["h"]),
        helper.make_node("ReduceMean", ["h"], ["loss"], keepdims=0),
    ]
    gradients = {}
    for dtype in (np.float64, np.float32):
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        constants = {**{n: w.astype(dtype) for n, w in weights.items()}, "twice": np.float32([1, 1, 2, 2])}
        graph = helper.make_graph(
            nodes,
            "decoder",
            [helper.make_tensor_value_info("x", kind, ["batch", 3, "h", "w"])],
            [helper.make_tensor_value_info("loss", kind, [])],
            [numpy_helper.from_array(value, name) for name, value in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        training = gradient_model(model.SerializeToString(), ["x", *weights], "loss")
        gradients[dtype] = run_model(training, {"x": x.astype(dtype)})
    for name, expected in gradients[np.float64].items():
        found = gradients[np.float32][name]
        np.testing.assert_allclose(found, expected, 0, 2e-5 * np.abs(expected).max(), err_msg=name)
