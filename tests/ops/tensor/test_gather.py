"""Operators that use indices: Gather, GatherElements, GatherND, the Scatters, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    apart,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    make_model,
    run,
    run_model,
    uniform,
)
from onnx import TensorProto, helper
from tensor_cases import check_onnx_case, onnx_cases

SPECIAL_POINTS = {
    "linear": ["Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"]
}


@pytest.mark.parametrize(
    "case",
    onnx_cases("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"),
    ids=lambda case: case.name,
)
def test_agrees_with_the_node_cases_of_onnx(case: Any) -> None:
    check_onnx_case(case)


def indices(*shape: int, below: int, above: int | None = None, dtype: Any = np.int64, seed: int = 0) -> Array:
    """Indices in [above, below), by default from -below on, so that half of them count from the end."""
    low = -below if above is None else above
    return np.random.default_rng([seed, *shape]).integers(low, below, shape).astype(dtype)


def distinct(*shape: int, below: int, axis: int) -> Array:
    """Indices without repetition along the axis."""
    order = np.argsort(uniform(*shape[:axis], below, *shape[axis + 1 :]), axis=axis)
    return np.take(order, np.arange(shape[axis]), axis=axis)


GATHER = [
    (0, (5, 3), (4,)),
    (0, (5, 3), (2, 3)),
    (0, (5,), ()),
    (-1, (2, 5), (3, 2)),
    (1, (2, 5, 3), ()),
    (1, (2, 5, 3), (1,)),
    (2, (2, 3, 4, 2), (6,)),
    (0, (5, 3), (0,)),
    (0, (5, 0), (4,)),
    (1, (0, 5), (3,)),
    (0, (1, 1), (1, 1)),
]


@pytest.mark.parametrize(("axis", "shape", "index_shape"), GATHER)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_takes_slices(
    axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...], dtype: Any
) -> None:
    x, at = uniform(*shape), indices(*index_shape, below=shape[axis], dtype=dtype)
    check_forward(Op("Gather", {"axis": axis}), [x, at], [np.take(x, at, axis)])


@pytest.mark.parametrize(("axis", "shape", "index_shape"), GATHER)
def test_gather_grad_adds_where_indices_repeat(
    axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...]
) -> None:
    at = indices(*index_shape, below=shape[axis])
    check_gradient(Op("Gather", {"axis": axis}), [uniform(*shape), at])
    dy = uniform(*np.take(np.zeros(shape), at, axis).shape)
    expected = np.zeros(shape)
    np.add.at(np.moveaxis(expected, axis, 0), at.ravel(), gather_axis_first(dy, shape, axis, at.ndim))
    op = Op("GatherGrad", {"axis": axis}, MICROSOFT)
    check_forward(op, [np.array(shape), at, dy], [expected], constants=(0,))
    check_gradient(op, [np.array(shape), at, dy], constants=(0,))


def gather_axis_first(dy: Array, shape: tuple[int, ...], axis: int, index_rank: int) -> Array:
    """dY as one slice for each index."""
    axis %= len(shape)
    moved = np.moveaxis(dy, range(axis, axis + index_rank), range(index_rank))
    return (
        moved.reshape(-1, *shape[:axis], *shape[axis + 1 :])
        if moved.size
        else moved.reshape(int(np.prod(moved.shape[:index_rank])), *shape[:axis], *shape[axis + 1 :])
    )


@pytest.mark.parametrize(
    ("rows", "width", "count"),
    [(1000, 256, 2048), (50000, 3, 40000), (7, 512, 3000), (40000, 1, 50000)],
    ids=["columns shared", "rows shared", "few rows", "scalars"],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_embedding_gradients_add_up_in_the_order_of_the_indices(
    rows: int, width: int, count: int, dtype: Any
) -> None:
    """Bit for bit the result of adding one by one, however the work is divided among threads."""
    at, dy = indices(count, below=rows), uniform(count, width, dtype=dtype)
    expected = np.zeros((rows, width), dtype)
    np.add.at(expected, at, dy)
    found = run(Op("GatherGrad", domain=MICROSOFT), [np.array([rows, width]), at, dy], constants=(0,))[0]
    np.testing.assert_array_equal(found, expected)


def test_gather_grad_over_an_inner_axis_adds_up_in_order() -> None:
    at, dy = indices(64, below=30), uniform(50, 64, 20, dtype=np.float32)
    expected = np.zeros((50, 30, 20), np.float32)
    for i, row in enumerate(at):
        expected[:, row] += dy[:, i]
    found = run(Op("GatherGrad", {"axis": 1}, MICROSOFT), [np.array([50, 30, 20]), at, dy], constants=(0,))[0]
    np.testing.assert_array_equal(found, expected)


ELEMENTS = [
    (0, (5, 3), (4, 3)),
    (0, (5, 3), (7, 2)),
    (1, (5, 3), (5, 6)),
    (-1, (2, 3, 4), (2, 3, 2)),
    (1, (2, 3, 4), (1, 5, 4)),
    (-3, (2, 3, 4), (3, 3, 3)),
    (0, (5,), (3,)),
    (0, (1,), (1,)),
    (0, (5, 3), (0, 3)),
    (1, (5, 3), (5, 0)),
]


@pytest.mark.parametrize(("axis", "shape", "index_shape"), ELEMENTS)
def test_gather_elements(axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> None:
    x, at = uniform(*shape), indices(*index_shape, below=shape[axis])
    op = Op("GatherElements", {"axis": axis})
    part = x[tuple(slice(None) if d == axis % x.ndim else slice(n) for d, n in enumerate(index_shape))]
    check_forward(op, [x, at], [np.take_along_axis(part, at, axis)])
    check_gradient(op, [x, at.astype(np.int32)])


@pytest.mark.parametrize(("axis", "shape", "index_shape"), ELEMENTS)
def test_gather_elements_grad(axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> None:
    at, dy = indices(*index_shape, below=shape[axis]), uniform(*index_shape)
    expected = np.zeros(shape)
    for position in np.ndindex(*index_shape):
        target = list(position)
        target[axis] = int(at[position])
        expected[tuple(target)] += dy[position]
    op = Op("GatherElementsGrad", {"axis": axis}, MICROSOFT)
    check_forward(op, [dy, np.array(shape), at], [expected], constants=(1,))
    check_gradient(op, [dy, np.array(shape), at], constants=(1,))


@pytest.mark.parametrize("axis", [0, 1])
def test_large_gather_elements_grad_adds_up_in_order(axis: int) -> None:
    at, dy = indices(700, 400, below=30), uniform(700, 400, dtype=np.float32)
    shape = (30, 400) if axis == 0 else (700, 30)
    expected = np.zeros(shape, np.float32)
    other = np.indices(at.shape)[1 - axis]
    np.add.at(expected, (at, other) if axis == 0 else (other, at), dy)
    op = Op("GatherElementsGrad", {"axis": axis}, MICROSOFT)
    np.testing.assert_array_equal(run(op, [dy, np.array(shape), at], constants=(1,))[0], expected)


TUPLES = [
    (0, (3, 4, 2), (5, 2)),
    (0, (3, 4, 2), (2, 2, 3)),
    (0, (3, 4, 2), (1,)),
    (0, (3, 4), (2, 0)),
    (1, (2, 3, 4), (2, 5, 1)),
    (1, (2, 3, 4), (2, 2)),
    (2, (2, 3, 4), (2, 3, 6, 1)),
    (0, (3, 4), (0, 2)),
    (0, (3, 0), (4, 1)),
    (0, (1,), (1, 1)),
]


def tuple_indices(batch_dims: int, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> Array:
    columns = [
        indices(*index_shape[:-1], below=shape[batch_dims + k], seed=k) for k in range(index_shape[-1])
    ]
    return np.stack(columns, -1) if columns else np.zeros(index_shape, np.int64)


def tuple_positions(batch_dims: int, at: Array) -> list[tuple[int, ...]]:
    """The slice of the data that each tuple selects, in order."""
    return [position[:batch_dims] + tuple(map(int, at[position])) for position in np.ndindex(*at.shape[:-1])]


@pytest.mark.parametrize(("batch_dims", "shape", "index_shape"), TUPLES)
def test_gather_nd(batch_dims: int, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> None:
    x, at = uniform(*shape), tuple_indices(batch_dims, shape, index_shape)
    slices = [x[position] for position in tuple_positions(batch_dims, at)]
    expected = np.reshape(slices, index_shape[:-1] + shape[batch_dims + index_shape[-1] :])
    op = Op("GatherND", {"batch_dims": batch_dims})
    check_forward(op, [x, at], [expected])
    check_gradient(op, [x, at])


@pytest.mark.parametrize(("batch_dims", "shape", "index_shape"), TUPLES)
def test_gather_nd_grad(batch_dims: int, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> None:
    at = tuple_indices(batch_dims, shape, index_shape)
    dy = uniform(*index_shape[:-1], *shape[batch_dims + index_shape[-1] :])
    expected = np.zeros(shape)
    for position, source in zip(tuple_positions(batch_dims, at), np.ndindex(*index_shape[:-1]), strict=True):
        expected[position] += dy[source]
    op = Op("GatherNDGrad", {"batch_dims": batch_dims}, MICROSOFT)
    check_forward(op, [np.array(shape), at, dy], [expected], constants=(0,))
    check_gradient(op, [np.array(shape), at, dy], constants=(0,))


REDUCTIONS: dict[str, Any] = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("axis", "shape", "index_shape"), ELEMENTS)
def test_scatter_elements(
    reduction: str, axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...]
) -> None:
    """Repeated indices are processed in order, so the last update wins without a reduction."""
    x, at, updates = uniform(*shape), indices(*index_shape, below=shape[axis]), uniform(*index_shape, seed=1)
    expected = x.copy()
    for position in np.ndindex(*index_shape):
        target = list(position)
        target[axis] = int(at[position])
        expected[tuple(target)] = REDUCTIONS[reduction](expected[tuple(target)], updates[position])
    op = Op("ScatterElements", {"axis": axis, "reduction": reduction}, opset=18)
    check_forward(op, [x, at, updates], [expected])


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.float32])
def test_scatter_reduces_every_number_type(dtype: Any) -> None:
    x, at, updates = np.arange(4).astype(dtype), np.array([1, 1, 3]), np.array([5, 2, 1]).astype(dtype)
    for name, expected in {
        "add": [0, 8, 2, 4],
        "mul": [0, 10, 2, 3],
        "max": [0, 5, 2, 3],
        "min": [0, 1, 2, 1],
    }.items():
        wanted = [np.array(expected).astype(dtype)]
        check_forward(Op("ScatterElements", {"reduction": name}, opset=18), [x, at, updates], wanted)
        check_forward(Op("ScatterND", {"reduction": name}, opset=18), [x, at[:, None], updates], wanted)


def test_scatter_replaces_every_type_of_fixed_width() -> None:
    x, updates = np.array([True, True, False]), np.array([False])
    check_forward(Op("ScatterElements"), [x, np.array([-3]), updates], [np.array([False, True, False])])
    check_forward(Op("ScatterND"), [x.astype(np.float16), np.array([[1]]), updates.astype(np.float16)])


@pytest.mark.parametrize(
    ("axis", "shape", "index_shape"),
    [(0, (5, 3), (4, 3)), (-1, (2, 4), (1, 3)), (0, (1,), (1,)), (0, (3,), (0,))],
)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scatter_elements_gradient(
    reduction: str, axis: int, shape: tuple[int, ...], index_shape: tuple[int, ...]
) -> None:
    values = apart(int(np.prod(shape)) + int(np.prod(index_shape)))
    x, updates = values[: np.prod(shape)].reshape(shape), values[np.prod(shape) :].reshape(index_shape)
    at = distinct(*index_shape, below=shape[axis], axis=axis % len(shape))
    if reduction != "none":
        at = np.where(at == 1, 0, at)  # with a reduction, indices may repeat
    check_gradient(Op("ScatterElements", {"axis": axis, "reduction": reduction}, opset=18), [x, at, updates])


@pytest.mark.parametrize("opset", [12, 13, 16])
def test_scatter_elements_gradient_before_there_were_all_reductions(opset: int) -> None:
    x, updates = uniform(4, 3), uniform(2, 3, seed=1)
    check_gradient(
        Op("ScatterElements", {"axis": 0}, opset=opset), [x, distinct(2, 3, below=4, axis=0), updates]
    )


def test_elements_that_tie_share_the_gradient_of_a_scattered_maximum() -> None:
    inputs = [np.array([1.0, 2.0]), np.array([0, 0, 1]), np.array([1.0, 1.0, 0.0])]
    loss = helper.make_node("ReduceSum", ["y0"], ["loss"], keepdims=0)
    op = Op("ScatterElements", {"reduction": "max"}, opset=18)
    model = make_model(op, inputs, extra_nodes=[loss], outputs=["loss"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []))
    backward = gradient_model(model.SerializeToString(), ["x0", "x2"], "loss")
    found = run_model(backward, {f"x{i}": x for i, x in enumerate(inputs)})
    np.testing.assert_allclose(found["x0_grad"], [1 / 3, 1.0])
    np.testing.assert_allclose(found["x2_grad"], [1 / 3, 1 / 3, 0.0])


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("shape", "index_shape"), [(s, i) for b, s, i in TUPLES if b == 0])
def test_scatter_nd(reduction: str, shape: tuple[int, ...], index_shape: tuple[int, ...]) -> None:
    x, at = uniform(*shape), tuple_indices(0, shape, index_shape)
    updates = uniform(*index_shape[:-1], *shape[index_shape[-1] :], seed=1)
    expected = x.copy()
    for position, source in zip(tuple_positions(0, at), np.ndindex(*index_shape[:-1]), strict=True):
        merged = np.vectorize(REDUCTIONS[reduction], otypes=[float])(expected[position], updates[source])
        expected[position] = merged
    check_forward(Op("ScatterND", {"reduction": reduction}, opset=18), [x, at, updates], [expected])


@pytest.mark.parametrize(
    ("at", "update_shape"),
    [
        ([[2], [0]], (2, 4)),
        ([[[0, 1]], [[2, -1]]], (2, 1)),
        ([[1, 1]], (1,)),
        (np.zeros((0, 2), np.int64), (0,)),
    ],
)
def test_scatter_nd_gradient(at: Any, update_shape: tuple[int, ...]) -> None:
    inputs = [uniform(3, 4), np.array(at), uniform(*update_shape)]
    check_gradient(Op("ScatterND"), inputs)
    inputs[1] = np.where(inputs[1] == 2, 0, inputs[1])
    for reduction in ("add", "mul", "max", "min"):
        check_gradient(Op("ScatterND", {"reduction": reduction}, opset=18), inputs)


@pytest.mark.parametrize("zeros", [[], [0], [3], [0, 3], [3, 4], [0, 3, 4], [1, 3]])
@pytest.mark.parametrize("nd", [False, True])
def test_gradient_of_a_scattered_product_where_factors_are_zero(zeros: list[int], nd: bool) -> None:
    """Element 0 of the data gets updates 3, 4 and 5 of the list, element 1 gets none."""
    factors = np.array([2.0, 3.0, 1.5, -1.0, 0.5, 4.0])
    factors[zeros] = 0
    data, updates, at = factors[:3], factors[3:], np.array([0, 0, 0])
    op = Op("ScatterND" if nd else "ScatterElements", {"reduction": "mul"}, opset=18)
    check_gradient(op, [data, at[:, None] if nd else at, updates], second_order=True)


def test_scatter_is_the_older_name_of_scatter_elements() -> None:
    x, at, updates = uniform(3, 4), np.array([[1, 0, -1]]), uniform(1, 3, seed=1)
    (expected,) = check_forward(Op("ScatterElements", {"axis": 1}), [x, at, updates])
    for opset in (9, 11, 17):
        check_forward(Op("Scatter", {"axis": 1}, opset=opset), [x, at, updates], [expected])
    check_gradient(Op("Scatter", {"axis": 1}), [x, at, updates])


I3 = np.array([0, 3, 1])
REJECTED = [
    (
        Op("Gather"),
        [uniform(3, 2), I3],
        (),
        r"index 3 at position 1 of the indices '\w+' is outside \[-3, 2\]: '\w+' has 3 rows",
    ),
    (Op("Gather"), [uniform(3, 2), np.array([-4], np.int32)], (), "index -4 at position 0"),
    (Op("Gather"), [uniform(0, 2), np.array([0])], (), "without elements"),
    (Op("Gather"), [uniform(3), np.array([0.0])], (), "must be int64 or int32"),
    (Op("Gather", {"axis": 2}), [uniform(3, 2), I3], (), "axis 2 is outside"),
    (Op("Gather"), [np.array(1.0), I3], (), "axis 0 is outside"),
    (
        Op("GatherGrad", domain=MICROSOFT),
        [np.array([3, 2]), I3, uniform(3, 2)],
        (0,),
        "index 3 at position 1",
    ),
    (Op("GatherGrad", domain=MICROSOFT), [np.array([4, 2]), I3, uniform(3, 3)], (0,), r"expected \[3, 2\]"),
    (Op("GatherElements"), [uniform(3), I3], (), "index 3 at position 1"),
    (Op("GatherElements"), [uniform(3, 2), I3], (), "the same rank"),
    (Op("GatherElements"), [uniform(4, 2), np.zeros((2, 3), np.int64)], (), "exceed data of shape"),
    (
        Op("GatherElementsGrad", domain=MICROSOFT),
        [uniform(3), np.array([3]), I3],
        (1,),
        "index 3 at position 1",
    ),
    (Op("ScatterElements"), [uniform(3), I3, uniform(3)], (), "index 3 at position 1"),
    (Op("ScatterElements"), [uniform(4), I3, uniform(2)], (), "updates have shape"),
    (Op("ScatterElements"), [uniform(4), I3, uniform(3, dtype=np.float32)], (), "the same type"),
    (Op("ScatterElements", {"reduction": "xor"}, opset=18), [uniform(4), I3, uniform(3)], (), "xor"),
    (Op("GatherND"), [uniform(2, 3), np.array([[1, 0], [0, 3]])], (), "index 3 at position 3"),
    (Op("GatherND"), [uniform(2), np.array([[0, 0]])], (), "longer than data"),
    (
        Op("GatherND", {"batch_dims": 1}),
        [uniform(2, 3), np.zeros((3, 1), np.int64)],
        (),
        "differ in the first 1",
    ),
    (Op("GatherND", {"batch_dims": 2}), [uniform(2, 3), np.zeros((2, 1), np.int64)], (), "batch_dims 2"),
    (
        Op("GatherNDGrad", domain=MICROSOFT),
        [np.array([2]), np.array([[2]]), uniform(1)],
        (0,),
        "index 2 at position 0",
    ),
    (Op("ScatterND"), [uniform(2, 3), np.array([[2]]), uniform(1, 3)], (), "index 2 at position 0"),
    (Op("ScatterND"), [uniform(2, 3), np.array([[1]]), uniform(3)], (), r"expected \[1, 3\]"),
]


@pytest.mark.parametrize(("op", "inputs", "constants", "match"), REJECTED, ids=lambda value: str(value)[:40])
def test_bad_indices_are_rejected_by_name(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], match: str
) -> None:
    check_rejected(op, inputs, match, constants)


def test_a_bad_index_among_many_is_found_before_anything_is_read() -> None:
    at = np.zeros(200_000, np.int64)
    at[123_456] = 10
    check_rejected(Op("Gather"), [uniform(10, 2), at], "index 10 at position 123456")
