"""Elementwise operators of two and more values: broadcasting, integers, logic, Where, and their gradients."""

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
    gradients_of_sum,
    run,
    run_model,
    uniform,
)
from onnx import TensorProto, helper

SPECIAL_POINTS = {"linear": ["Add", "Mean", "Sum", "com.microsoft.Scale"]}

# Every kind of broadcasting of two operands.
PAIRS = {
    "same": ((3, 4), (3, 4)),
    "vectors and a rest": ((5, 67), (5, 67)),
    "scalar right": ((3, 5), ()),
    "scalar left": ((), (3, 5)),
    "one element of higher rank": ((3,), (1, 1)),
    "last axis": ((2, 3, 17), (17,)),
    "last axis left": ((17,), (2, 3, 17)),
    "column": ((4, 5), (4, 1)),
    "channel": ((2, 3, 4, 5), (3, 1, 1)),
    "channel of rank four": ((2, 3, 4, 5), (1, 3, 1, 1)),
    "leading": ((2, 3, 4), (2, 1, 1)),
    "middle": ((2, 1, 4), (2, 3, 4)),
    "outer product": ((4, 1), (1, 6)),
    "both ways": ((2, 1, 3, 1), (1, 4, 1, 5)),
    "ones": ((1,), (1, 1)),
    "scalars": ((), ()),
    "empty": ((0, 3), (3,)),
    "empty against one": ((0,), (1,)),
}
ARITHMETIC = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}


def _operands(pair: str, dtype: Any = np.float64) -> list[Array]:
    a, b = PAIRS[pair]
    return [
        np.asarray(uniform(*a, low=0.5, high=2, dtype=dtype)),
        np.asarray(uniform(*b, low=0.5, high=2, dtype=dtype, seed=1)),
    ]


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("type", ARITHMETIC)
def test_values(type: str, pair: str) -> None:
    for dtype in (np.float32, np.float64):
        a, b = _operands(pair, dtype)
        check_forward(
            Op(type),
            [a, b],
            [np.asarray(ARITHMETIC[type](a, b))],
            rtol=1e-6 if dtype == np.float32 else 1e-14,
        )


@pytest.mark.parametrize("pair", [p for p in PAIRS if p != "vectors and a rest"])
@pytest.mark.parametrize("type", ARITHMETIC)
def test_gradient(type: str, pair: str) -> None:
    check_gradient(Op(type), _operands(pair))


@pytest.mark.parametrize("exponent", [2.0, 3.0, 1.0, 0.0, 0.5, -1.0, 2.5])
def test_power_with_a_constant_exponent(exponent: float) -> None:
    x = uniform(3, 7, low=0.3, high=2)
    e = np.asarray(exponent)
    check_forward(Op("Pow"), [x, e], [x**exponent], constants=[1])
    check_gradient(Op("Pow"), [x, e], constants=[1])


def test_power_of_negative_numbers_has_a_gradient() -> None:
    x = uniform(3, 7, low=-2, high=2)
    for exponent in (2.0, 3.0):
        check_gradient(Op("Pow"), [x, np.asarray(exponent)], constants=[1])
    # The exponent may have another type.
    check_forward(Op("Pow"), [x, np.array([3], np.int64)], [x**3])
    check_gradient(Op("Pow"), [x, np.array([3], np.int64)], wrt=[0], constants=[1])


