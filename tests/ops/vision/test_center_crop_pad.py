"""CenterCropPad, against the reference evaluator and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["CenterCropPad"]}


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
    check_rejected(op, [uniform(2, 3), np.array([1, 2])], "each of 1 axis", constants=(1,))
    check_rejected(op, [uniform(2, 3), np.array([-1])], "negative", constants=(1,))
