"""Col2Im, against the reference evaluator and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, run, uniform

SPECIAL_POINTS = {"linear": ["Col2Im"]}

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


def test_col2im_rejects_columns_that_do_not_fit() -> None:
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
