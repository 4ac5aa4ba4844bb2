"""DeformConv, against onnx.reference and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not recorded": ["DeformConv"]}

DEFORMED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 4, 4), (2, 2, 2, 2), {}),
    ((2, 2, 5, 4), (4, 1, 3, 2), {"group": 2, "pads": [1, 1, 1, 0], "strides": [2, 1]}),
    ((1, 4, 4, 4), (2, 4, 2, 2), {"offset_group": 2, "dilations": [2, 1]}),
    ((1, 4, 3, 3), (4, 2, 2, 2), {"group": 2, "offset_group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 2, 6), (3, 2, 3), {"pads": [1, 1]}),
    ((1, 1, 3, 3, 3), (2, 1, 2, 2, 2), {}),
]


def deformed_inputs(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], *, bias: bool, mask: bool
) -> list[Array | None]:
    axes = len(x_shape) - 2
    kernel = w_shape[2:]
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    pads = attributes.get("pads", [0] * 2 * axes)
    out = [
        (x_shape[2 + i] + pads[i] + pads[axes + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(axes)
    ]
    taps = attributes.get("offset_group", 1) * int(np.prod(kernel))
    n = x_shape[0]
    # No point lies on a pixel, where the interpolation has a kink.
    offset = np.round(uniform(n, taps * axes, *out, low=-1.5, high=1.5) * 3) / 3 + 0.13
    return [
        uniform(*x_shape),
        uniform(*w_shape, seed=1),
        offset,
        uniform(w_shape[0], seed=2) if bias else None,
        uniform(n, taps, *out, low=0.2, seed=3) if mask else None,
    ]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), DEFORMED)
@pytest.mark.parametrize(("bias", "mask"), [(False, False), (True, True), (False, True)])
def test_deform_conv(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], bias: bool, mask: bool
) -> None:
    inputs = deformed_inputs(x_shape, w_shape, attributes, bias=bias, mask=mask)
    op = Op("DeformConv", attributes, opset=22)
    if len(x_shape) == 4 and min(x_shape[2:]) > 1:
        check_forward(op, inputs, rtol=1e-5)  # the reference samples in float
    check_gradient(op, inputs)


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), DEFORMED)
def test_deform_conv_without_offsets_is_a_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    inputs = deformed_inputs(x_shape, w_shape, attributes, bias=True, mask=False)
    plain = {name: value for name, value in attributes.items() if name != "offset_group"}
    (expected,) = check_forward(Op("Conv", plain), [inputs[0], inputs[1], inputs[3]], rtol=1e-9)
    assert inputs[2] is not None
    inputs[2] = np.zeros_like(inputs[2])
    check_forward(Op("DeformConv", attributes, opset=19), inputs, [expected], rtol=1e-12)


def test_deform_conv_rejects_what_does_not_fit() -> None:
    inputs = deformed_inputs((1, 2, 4, 4), (2, 2, 2, 2), {}, bias=False, mask=False)
    inputs[2] = uniform(1, 8, 3, 2)
    check_rejected(Op("DeformConv"), inputs, "offsets must be")
