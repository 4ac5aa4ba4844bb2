"""Concat and ConcatTraining, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import check_named_dimensions, check_onnx_case, ints, onnx_cases

SPECIAL_POINTS = {"linear": ["Concat", "com.microsoft.ConcatTraining"]}


@pytest.mark.parametrize("case", onnx_cases("Concat"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


FORWARD = [
    (Op("Concat", {"axis": 1}), [uniform(2, 3, 2), uniform(2, 1, 2), uniform(2, 0, 2), uniform(2, 4, 2)], ()),
    (Op("Concat", {"axis": -1}), [uniform(2, 3), uniform(2, 2)], ()),
    (Op("Concat", {"axis": 0}), [uniform(2, 3)], ()),
    (Op("Concat", {"axis": 0}), [np.array([True]), np.array([False, True])], ()),
    (
        Op("Concat", {"axis": 1}),
        [uniform(300, 200, dtype=np.float32), uniform(300, 500, dtype=np.float32)],
        (),
    ),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    (Op("Concat", {"axis": 1}), [uniform(2, 1), uniform(2, 3), uniform(2, 0)], ()),
    (Op("Concat", {"axis": -2}, opset=12), [uniform(1, 2), uniform(3, 2)], ()),
    (Op("Concat", {"axis": 0}), [uniform(3)], ()),
    (Op("ConcatTraining", {"axis": 1}, MICROSOFT, outputs=(True,)), [uniform(2, 1), uniform(2, 3)], ()),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(1, 3)], (), {"ConcatTraining", "SplitTraining"}),
        (Op("Concat", {"axis": -1}), [uniform(2, 3), uniform(2, 1)], (), {"ConcatTraining", "SplitTraining"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


def test_concat_training_tells_the_length_of_every_input() -> None:
    parts = [uniform(2, 3), uniform(2, 0), uniform(2, 4)]
    op = Op("ConcatTraining", {"axis": -1}, MICROSOFT, outputs=2)
    check_forward(op, parts, [np.concatenate(parts, 1), ints(3, 0, 4)])


REJECTED = [
    ((Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(2, 4)], ()), "does not match"),
    ((Op("Concat", {"axis": 0}), [uniform(2, 3), uniform(2, 3, dtype=np.float32)], ()), "the same type"),
    ((Op("Concat", {"axis": 2}), [uniform(2, 3)], ()), "axis 2 is outside"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
