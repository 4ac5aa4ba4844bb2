"""Operators of training graphs that pass on or rearrange elements, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, check_gradient, uniform


def test_pass_through_and_megatron() -> None:
    x, y = uniform(2, 3), uniform(4)
    check_forward(Op("PassThrough", {}, MICROSOFT, outputs=2), [x, y], [x, y])
    check_gradient(Op("PassThrough", {}, MICROSOFT, outputs=2), [x, y])
    for op in ["MegatronF", "MegatronG"]:
        check_forward(Op(op, {}, MICROSOFT), [x], [x])
        check_gradient(Op(op, {}, MICROSOFT), [x])


@pytest.mark.parametrize("constants", [[], [1, 2, 3]], ids=["given with the run", "constant"])
def test_view(constants: list[int]) -> None:
    x, shapes = uniform(11), [np.array([2, 3], np.int64), np.array([4], np.int64), np.array([1, 1], np.int64)]
    op = Op("View", {}, MICROSOFT, outputs=3)
    check_forward(op, [x, *shapes], [x[:6].reshape(2, 3), x[6:10], x[10:].reshape(1, 1)], constants=constants)
    check_gradient(op, [x, *shapes], wrt=[0], constants=constants)


def test_padding_goes_and_comes_back() -> None:
    batch, rows = uniform(2, 4, 3), np.array([0, 2, 3, 5, 7], np.int64)
    flat = batch.reshape(8, 3)[rows]
    op = Op("FlattenAndUnpad", {}, MICROSOFT, outputs=2)
    check_forward(op, [batch, rows], [flat, np.array([2, 4], np.int64)])
    check_gradient(op, [batch, rows], wrt=[0], outputs=[0])
    padded = np.zeros((8, 3))
    padded[rows] = flat
    back = Op("PadAndUnflatten", {}, MICROSOFT)
    inputs = [flat, rows, np.array([2, 4], np.int64)]
    for constants in ([], [2]):
        check_forward(back, inputs, [padded.reshape(2, 4, 3)], constants=constants)
        check_gradient(back, inputs, wrt=[0], constants=constants)


@pytest.mark.parametrize("axis", [0, -1])
def test_few_rows_are_gathered(axis: int) -> None:
    x, rows = uniform(5, 4), np.array([3, 0, 3], np.int64)
    op = Op("ShrunkenGather", {"axis": axis}, MICROSOFT)
    check_forward(op, [x, rows], [np.take(x, rows, axis)])
    check_gradient(op, [x, rows], wrt=[0])