def test_power_of_integers() -> None:
    x, e = np.array([-3, -1, 0, 1, 2, 10], np.int64), np.array([3, 5, 2, 9, 40, 18], np.int64)
    check_forward(Op("Pow"), [x, e], [x**e])
    check_forward(Op("Pow"), [x.astype(np.int32), np.array([2.0], np.float32)], [(x**2).astype(np.int32)])


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
)
def test_integers(dtype: Any) -> None:
    a, b = np.array([[7], [100], [3]], dtype), np.array([2, 5], dtype)
    check_forward(Op("Add"), [a, b], [a + b])
    check_forward(Op("Sub"), [a, b], [a - b])
    check_forward(Op("Mul"), [a, b], [a * b])
    check_forward(Op("Div"), [a, b], [a // b])
    check_forward(Op("Mod"), [a, b], [a % b])
    check_forward(Op("Max"), [a, b], [np.maximum(a, b)])
    check_forward(Op("Min"), [a, b], [np.minimum(a, b)])


def test_integer_division_cuts_toward_zero_and_never_traps() -> None:
    low = np.iinfo(np.int32).min
    a = np.array([-7, 7, low, low], np.int32)
    b = np.array([2, -2, -1, 1], np.int32)
    check_forward(Op("Div"), [a, b], [np.array([-3, -3, low, low], np.int32)])
    check_forward(Op("Mod"), [a, b], [np.array([1, -1, 0, 0], np.int32)])
    check_forward(Op("Mod", {"fmod": 1}), [a, b], [np.array([-1, 1, 0, 0], np.int32)])
    for type in ("Div", "Mod"):
        check_rejected(Op(type), [a, np.array([1, 0, 2, 3], np.int32)], "integer division by zero")


@pytest.mark.parametrize("fmod", [0, 1])
def test_floating_remainder(fmod: int) -> None:
    a, b = np.array([-7.5, 7.5, 5.0, -5.0]), np.array([2.0, -2.0, 2.5, 2.5])
    check_forward(Op("Mod", {"fmod": fmod}), [a, b], [np.fmod(a, b) if fmod else np.mod(a, b)])
    # No quotient is an integer: the remainder is discontinuous there.
    for shape in ((3, 4), (1, 4), (3, 1), (1,), ()):
        check_gradient(Op("Mod", {"fmod": fmod}), [uniform(3, 4, low=-9, high=9), apart(*shape, scale=3.1)])
    check_gradient(Op("Mod", {"fmod": fmod}), [uniform(0, 4), apart(1, 4)])


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("type", "formula"),
    [
        ("Equal", np.equal),
        ("Less", np.less),
        ("LessOrEqual", np.less_equal),
        ("Greater", np.greater),
        ("GreaterOrEqual", np.greater_equal),
    ],
)
def test_comparisons(type: str, formula: Any, pair: str) -> None:
    for dtype in (np.float32, np.int64):
        a, b = ((v * 3).round().astype(dtype) for v in _operands(pair))
        check_forward(Op(type), [a, b], [np.asarray(formula(a, b))])


@pytest.mark.parametrize(
    ("type", "formula"), [("And", np.logical_and), ("Or", np.logical_or), ("Xor", np.logical_xor)]
)
def test_logic(type: str, formula: Any) -> None:
    a, b = np.array([[True], [False]]), np.array([True, False, True])
    check_forward(Op(type), [a, b], [formula(a, b)])
    check_rejected(Op(type), [np.array([1]), np.array([1])], "int64, which this operator does not accept")


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4,)), ((2, 3, 5), (3, 1)), ((4,), (1,)), ((0, 2), (2,))], ids=str
)
def test_prelu(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    x, slope = apart(*shapes[0]), uniform(*shapes[1], low=0.1, high=0.9)
    check_forward(Op("PRelu"), [x, slope], [np.where(x < 0, slope * x, x)])
    check_gradient(Op("PRelu"), [x, slope])


VARIADIC = {
    "Sum": lambda *v: sum(v[1:], v[0]),
    "Mean": lambda *v: sum(v[1:], v[0]) / len(v),
    "Max": lambda *v: np.maximum.reduce(np.broadcast_arrays(*v)),
    "Min": lambda *v: np.minimum.reduce(np.broadcast_arrays(*v)),
}


@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 5)],
        [(3, 5), (3, 5)],
        [(3, 5), (3, 5), (3, 5), (3, 5)],
        [(5,), (3, 1), (2, 3, 5)],
        [(), (4,), (1, 4)],
        [(0, 2), (2,)],
    ],
    ids=str,
)
@pytest.mark.parametrize("type", VARIADIC)
def test_variadic(type: str, shapes: list[tuple[int, ...]]) -> None:
    values = [apart(*shape, seed=i) + 0.01 * i for i, shape in enumerate(shapes)]
    for dtype in (np.float32, np.float64):
        given = [v.astype(dtype) for v in values]
        check_forward(Op(type), given, [np.asarray(VARIADIC[type](*given))])
    check_gradient(Op(type), values)


