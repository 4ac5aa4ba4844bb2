"""Convolution in one to three dimensions against its definition, its gradients against finite differences."""

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
    make_model,
    run,
    run_model,
    uniform,
)
from onnx import helper

SPECIAL_POINTS = {"linear": ["Conv"]}

Shape = tuple[int, ...]


def convolve(
    x: Array,
    w: Array,
    bias: Array | None = None,
    *,
    strides: Shape | None = None,
    pads: Shape | None = None,
    dilations: Shape | None = None,
    group: int = 1,
    kernel_shape: Shape | None = None,
) -> Array:
    """Convolution as ONNX defines it, summed over the kernel's elements one by one."""
    axes = x.ndim - 2
    strides, dilations = strides or (1,) * axes, dilations or (1,) * axes
    pads = pads or (0,) * (2 * axes)
    assert kernel_shape is None or kernel_shape == w.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[axes + i]) for i in range(axes))])
    outputs = [
        (padded.shape[2 + i] - (w.shape[2 + i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(axes)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *outputs), x.dtype)
    inputs_each, filters_each = w.shape[1], w.shape[0] // group
    for position in np.ndindex(*w.shape[2:]):
        window = [
            slice(p * d, p * d + (o - 1) * s + 1, s)
            for p, d, o, s in zip(position, dilations, outputs, strides, strict=True)
        ]
        everywhere = (slice(None), slice(None), *window)
        part = padded[everywhere]
        for g in range(group):
            filters = slice(g * filters_each, (g + 1) * filters_each)
            at = (filters, slice(None), *position)
            weights = w[at]
            values = part[:, g * inputs_each : (g + 1) * inputs_each]
            y[:, filters] += np.einsum("fc,nc...->nf...", weights, values)
    return y if bias is None else y + bias.reshape(-1, *(1,) * axes)


# name: shape of X, shape of W, attributes
CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "1d-strided-dilated": ((2, 3, 11), (4, 3, 3), {"strides": (2,), "dilations": (2,), "pads": (1, 2)}),
    "pointwise": ((2, 5, 4, 3), (6, 5, 1, 1), {}),
    "pointwise-strided": ((2, 4, 5, 7), (6, 4, 1, 1), {"strides": (2, 2)}),
    "same-3x3": ((2, 3, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "one-of-each": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "asymmetric-pads": ((2, 3, 5, 6), (4, 3, 3, 2), {"pads": (2, 0, 1, 1)}),
    "strided": ((2, 3, 7, 8), (5, 3, 3, 3), {"strides": (2, 3), "pads": (1, 1, 1, 1)}),
    "dilated": ((1, 2, 9, 8), (3, 2, 3, 2), {"dilations": (2, 3), "pads": (2, 1, 0, 3)}),
    "grouped": ((2, 6, 5, 5), (4, 3, 3, 3), {"group": 2, "pads": (1, 1, 1, 1)}),
    "depthwise": ((2, 4, 6, 5), (4, 1, 3, 3), {"group": 4, "pads": (1, 1, 1, 1), "strides": (2, 1)}),
    "depthwise-multiplied": ((2, 3, 5, 5), (6, 1, 3, 3), {"group": 3}),
    "large-kernel": ((1, 2, 6, 6), (2, 2, 5, 6), {"pads": (4, 5, 4, 5)}),
    "3d": ((2, 2, 4, 5, 3), (3, 2, 2, 3, 2), {"pads": (1, 0, 1, 0, 1, 0), "strides": (1, 2, 1)}),
    "3d-grouped": ((1, 4, 3, 3, 4), (6, 2, 2, 2, 2), {"group": 2, "dilations": (1, 1, 2)}),
}

# Channel counts that are multiples of a vector, and others.
FLOAT_CASES: dict[str, tuple[Shape, Shape, dict[str, Any]]] = {
    **CASES,
    "image": ((4, 3, 17, 15), (32, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    "image-patches": ((2, 3, 32, 32), (48, 3, 8, 8), {"strides": (8, 8)}),
    "gray": ((8, 1, 28, 28), (32, 1, 3, 3), {}),
    "blocked": ((4, 32, 9, 11), (64, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "blocked-strided": ((4, 32, 9, 11), (64, 32, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    "blocked-shortcut": ((4, 64, 8, 8), (128, 64, 1, 1), {"strides": (2, 2)}),
    "blocked-depthwise": ((4, 32, 9, 11), (32, 1, 3, 3), {"pads": (1, 1, 1, 1), "group": 32}),
    "blocked-grouped": ((4, 64, 9, 11), (64, 16, 3, 3), {"pads": (1, 1, 1, 1), "group": 4}),
    "odd-channels": ((3, 13, 9, 11), (27, 13, 3, 3), {"pads": (1, 1, 1, 1)}),
    "odd-groups": ((3, 15, 9, 11), (21, 5, 3, 3), {"group": 3, "pads": (2, 1, 0, 1)}),
    "odd-depthwise": ((3, 11, 9, 8), (11, 1, 5, 3), {"group": 11, "strides": (2, 1)}),
    "one-column": ((2, 32, 40, 1), (48, 32, 5, 1), {"pads": (2, 0, 1, 0)}),
    "one-column-grouped": (
        (2, 32, 40, 1),
        (64, 16, 3, 1),
        {"group": 2, "strides": (2, 3), "dilations": (3, 1)},
    ),
    "one-column-depthwise": ((3, 16, 21, 1), (16, 1, 7, 1), {"group": 16, "pads": (3, 0, 3, 0)}),
    "one-padded-column": ((2, 16, 20, 1), (16, 16, 3, 3), {"pads": (1, 1, 1, 1)}),
    "few-filters": ((2, 8, 11, 70), (8, 8, 3, 13), {"pads": (1, 6, 1, 6)}),
    "few-filters-strided": (
        (1, 3, 13, 40),
        (5, 3, 4, 3),
        {"pads": (0, 1, 3, 2), "strides": (2, 1), "dilations": (1, 5)},
    ),
    "one-filter": ((2, 33, 9, 88), (1, 33, 3, 3), {"pads": (1, 1, 1, 1)}),
    "one-filter-1d": ((2, 5, 300), (1, 5, 64), {"pads": (60, 1)}),
    "few-filters-phases": ((2, 12, 5, 200), (3, 12, 2, 9), {"pads": (0, 3, 1, 4), "strides": (1, 2)}),
    "few-filters-taps": (
        (1, 1, 5, 300),
        (7, 1, 2, 13),
        {"pads": (1, 0, 0, 5), "strides": (1, 4), "dilations": (1, 6)},
    ),
    "few-filters-odd-taps": ((1, 2, 300), (2, 2, 13), {"pads": (3, 9), "strides": (3,), "dilations": (2,)}),
    "few-filters-planes": (
        (1, 3, 4, 6, 33),
        (2, 3, 1, 3, 3),
        {"pads": (0, 1, 1, 0, 1, 1), "strides": (2, 2, 1)},
    ),
    "few-filters-3d": ((1, 2, 4, 5, 37), (3, 2, 2, 3, 5), {"pads": (1, 0, 2, 0, 2, 2), "strides": (1, 2, 1)}),
    "depthwise-bands": ((2, 3, 150, 130), (3, 1, 3, 3), {"group": 3, "pads": (1, 1, 1, 1)}),
    "depthwise-bands-strided": (
        (1, 2, 151, 260),
        (2, 1, 5, 3),
        {"group": 2, "pads": (2, 0, 1, 3), "strides": (2, 2)},
    ),
    "depthwise-dilated": (
        (2, 5, 23, 27),
        (5, 1, 3, 5),
        {"group": 5, "pads": (3, 4, 1, 5), "strides": (3, 2), "dilations": (2, 3)},
    ),
    "depthwise-1d": ((2, 6, 3000), (6, 1, 31), {"group": 6, "pads": (15, 9)}),
    "depthwise-7x7": ((2, 20, 14, 14), (20, 1, 7, 7), {"group": 20, "pads": (3, 3, 3, 3)}),
    "depthwise-unread": ((1, 4, 10, 11), (4, 1, 2, 1), {"group": 4, "strides": (4, 3)}),
    "depthwise-pads": ((1, 4, 3, 2), (4, 1, 2, 2), {"group": 4, "pads": (5, 3, 4, 6), "strides": (1, 2)}),
    "depthwise-3d": ((1, 4, 3, 5, 6), (4, 1, 2, 3, 3), {"group": 4, "pads": (1,) * 6}),
    "wide-1d": ((4, 20, 50), (24, 20, 5), {"pads": (2, 2), "dilations": (1,)}),
    "wide-3d": ((2, 16, 6, 7, 5), (16, 16, 3, 3, 3), {"pads": (1,) * 6}),
    "long-lines": ((2, 8, 2101), (6, 8, 3), {"strides": (2,)}),
    "long-lines-strided": ((3, 6, 3302), (4, 6, 1), {"strides": (3,)}),
    "wide-images": ((2, 4, 6, 1400), (5, 4, 2, 2), {"strides": (2, 2)}),
}


def drawn(seed: int) -> tuple[Shape, Shape, dict[str, Any]]:
    """Return a random convolution of up to a few million multiplications, often with long lines."""
    rng = np.random.default_rng(seed)
    while True:
        axes = int(rng.integers(1, 4))
        lines = {1: (1, 5000), 2: (1, 80), 3: (1, 14)}[axes]
        inputs = rng.integers(*lines, axes)
        if axes == 2 and rng.random() < 0.3:
            inputs = np.array([rng.integers(1, 6), rng.integers(500, 3000)])
        kernel, strides = rng.choice([1, 2, 3, 3, 5], axes), rng.choice([1, 1, 2, 3], axes)
        dilations = rng.choice([1, 1, 2], axes)
        pads = rng.integers(0, 3, 2 * axes) * (rng.random() < 0.5)
        group = int(rng.choice([1, 1, 2]))
        batch, channels, filters = int(rng.integers(1, 6)), *(int(n) * group for n in rng.integers(1, 40, 2))
        rest = inputs + pads[:axes] + pads[axes:] - (kernel - 1) * dilations - 1
        multiplications = batch * filters * channels // group * np.prod(kernel) * np.prod(rest // strides + 1)
        if rest.min() >= 0 and multiplications < 1e7:
            break
    attributes = {"strides": strides, "pads": pads, "dilations": dilations}
    return (
        (batch, channels, *inputs.tolist()),
        (filters, channels // group, *kernel.tolist()),
        {**{name: tuple(values.tolist()) for name, values in attributes.items()}, "group": group},
    )


def inputs_of(case: tuple[Shape, Shape, dict[str, Any]]) -> tuple[Array, Array, Array]:
    x, w, _ = case
    return uniform(*x), uniform(*w, seed=1), uniform(w[0], seed=2)


@pytest.mark.parametrize("name", CASES)
def test_conv_equals_its_definition(name: str) -> None:
    attributes = CASES[name][2]
    x, w, bias = inputs_of(CASES[name])
    check_forward(Op("Conv", attributes), [x, w], [convolve(x, w, **attributes)])
    check_forward(Op("Conv", attributes), [x, w, bias], [convolve(x, w, bias, **attributes)])


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_float_conv_agrees_with_double(name: str) -> None:
    attributes = FLOAT_CASES[name][2]
    inputs = inputs_of(FLOAT_CASES[name])
    expected = convolve(*inputs, **attributes)
    found = run(Op("Conv", attributes), [v.astype(np.float32) for v in inputs])[0]
    np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_float_conv_with_constant_weights_agrees_with_double(name: str) -> None:
    attributes = FLOAT_CASES[name][2]
    inputs = inputs_of(FLOAT_CASES[name])
    expected = convolve(*inputs, **attributes)
    single = [v.astype(np.float32) for v in inputs]
    limit = 1e-5 * np.abs(expected).max()
    np.testing.assert_allclose(run(Op("Conv", attributes), single, (1, 2))[0], expected, 0, limit)
    addend = uniform(*expected.shape, seed=4)
    fused = Op("FusedConv", {**attributes, "activation": "Relu"}, MICROSOFT)
    found = run(fused, [*single, addend.astype(np.float32)], (1, 2))[0]
    np.testing.assert_allclose(found, np.maximum(expected + addend, 0), 0, limit)


def test_a_convolution_with_few_filters_does_not_hide_nan() -> None:
    x, w = uniform(1, 2, 3, 40, dtype=np.float32), uniform(2, 2, 1, 3, dtype=np.float32)
    x[0, 1, 2, 20] = np.nan
    found = run(Op("FusedConv", {"activation": "Relu"}, MICROSOFT), [x, w], (1,))[0]
    assert np.isnan(found).sum() == 6
    assert np.isnan(found[0, :, 2, 18:21]).all()


@pytest.mark.parametrize("at", [(0, 0), (3, 8), (9, 4), (9, 8)], ids=str)
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_spreads_no_further_in_depthwise_convolutions(at: Shape, value: float) -> None:
    attributes = {"group": 2, "pads": (1, 1, 1, 1), "strides": (1, 2)}
    x, w = uniform(2, 2, 10, 9, dtype=np.float32), np.abs(uniform(2, 1, 3, 3, dtype=np.float32))
    x[(0, 1, *at)] = value
    found = run(Op("Conv", attributes), [x, w])[0]
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(convolve(x, w, **attributes)))
    dy = uniform(*found.shape, dtype=np.float32, seed=3)
    double = run(conv_grad(attributes), [v.astype(np.float64) for v in (dy, x, w)])
    for one, two in zip(run(conv_grad(attributes), [dy, x, w]), double, strict=True):
        np.testing.assert_allclose(one, two, 1e-5, 1e-5)


def test_a_convolution_of_constants_is_computed_beforehand() -> None:
    attributes = FLOAT_CASES["blocked"][2]
    inputs = [v.astype(np.float32) for v in inputs_of(FLOAT_CASES["blocked"])]
    expected = run(Op("Conv", attributes), inputs)[0]
    np.testing.assert_allclose(run(Op("Conv", attributes), inputs, (0, 1, 2))[0], expected, 1e-4, 1e-4)


@pytest.mark.parametrize("name", CASES)
def test_gradient_of_conv(name: str) -> None:
    check_gradient(Op("Conv", CASES[name][2]), list(inputs_of(CASES[name])))


@pytest.mark.parametrize("wrt", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)], ids=str)
def test_gradient_of_some_inputs_of_conv(wrt: tuple[int, ...]) -> None:
    check_gradient(Op("Conv", CASES["strided"][2]), list(inputs_of(CASES["strided"])), wrt=wrt)


def conv_grad(attributes: dict[str, Any], wanted: tuple[bool, ...] = (True, True, True)) -> Op:
    return Op("ConvGrad", attributes, domain=MICROSOFT, outputs=wanted)


@pytest.mark.parametrize("name", FLOAT_CASES)
def test_float_conv_gradient_agrees_with_double(name: str) -> None:
    attributes = FLOAT_CASES[name][2]
    x, w, _ = inputs_of(FLOAT_CASES[name])
    dy = uniform(*convolve(x, w, **attributes).shape, seed=3)
    check_float_agrees_with_double(partial(conv_grad, attributes), [dy, x, w])


@pytest.mark.parametrize("first", range(0, 320, 20))
def test_float_convolutions_of_random_shapes_agree_with_double(first: int) -> None:
    for seed in range(first, first + 20):
        case = drawn(seed)
        x, w, _ = inputs_of(case)
        y = convolve(x, w, **case[2])
        found = run(Op("Conv", case[2]), [x.astype(np.float32), w.astype(np.float32)])[0]
        np.testing.assert_allclose(found, y, 0, 1e-5 * np.abs(y).max(), err_msg=str(case))
        check_float_agrees_with_double(partial(conv_grad, case[2]), [uniform(*y.shape, seed=3), x, w])


def depthwise_between_others(seed: int, dtype: Any) -> dict[str, Array]:
    """Return the results and gradients of a random depthwise convolution of what another convolution gives."""
    rng = np.random.default_rng(seed)
    channels, kernel, stride = (
        int(rng.choice(n)) for n in ([3, 8, 20, 40, 70], [2, 3, 3, 5, 5], [1, 1, 2, 3])
    )
    size = rng.integers(kernel, [20, 80])
    pads = rng.integers(0, 3, 4)
    attributes = {"strides": (stride, stride), "pads": tuple(pads.tolist()), "group": channels}
    x, expand = rng.standard_normal((2, 4, *size)), rng.standard_normal((channels, 4, 1, 1))
    w, mix = (
        rng.standard_normal((channels, 1, kernel, kernel)),
        rng.standard_normal((channels, channels, 1, 1)),
    )
    model = make_model(
        Op("Conv", outputs=1),
        [x.astype(dtype), expand.astype(dtype)],
        extra_nodes=[
            helper.make_node("Conv", ["y0", "w"], ["y"], **attributes),
            helper.make_node("Conv", ["y", "mix"], ["dy"]),
            helper.make_node("ConvGrad", ["dy", "y0", "w"], ["dx", "dw"], domain=MICROSOFT, **attributes),
        ],
        extra_constants={"w": w.astype(dtype), "mix": mix.astype(dtype)},
        outputs=["y", "dx", "dw"],
    )
    return run_model(model.SerializeToString(), {"x0": x.astype(dtype), "x1": expand.astype(dtype)})


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_depthwise_convolutions_between_others_agree_with_double(first: int) -> None:
    for seed in range(first, first + 20):
        single, double = (depthwise_between_others(seed, dtype) for dtype in (np.float32, np.float64))
        for name, expected in double.items():
            limit = 2e-5 * np.abs(expected).max()
            np.testing.assert_allclose(single[name], expected, 0, limit, err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize("wanted", SOME_OUTPUTS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_conv_gradient_makes_what_is_wanted(wanted: tuple[bool, ...], dtype: Any) -> None:
    attributes = FLOAT_CASES["blocked"][2]
    x, w, _ = inputs_of(FLOAT_CASES["blocked"])
    dy = uniform(*convolve(x, w, **attributes).shape, seed=3)
    check_wanted_outputs(partial(conv_grad, attributes), [dy, x, w], wanted, dtype)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_auto_pad(auto_pad: str, strides: Shape, kernel: Shape, dtype: Any) -> None:
    x, w = uniform(2, 3, 7, 6), uniform(4, 3, *kernel, seed=1)
    pads: Shape = (0, 0, 0, 0)
    if auto_pad.startswith("SAME"):
        total = [
            max(0, (-(-n // s) - 1) * s + k - n) for n, s, k in zip((7, 6), strides, kernel, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        pads = (*small, *large) if auto_pad == "SAME_UPPER" else (*large, *small)
    op = Op("Conv", {"auto_pad": auto_pad, "strides": strides})
    expected = convolve(x, w, strides=strides, pads=pads)
    check_forward(op, [x.astype(dtype), w.astype(dtype)], [expected.astype(dtype)], rtol=1e-5)
    if dtype == np.float64:
        check_gradient(op, [x[:1], w])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_an_empty_batch_gives_empty_results_and_zero_gradients(dtype: Any) -> None:
    x, w, bias = (v.astype(dtype) for v in (np.zeros((0, 3, 5, 5)), uniform(4, 3, 3, 3), uniform(4)))
    assert run(Op("Conv"), [x, w, bias])[0].shape == (0, 4, 3, 3)
    dx, dw, db = run(conv_grad({}), [np.zeros((0, 4, 3, 3), dtype), x, w])
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    assert not dw.any()
    assert db.shape == bias.shape
    assert not db.any()


def test_convolutions_that_do_not_fit_are_rejected() -> None:
    x, w = uniform(2, 4, 5, 5), uniform(6, 4, 3, 3)
    check_rejected(Op("Conv"), [x, uniform(6, 3, 3, 3)], "4 channels.*take 3")
    check_rejected(Op("Conv", {"group": 4}), [x, uniform(6, 1, 3, 3)], "6 filters.*4 groups")
    check_rejected(Op("Conv", {"group": 0}), [x, w], "group must be at least 1, found 0")
    check_rejected(Op("Conv"), [x, uniform(6, 4, 3)], "as many axes")
    check_rejected(Op("Conv"), [uniform(2, 4), w], "must have shape")
    check_rejected(Op("Conv"), [x, uniform(6, 4, 7, 3)], "spans 7 elements does not fit axis 2")
    check_rejected(Op("Conv"), [x, w, uniform(5)], r"bias B must have shape \[6\], found \[5\]")
    check_rejected(Op("Conv", {"pads": (1, 1)}), [x, w], "pads must have 4 values")
    check_rejected(Op("Conv", {"pads": (-1, 0, 0, 0)}), [x, w], "at least 0")
    check_rejected(Op("Conv", {"strides": (0, 1)}), [x, w], "strides must be at least 1")
    check_rejected(Op("Conv", {"kernel_shape": (2, 2)}), [x, w], "kernel_shape")
    check_rejected(Op("Conv", {"auto_pad": "SAME"}), [x, w], "found 'SAME'")
    check_rejected(Op("Conv"), [x, w.astype(np.float32)], "the same type")
    check_rejected(conv_grad({}), [uniform(2, 6, 5, 5), x, w], r"dY must have shape \[2, 6, 3, 3\]")


ACTIVATIONS = {
    "": lambda v, a, b: v,
    "Relu": lambda v, a, b: np.maximum(v, 0),
    "LeakyRelu": lambda v, a, b: np.where(v < 0, a * v, v),
    "Clip": lambda v, a, b: np.clip(v, a, b),
    "Sigmoid": lambda v, a, b: 1 / (1 + np.exp(-v)),
    "Tanh": lambda v, a, b: np.tanh(v),
    "HardSigmoid": lambda v, a, b: np.clip(a * v + b, 0, 1),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("addend", [False, True], ids=["", "addend"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_fused_convolution(activation, addend, dtype):
    x, w, bias = uniform(2, 4, 6, 5, dtype=dtype), uniform(8, 4, 3, 3, dtype=dtype), uniform(8, dtype=dtype)
    z = uniform(2, 8, 6, 5, dtype=dtype, seed=1)
    attributes: dict[str, Any] = {"pads": (1, 1, 1, 1)}
    if activation:
        attributes["activation"] = activation
    if activation in ("LeakyRelu", "Clip", "HardSigmoid"):
        attributes["activation_params"] = [0.25] if activation == "LeakyRelu" else [0.25, 0.75]
    plain = convolve(x, w, bias, pads=(1, 1, 1, 1)) + (z if addend else 0)
    expected = ACTIVATIONS[activation](plain, 0.25, 0.75)
    op = Op("FusedConv", attributes, domain=MICROSOFT)
    check_forward(op, [x, w, bias, z] if addend else [x, w, bias], [expected.astype(dtype)])


def test_fused_convolution_names_what_it_does_not_take():
    x, w = uniform(1, 1, 3, 3), uniform(1, 1, 3, 3)
    check_rejected(Op("FusedConv", {"activation": "Gelu"}, domain=MICROSOFT), [x, w], "Gelu")
    check_rejected(Op("FusedConv", domain=MICROSOFT), [x, w, None, uniform(1, 1, 3, 3)], "addend Z")


@pytest.mark.parametrize("channels", [16, 24, 40])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_between_pointwise_convolutions(channels, stride):
    """Chains as in mobile networks, where a layout is passed from one convolution to the next."""
    x = uniform(2, 8, 9, 7, dtype=np.float32)
    expand, project = (
        uniform(channels, 8, 1, 1, dtype=np.float32),
        uniform(8, channels, 1, 1, dtype=np.float32),
    )
    deep = uniform(channels, 1, 3, 3, dtype=np.float32, seed=2)
    attributes = {"strides": (stride, stride), "pads": (1, 1, 1, 1), "group": channels}
    model = make_model(
        Op("Conv", outputs=1),
        [x, expand],
        extra_nodes=[
            helper.make_node("Conv", ["y0", "deep"], ["d"], **attributes),
            helper.make_node("Conv", ["d", "project"], ["out"]),
        ],
        extra_constants={"deep": deep, "project": project},
        outputs=["out"],
    )
    found = run_model(model.SerializeToString(), {"x0": x, "x1": expand})["out"]
    expected = convolve(convolve(convolve(x, expand), deep, **attributes), project)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
