"""TensorScatter, against onnx.reference and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"linear": ["TensorScatter"]}

CASES = [
    # cache, update, axis, starts, mode
    ((2, 3, 5, 4), (2, 3, 2, 4), -2, [0, 3], "linear"),
    ((2, 3, 5, 4), (2, 3, 2, 4), 2, [4, 7], "circular"),
    ((3, 4), (3, 4), -1, [1, 2, 3], "circular"),
    ((2, 4, 3), (2, 1, 3), 1, [3, 0], "linear"),
    ((2, 4, 3), (2, 0, 3), 1, [4, 0], "linear"),
    ((1, 1), (1, 1), 1, None, "linear"),
    ((2, 4, 3), (2, 2, 3), 1, None, "linear"),
]


@pytest.mark.parametrize(("cache", "update", "axis", "starts", "mode"), CASES)
def test_tensor_scatter(
    cache: tuple[int, ...], update: tuple[int, ...], axis: int, starts: list[int] | None, mode: str
) -> None:
    inputs = [uniform(*cache), uniform(*update, seed=1), None if starts is None else np.array(starts)]
    op = Op("TensorScatter", {"axis": axis, "mode": mode}, opset=24)
    check_forward(op, inputs)
    check_gradient(op, inputs)
    if min(cache) * min(update) > 0:
        back = Op("TensorScatterGrad", op.attributes, MICROSOFT, opset=24)
        check_gradient(back, [inputs[0], np.array(update), inputs[2]], wrt=[0], constants={1})
    check_forward(op, [(x * 100).astype(np.int8) for x in inputs[:2]] + inputs[2:])


def test_tensor_scatter_rejects_what_does_not_fit() -> None:
    cache, update = uniform(2, 4, 3), uniform(2, 2, 3)
    op = Op("TensorScatter", {"axis": 1}, opset=24)
    check_rejected(op, [cache, update, np.array([0, 3])], r"write_indices\[1\] is 3")
    check_rejected(op, [cache, uniform(2, 5, 3)], "does not fit")
    check_rejected(Op("TensorScatter", {"axis": 0}, opset=24), [cache, update], "batch")
    check_rejected(
        Op("TensorScatter", {"axis": 1, "mode": "ring"}, opset=24), [cache, update], "linear or circular"
    )
