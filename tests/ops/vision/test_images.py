"""Operators that crop, assemble and sample images: CenterCropPad, Col2Im, AffineGrid, GridSample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, make_model, run, uniform
from onnx.reference import ReferenceEvaluator


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


def sample(x: Array, grid: Array, mode: str, padding: str, align: int) -> Array:
    """The reference implementation, which stores coordinates in float."""
    op = Op(
        "GridSample",
        {"mode": mode, "padding_mode": padding, "align_corners": align},
        opset=20,
    )
    return ReferenceEvaluator(make_model(op, [x, grid])).run(None, {"x0": x, "x1": grid})[0]


GRIDS = {
    "1d": ((2, 2, 6), (2, 5, 1)),
    "2d": ((2, 3, 4, 5), (2, 3, 4, 2)),
    "2d-narrow": ((1, 1, 1, 3), (1, 2, 3, 2)),
    "3d": ((1, 2, 3, 4, 2), (1, 2, 2, 3, 3)),
}


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("name", GRIDS)
def test_grid_sample(name: str, mode: str, padding: str, align: int) -> None:
    if "narrow" in name and align and padding == "reflection":
        pytest.skip("a single pixel has no inside to be mirrored into")
    shape, places = GRIDS[name]
    x = uniform(*shape)
    for reach in (0.9, 2.7):
        grid = uniform(*places, low=-reach, high=reach, seed=int(10 * reach))
        op = Op("GridSample", {"mode": mode, "padding_mode": padding, "align_corners": align}, opset=20)
        expected = sample(x, grid, mode, padding, align)
        check_forward(op, [x, grid], [expected], rtol=2e-5)
        single = [x.astype(np.float32), grid.astype(np.float32)]
        check_forward(op, single, [expected.astype(np.float32)], rtol=2e-5)
        check_gradient(op, [x, grid], step=1e-6)


@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_by_its_older_names(mode: str) -> None:
    inputs = [uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)]
    newer = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[mode]
    expected = run(Op("GridSample", {"mode": newer}, opset=20), inputs)
    check_forward(Op("GridSample", {"mode": mode}, opset=16), inputs, expected)
    check_gradient(Op("GridSample", {"mode": mode}, opset=16), inputs)


@pytest.mark.parametrize("wrt", [(0,), (1,)])
def test_gradient_of_some_inputs_of_grid_sample(wrt: tuple[int, ...]) -> None:
    check_gradient(Op("GridSample", opset=16), [uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)], wrt=wrt)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_without_meaning_read_nothing_they_may_not(padding: str) -> None:
    grid = np.array([np.nan, 0, np.inf, 0, 1e300, 0, -1e300, -np.inf, 1e18, -1e18]).reshape(1, 1, 5, 2)
    for mode in ("nearest", "linear", "cubic"):
        for shape in ((1, 2, 3, 4), (1, 2, 1, 1)):
            op = Op("GridSample", {"mode": mode, "padding_mode": padding, "align_corners": 1}, opset=20)
            found = run(op, [np.ones(shape), grid])[0]
            assert np.isfinite(found).all()
            if padding == "zeros" and shape == (1, 2, 3, 4):
                assert not found.any()


def test_grid_sample_of_nothing() -> None:
    op = Op("GridSample", opset=20)
    assert run(op, [np.zeros((0, 2, 3, 3)), np.zeros((0, 4, 5, 2))])[0].shape == (0, 2, 4, 5)
    assert run(op, [np.zeros((1, 2, 3, 3)), np.zeros((1, 0, 5, 2))])[0].shape == (1, 2, 0, 5)
    check_gradient(op, [uniform(1, 2, 3, 3), np.zeros((1, 0, 5, 2))])


def test_grids_that_do_not_fit_are_refused() -> None:
    x, grid = uniform(1, 2, 4, 5), uniform(1, 3, 3, 2)
    op = Op("GridSample", opset=20)
    check_rejected(op, [x, uniform(2, 3, 3, 2)], "first of size 1")
    check_rejected(op, [x, uniform(1, 3, 3, 3)], "last of size 2")
    check_rejected(op, [uniform(1, 2), grid], "must have shape")
    check_rejected(op, [np.zeros((1, 2, 0, 5)), grid], "no elements to sample")
    check_rejected(Op("GridSample", {"mode": "area"}, opset=20), [x, grid], "found 'area'")
    check_rejected(Op("GridSample", {"padding_mode": "wrap"}, opset=20), [x, grid], "found 'wrap'")