def test_sum_that_reads_a_value_twice() -> None:
    """The output must not overwrite a value that a later pass reads again."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Sum", ["a", "x", "a", "a"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "twice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = np.array([1, 2, 3], np.float32)
    np.testing.assert_array_equal(run_model(model.SerializeToString(), {"x": x})["y"], -2 * x)


@pytest.mark.parametrize("type", ["Max", "Min"])
def test_extremes_share_the_gradient_among_equals(type: str) -> None:
    x = np.array([1.0, 2.0])
    for gradient in gradients_of_sum(Op(type), [x, x], [0, 1]):
        np.testing.assert_array_equal(gradient, [0.5, 0.5])


def test_extremes_pass_on_nan() -> None:
    a, b = np.array([np.nan, 1, np.nan, 2], np.float32), np.array([1, np.nan, np.nan, 3], np.float32)
    check_forward(Op("Max"), [a, b], [np.maximum(a, b)])
    check_forward(Op("Min"), [a, b], [np.minimum(a, b)])


@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (2, 3), (2, 3)), ((3, 1), (4,), (2, 1, 1)), ((), (3,), ()), ((0, 1), (1,), (4,))],
    ids=str,
)
def test_where(shapes: tuple[tuple[int, ...], ...]) -> None:
    condition = np.asarray(uniform(*shapes[0]) > 0)
    a, b = uniform(*shapes[1], seed=1), uniform(*shapes[2], seed=2)
    for dtype in (np.float64, np.float32, np.float16, np.int8, np.int64, np.bool_):
        x, y = np.asarray(a * 9).astype(dtype), np.asarray(b * 9).astype(dtype)
        check_forward(Op("Where"), [condition, x, y], [np.asarray(np.where(condition, x, y))])
    check_gradient(Op("Where"), [condition, np.asarray(a), np.asarray(b)])


@pytest.mark.parametrize("n", [0, 1, 3, 8, 17, 1001])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64, np.int16, np.uint8])
def test_where_moves_all_bits(dtype: Any, n: int) -> None:
    random = np.random.default_rng(n)
    condition = random.random(n) < 0.5
    a, b = (random.integers(0, 256, (2, n * np.dtype(dtype).itemsize)).astype(np.uint8)).view(dtype)
    for x, y in ((a, b), (a[:1], b), (a, b[:1]), (a[:1], b[:1])):
        if n and x.size:
            (found,) = run(Op("Where"), [condition, x, y])
            np.testing.assert_array_equal(found.view(np.uint8), np.where(condition, x, y).view(np.uint8))


@pytest.mark.parametrize("pair", [p for p in PAIRS if p != "vectors and a rest"])
def test_div_grad(pair: str) -> None:
    a, b = _operands(pair)
    dy = np.asarray(uniform(*np.broadcast_shapes(a.shape, b.shape), seed=3))

    def to(shape: tuple[int, ...], full: Array) -> Array:
        extra = full.ndim - len(shape)
        full = full.sum(axis=tuple(range(extra)))
        return full.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True).reshape(shape)

    full = [np.broadcast_to(dy / b, dy.shape), np.broadcast_to(-dy * a / b**2, dy.shape)]
    expected = [to(a.shape, full[0]), to(b.shape, full[1])]
    check_forward(Op("DivGrad", domain=MICROSOFT, outputs=2), [dy, a, b], expected)
    check_forward(Op("DivGrad", domain=MICROSOFT, outputs=(False, True)), [dy, a, b], expected[1:])


def test_scale() -> None:
    x = uniform(3, 5)
    for s in (np.asarray(4.0), np.asarray([4]), np.asarray(4, np.float32)):
        check_forward(Op("Scale", domain=MICROSOFT), [x, s], [x * 4])
        check_forward(Op("Scale", {"scale_down": 1}, MICROSOFT), [x, s], [x / 4])
    check_gradient(Op("Scale", {"scale_down": 1}, MICROSOFT), [x, np.asarray(4)])
    check_rejected(Op("Scale", domain=MICROSOFT), [x, np.ones(2)], "scale must be a single value")


@pytest.mark.parametrize(
    ("low", "high"),
    [(-0.5, 0.7), (None, 0.7), (-0.5, None), (None, None)],
    ids=["both", "max", "min", "none"],
)
@pytest.mark.parametrize("shape", [(3, 21), (), (0, 2)], ids=str)
def test_clip(low: float | None, high: float | None, shape: tuple[int, ...]) -> None:
    x = np.asarray(uniform(*shape, low=-1, high=1))
    bounds = [None if v is None else np.asarray(v) for v in (low, high)]
    while bounds and bounds[-1] is None:
        bounds.pop()
    expected = x if low is None and high is None else np.asarray(np.clip(x, low, high))
    check_forward(Op("Clip"), [x, *bounds], [expected])
    check_gradient(Op("Clip"), [x, *bounds], wrt=[0])


def test_clip_of_integers_and_refusals() -> None:
    x = np.arange(-5, 6, dtype=np.int64)
    check_forward(Op("Clip"), [x, np.asarray(-2), np.asarray(3)], [np.clip(x, -2, 3)])
    check_rejected(Op("Clip"), [uniform(3), np.asarray(0)], "min must be a single float64")
    check_rejected(Op("Clip"), [uniform(3), np.zeros(2)], "min must be a single float64")


def test_large_tensors_are_cut_between_threads_without_a_seam() -> None:
    a, b = uniform(7, 30_011, dtype=np.float32), uniform(7, 1, dtype=np.float32, seed=1)
    check_forward(Op("Add"), [a, b], [a + b])
    check_forward(Op("Mul"), [b, a], [a * b])
    check_forward(Op("Sub"), [a, a[:1]], [a - a[:1]])


def test_refusals() -> None:
    check_rejected(Op("Add"), [uniform(3), uniform(4)], "do not broadcast")
    check_rejected(
        Op("Mul"),
        [uniform(3), uniform(3, dtype=np.float32)],
        "must have the same type, found float64 and float32",
    )
    check_rejected(Op("Sum"), [uniform(3), uniform(3, dtype=np.float32)], "must have the same type")
    check_rejected(
        Op("Add"), [np.array([True]), np.array([True])], "bool, which this operator does not accept"
    )
    check_rejected(Op("Where"), [uniform(3), uniform(3), uniform(3)], "condition must be bool")


def test_results_do_not_depend_on_aliasing() -> None:
    x = uniform(5, 9)
    (y,) = run(Op("Add"), [x, x])
    np.testing.assert_array_equal(y, 2 * x)
