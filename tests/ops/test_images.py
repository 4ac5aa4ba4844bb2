"""Operators that cut, join and place images: CenterCropPad, Col2Im, AffineGrid, GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, run, uniform


@pytest.mark.parametrize("target", [(3, 5), (4, 7), (6, 8), (1, 9), (9, 1), (4, 0), (5, 6)], ids=str)
@pytest.mark.parametrize("axes", [None, (0, 1), (1, 0), (-1, -2)], ids=str)
def test_center_crop_pad(axes: tuple[int, ...] | None, target: tuple[int, int]) -> None:
    op = Op("CenterCropPad", {} if axes is None else {"axes": axes}, opset=18)
    inputs = [uniform(4, 7), np.array(target)]
    check_forward(op, inputs, constants=(1,))
    check_forward(op, [inputs[0].astype(np.float32), inputs[1]], constants=(1,))
    check_gradient(op, inputs, constants=(1,))


def test_center_crop_pad_of_some_axes_and_of_integers() -> None:
    op = Op("CenterCropPad", {"axes": (-2,)}, opset=18)
    check_forward(op, [np.arange(24).reshape(2, 3, 4), np.array([6])], constants=(1,))
    check_gradient(op, [uniform(2, 3, 2), np.array([6])], constants=(1,))
    check_rejected(op, [uniform(2, 3), np.array([1, 2])], "each of 1 axes", constants=(1,))
    check_rejected(op, [uniform(2, 3), np.array([-1])], "negative", constants=(1,))


COLUMNS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "tiles": ((4, 6), (2, 3), {"strides": (2, 3)}),
    "overlapping": ((5, 4), (3, 2), {}),
    "padded": ((4, 5), (3, 3), {"pads": (1, 0, 1, 2), "strides": (2, 1)}),
    "dilated": ((6, 5), (2, 2), {"dilations": (3, 2)}),
    "1d": ((7,), (3,), {"strides": (2,), "pads": (1, 1)}),
    "3d": ((3, 4, 2), (2, 2, 1), {"strides": (1, 2, 1), "pads": (0, 0, 1, 0, 0, 1)}),
    "one": ((1, 1), (1, 1), {}),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_col2im(name: str) -> None:
    image, block, attributes = COLUMNS[name]
    axes = len(image)
    pads = attributes.get("pads", (0,) * 2 * axes)
    windows = 1
    for i in range(axes):
        span = (block[i] - 1) * attributes.get("dilations", (1,) * axes)[i] + 1
        stride = attributes.get("strides", (1,) * axes)[i]
        windows *= (image[i] + pads[i] + pads[axes + i] - span) // stride + 1
    x = uniform(2, 3 * int(np.prod(block)), windows)
    inputs = [x, np.array(image), np.array(block)]
    op = Op("Col2Im", attributes, opset=18)
    check_forward(op, inputs, constants=(1, 2))
    check_forward(op, [x.astype(np.float32), *inputs[1:]], constants=(1, 2))
    check_gradient(op, [x[:1, : int(np.prod(block)) * 2], *inputs[1:]], constants=(1, 2))


def test_col2im_refuses_columns_that_do_not_fit() -> None:
    image, block = np.array([4, 4]), np.array([2, 2])
    for shape in ((1, 5, 9), (1, 4, 8), (4, 9)):
        check_rejected(
            Op("Col2Im", opset=18), [uniform(*shape), image, block], r"\[N, C x 4, 9\]", constants=(1, 2)
        )
    check_rejected(
        Op("Col2Im", opset=18), [uniform(1, 4, 9), image, np.array([5, 1])], "does not fit", constants=(1, 2)
    )


def test_col2im_of_an_empty_batch() -> None:
    inputs = [np.zeros((0, 4, 9)), np.array([4, 4]), np.array([2, 2])]
    assert run(Op("Col2Im", opset=18), inputs, (1, 2))[0].shape == (0, 1, 4, 4)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 3), (2, 1, 3, 2, 4), (0, 1, 2, 2)], ids=str)
def test_affine_grid(size: tuple[int, ...], align: int) -> None:
    axes = len(size) - 2
    theta = uniform(size[0], axes, axes + 1, low=-2, high=2)
    lines = [2 * np.arange(n) / (n - 1) - 1 if align else (2 * np.arange(n) + 1) / n - 1 for n in size[2:]]
    places = np.meshgrid(*lines, indexing="ij")[::-1]
    homogeneous = np.stack([*places, np.ones(size[2:])], -1)
    expected = np.einsum("nrk,...k->n...r", theta, homogeneous)
    op = Op("AffineGrid", {"align_corners": align}, opset=20)
    inputs = [theta, np.array(size)]
    check_forward(op, inputs, [expected], constants=(1,))
    check_forward(op, [theta.astype(np.float32), inputs[1]], [expected.astype(np.float32)], constants=(1,))
    check_gradient(op, inputs, constants=(1,))


def test_affine_grid_refuses_what_does_not_fit() -> None:
    theta = uniform(2, 2, 3)
    op = Op("AffineGrid", opset=20)
    check_rejected(op, [theta, np.array([1, 1, 2, 2])], r"theta must have shape \[1, 2, 3\]", constants=(1,))
    check_rejected(op, [theta, np.array([2, 1, 2])], "size must be", constants=(1,))
