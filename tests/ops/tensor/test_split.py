"""Split and SplitTraining, against onnx and finite differences."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, uniform
from tensor_cases import X, check_named_dimensions, check_onnx_case, ints, onnx_cases, pair

SPECIAL_POINTS = {"linear": ["Split", "com.microsoft.SplitTraining"]}

SHAPE_INPUTS = {"Split": (1,)}
"""The inputs that determine the shape of the result, which are constants here."""


@pytest.mark.parametrize("case", onnx_cases("Split"), ids=lambda case: case.name)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case, SHAPE_INPUTS)


FORWARD = [
    pair("Split", X, axis=1),
    (Op("Split", {"axis": 1}, outputs=3, opset=12), [uniform(2, 6)], ()),
    (Op("Split", {"axis": -1, "split": [1, 0, 4]}, outputs=3, opset=12), [uniform(2, 5)], ()),
    (Op("Split", {"axis": 0}, outputs=2), [uniform(5, 2), ints(2, 3)], (1,)),
    (Op("Split", {"axis": 1, "num_outputs": 3}, outputs=3, opset=18), [uniform(2, 7)], ()),
    (Op("Split", {"axis": 0, "num_outputs": 1}, outputs=1, opset=18), [uniform(3)], ()),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), FORWARD, ids=lambda value: str(value)[:60])
def test_forward(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_forward(op, inputs, constants=constants)


GRADIENTS = [
    (Op("Split", {"axis": 1}, outputs=2), [uniform(2, 5), ints(2, 3)], (1,)),
    (Op("Split", {"axis": 0, "num_outputs": 3}, outputs=3, opset=18), [uniform(7, 2)], ()),
    (Op("Split", {"axis": 0}, outputs=2, opset=12), [uniform(4)], ()),
    (Op("SplitTraining", {"axis": -1}, MICROSOFT, outputs=2), [uniform(2, 5), ints(4, 1)], (1,)),
]


@pytest.mark.parametrize(("op", "inputs", "constants"), GRADIENTS, ids=lambda value: str(value)[:60])
def test_gradient(op: Op, inputs: list[Array | None], constants: tuple[int, ...]) -> None:
    check_gradient(op, inputs, constants=constants)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "emitted"),
    [
        (Op("Split", {"axis": 0}, outputs=2, opset=12), [uniform(4)], (), {"Concat"}),
    ],
    ids=lambda value: str(value)[:40],
)
def test_gradient_with_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    check_named_dimensions(op, inputs, constants, emitted)


def test_gradient_reaches_the_input_of_a_split_from_one_output_alone() -> None:
    found = check_gradient(
        Op("Split", {"axis": 0}, outputs=3), [uniform(6, 2), ints(1, 2, 3)], outputs=[1], constants=(1,)
    )
    assert found[0][1:3].all()
    assert not found[0][[0, 3, 4, 5]].any()


def test_split_training_cuts_by_the_given_lengths() -> None:
    x = uniform(5, 2)
    op = Op("SplitTraining", {"axis": 0}, MICROSOFT, outputs=2)
    check_forward(op, [x, ints(1, 4)], [x[:1], x[1:]], constants=(1,))


REJECTED = [
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5), ints(2, 2)], (1,)), "add up to 4"),
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5), ints(-1, 6)], (1,)), "do not match the size"),
    ((Op("Split", {"axis": 0}, outputs=2), [uniform(5)], ()), "equal parts"),
]


@pytest.mark.parametrize(("case", "match"), REJECTED, ids=lambda value: str(value)[:60])
def test_bad_input_is_rejected(case: Any, match: str) -> None:
    op, inputs, constants = case
    check_rejected(op, inputs, match, constants)
