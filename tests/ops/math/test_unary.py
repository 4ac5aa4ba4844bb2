"""Elementwise operators of one value: values, special values and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, apart, check_forward, check_gradient, check_rejected, run, uniform

SPECIAL_POINTS = {
    "not in PyTorch": ["com.microsoft.BiasGelu", "com.microsoft.QuickGelu"],
    "not recorded": ["Shrink", "Swish"],
    "as Gelu": ["com.microsoft.FastGelu", "com.microsoft.Gelu"],
}

# Shapes for every path through a vector loop: none, one, less than a vector, many vectors and a remainder.
SHAPES = [(0,), (), (3,), (2, 5, 7), (1, 257), (3, 0, 2)]


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _phi(x: Array) -> Array:
    return 0.5 * (1 + _erf(x / math.sqrt(2)))


def _fast_gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# Operator, range of the inputs, formula (None: that of onnx.reference).
TABLE: list[tuple[Op, float, float, Any]] = [
    (Op("Neg"), -3, 3, None),
    (Op("Abs"), -3, 3, None),
    (Op("Sign"), -3, 3, None),
    (Op("Floor"), -3, 3, None),
    (Op("Ceil"), -3, 3, None),
    (Op("Round"), -9, 9, None),
    (Op("Reciprocal"), 0.5, 3, None),
    (Op("Sqrt"), 0.1, 9, None),
    (Op("Exp"), -20, 20, None),
    (Op("Log"), 0.01, 50, None),
    (Op("Erf"), -5, 5, _erf),
    (Op("Sin"), -9, 9, None),
    (Op("Cos"), -9, 9, None),
    (Op("Tan"), -1.4, 1.4, None),
    (Op("Asin"), -0.95, 0.95, None),
    (Op("Acos"), -0.95, 0.95, None),
    (Op("Atan"), -4, 4, None),
    (Op("Sinh"), -4, 4, None),
    (Op("Cosh"), -4, 4, None),
    (Op("Asinh"), -4, 4, None),
    (Op("Acosh"), 1.1, 9, None),
    (Op("Atanh"), -0.95, 0.95, None),
    (Op("Tanh"), -9, 9, None),
    (Op("Sigmoid"), -20, 20, _sigmoid),
    (Op("HardSigmoid"), -4, 4, None),
    (Op("HardSigmoid", {"alpha": 0.4, "beta": 0.3}), -4, 4, None),
    (Op("Softplus"), -30, 30, lambda x: np.logaddexp(0, x)),
    (Op("Softsign"), -5, 5, lambda x: x / (1 + np.abs(x))),
    (Op("Relu"), -3, 3, None),
    (Op("LeakyRelu"), -3, 3, None),
    (Op("LeakyRelu", {"alpha": 0.3}), -3, 3, None),
    (Op("LeakyRelu", {"alpha": -0.5}), -3, 3, None),
    (Op("ThresholdedRelu", {"alpha": 0.7}), -3, 3, None),
    (Op("Elu", {"alpha": 1.5}), -3, 3, None),
    (Op("Selu"), -3, 3, None),
    (Op("Celu", {"alpha": 0.7}), -3, 3, None),
    (Op("HardSwish"), -6, 6, lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
    (Op("Mish", opset=18), -20, 30, lambda x: x * np.tanh(np.logaddexp(0, x))),
    (Op("Shrink", {"lambd": 0.4, "bias": 0.2}), -3, 3, None),
    (Op("Swish", {"alpha": 0.8}, opset=24), -9, 9, lambda x: x * _sigmoid(np.float32(0.8).astype(float) * x)),
    (Op("Gelu", domain=MICROSOFT), -5, 5, lambda x: x * _phi(x)),
    (Op("Gelu", opset=20), -5, 5, lambda x: x * _phi(x)),
    (Op("Gelu", {"approximate": "tanh"}, opset=20), -5, 5, _fast_gelu),
    (Op("FastGelu", domain=MICROSOFT), -5, 5, _fast_gelu),
    (Op("QuickGelu", domain=MICROSOFT), -9, 9, lambda x: x * _sigmoid(np.float32(1.702).astype(float) * x)),
]
IDS = [str(op) for op, *_ in TABLE]
STEPS = {"Sign", "Floor", "Ceil", "Round"}  # their derivative is zero, gradients stop at them


def _inputs(low: float, high: float, shape: tuple[int, ...], dtype: Any) -> Array:
    return uniform(*shape, low=low, high=high, dtype=dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("op", "low", "high", "formula"), TABLE, ids=IDS)
def test_values(op: Op, low: float, high: float, formula: Any, shape: tuple[int, ...]) -> None:
    for dtype, rtol in ((np.float32, 2e-6), (np.float64, 1e-12)):
        x = _inputs(low, high, shape, dtype)
        # The formula in double, rounded to the type: the measured error is only that of the kernel.
        expected = None if formula is None else [np.asarray(formula(x.astype(np.float64))).astype(dtype)]
        check_forward(op, [x], expected, rtol=rtol)


@pytest.mark.parametrize("shape", [(2, 3, 5), (1,), (), (0,)], ids=str)
@pytest.mark.parametrize(
    ("op", "low", "high"), [row[:3] for row in TABLE if row[0].type not in STEPS], ids=lambda v: str(v)
)
def test_gradient(op: Op, low: float, high: float, shape: tuple[int, ...]) -> None:
    x = _inputs(low, high, shape, np.float64)
    # Keep away from the kinks, where there is no derivative.
    for kink in (0.0, 3.0, -3.0, 0.7, 0.4, -0.4):
        x = np.where(np.abs(x - kink) < 0.01, x + 0.05, x)
    check_gradient(op, [x])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("type", "formula"),
    [
        ("Exp", np.exp),
        ("Log", np.log),
        ("Sqrt", np.sqrt),
        ("Tanh", np.tanh),
        ("Sigmoid", _sigmoid),
        ("Erf", _erf),
        ("Relu", lambda x: np.where(np.isnan(x), x, np.maximum(x, 0))),
        ("Sin", np.sin),
        ("Abs", np.abs),
        ("Neg", np.negative),
        ("Reciprocal", lambda x: 1 / x),
        ("Softplus", lambda x: np.logaddexp(0, x)),
    ],
)
def test_special_values(type: str, formula: Any, dtype: Any) -> None:
    edge = np.finfo(dtype)
    zeros_and_limits = [0.0, -0.0, np.inf, -np.inf, np.nan, edge.max, edge.min, edge.tiny, -edge.tiny]
    around_overflow = [88, -87.5, 88.7, 88.8, -103, -104.5, 709.7, 709.9, -745.0, -746.0]
    small = [edge.smallest_subnormal, 1, -1, 1e-5, -1e-5, 30, -30]
    x = np.array([*zeros_and_limits, *around_overflow, *small], dtype)
    with np.errstate(all="ignore"):
        expected = formula(x.astype(np.float64)).astype(dtype)
    (found,) = run(Op(type), [x])
    tiny = 1e-37 if dtype == np.float32 else 1e-300  # results below may be flushed
    np.testing.assert_allclose(
        found, expected, rtol=1e-6 if dtype == np.float32 else 1e-12, atol=tiny, err_msg=type
    )


@pytest.mark.parametrize("type", ["Exp", "Tanh", "Sigmoid", "Erf", "Log"])
def test_float_accuracy_over_the_range(type: str) -> None:
    formula = {"Exp": np.exp, "Tanh": np.tanh, "Sigmoid": _sigmoid, "Erf": _erf, "Log": np.log}[type]
    x = np.concatenate([np.linspace(-20, 20, 40001), np.linspace(-1e-3, 1e-3, 2001)]).astype(np.float32)
    if type == "Log":
        x = np.exp(x.astype(np.float64)).astype(np.float32)
    expected = formula(x.astype(np.float64))
    (found,) = run(Op(type), [x])
    scale = np.maximum(np.abs(expected), np.finfo(np.float32).tiny)
    error = np.abs(found - expected) / scale
    limit = {"Log": 1e-6, "Tanh": 2e-7, "Sigmoid": 3e-7}.get(type, 4e-7)
    assert error.max() < limit, f"{type}: relative error {error.max():.2e} at x = {x[error.argmax()]}"


@pytest.mark.parametrize(("type", "formula"), [("Sin", np.sin), ("Cos", np.cos)])
def test_sine_and_cosine_in_float(type: str, formula: Any) -> None:
    draws = np.random.default_rng(0).uniform(-1, 1, (6, 20001))
    quarters = np.arange(-6000, 6000) * (np.pi / 2)  # where one of them is almost zero
    around_limit = [8191.999, 8192, np.nextafter(np.float32(8192), np.float32(9000)), -8193]
    x = np.concatenate([(draws.T * [1, 10, 1e3, 1e4, 1e6, 1e30]).ravel(), quarters, around_limit])
    x = x.astype(np.float32)
    (found,) = run(Op(type), [x])
    np.testing.assert_allclose(found, formula(x.astype(np.float64)), rtol=0, atol=1.2e-7)
    # Large numbers are computed in another way; their neighbors are not.
    (beside_large,) = run(Op(type), [np.where(np.arange(x.size) % 5 == 0, np.float32(1e9), x)])
    others = np.arange(x.size) % 5 != 0
    np.testing.assert_array_equal(beside_large[others], found[others])
    (at_zero,) = run(Op("Sin"), [np.array([0.0, -0.0, 1e-40, -1e-40], np.float32)])
    np.testing.assert_array_equal(np.signbit(at_zero), [False, True, False, True])


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_integers(dtype: Any) -> None:
    x = np.array([-5, -1, 0, 1, 7, np.iinfo(dtype).max], dtype)
    check_forward(Op("Neg"), [x], [-x])
    check_forward(Op("Abs"), [x], [np.abs(x)])
    check_forward(Op("Sign"), [x], [np.sign(x)])
    check_forward(Op("Relu"), [x], [np.maximum(x, 0).astype(dtype)])


def _weights(x: Array) -> Array:
    return uniform(*x.shape, low=-2, high=2, dtype=x.dtype, seed=5)


GRADIENT_OPERATORS: list[tuple[str, dict[str, float], Any]] = [
    ("ReluGrad", {}, lambda d, x: np.where(x > 0, d, 0)),
    ("SigmoidGrad", {}, lambda d, y: d * y * (1 - y)),
    ("TanhGrad", {}, lambda d, y: d * (1 - y * y)),
    ("LeakyReluGrad", {}, lambda d, y: np.where(y > 0, d, np.float32(0.01) * d)),
    ("LeakyReluGrad", {"alpha": 0.25}, lambda d, y: np.where(y > 0, d, 0.25 * d)),
    ("GeluGrad", {}, lambda d, x: d * (_phi(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi))),
    (
        "QuickGeluGrad",
        {"alpha": 0.5},
        lambda d, x: d * (_sigmoid(x / 2) + x / 2 * _sigmoid(x / 2) * _sigmoid(-x / 2)),
    ),
    (
        "FastGeluGrad",
        {},
        lambda d, x: d * (_fast_gelu(x + 1e-6) - _fast_gelu(x - 1e-6)) / 2e-6,
    ),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("type", "attributes", "formula"), GRADIENT_OPERATORS, ids=lambda v: str(v)[:20])
def test_gradient_operators(
    type: str, attributes: dict[str, float], formula: Any, shape: tuple[int, ...]
) -> None:
    for dtype, rtol in ((np.float32, 2e-6), (np.float64, 1e-12)):
        x = uniform(*shape, low=-3, high=3, dtype=dtype)
        d = _weights(x)
        wide = [v.astype(np.float64) for v in (d, x)]
        limit = (
            1e-8 if (type, dtype) == ("FastGeluGrad", np.float64) else rtol
        )  # its formula here is a difference
        check_forward(
            Op(type, attributes, MICROSOFT), [d, x], [np.asarray(formula(*wide)).astype(dtype)], rtol=limit
        )


def test_gelu_gradients_are_finite_far_out() -> None:
    x = np.array([-1e30, -1e10, -200, 200, 1e10, 1e30], np.float32)
    for type in ("GeluGrad", "FastGeluGrad", "QuickGeluGrad"):
        check_forward(Op(type, domain=MICROSOFT), [np.ones_like(x), x], [(x > 0).astype(np.float32)])


@pytest.mark.parametrize(
    ("type", "slope"), [("BiasGelu", "BiasGeluGrad_dX"), ("FastGelu", "BiasFastGeluGrad_dX")]
)
def test_gelu_with_bias(type: str, slope: str) -> None:
    x, b, d = uniform(2, 3, 9, low=-3, high=3), uniform(9, seed=2), uniform(2, 3, 9, seed=3)
    gelu = _fast_gelu if type == "FastGelu" else lambda v: v * _phi(v)
    check_forward(Op(type, domain=MICROSOFT), [x, b], [gelu(x + b)])
    check_gradient(Op(type, domain=MICROSOFT), [x, b])
    (plain,) = run(Op("FastGeluGrad" if type == "FastGelu" else "GeluGrad", domain=MICROSOFT), [d, x + b])
    check_forward(Op(slope, domain=MICROSOFT), [d, x, b], [plain], rtol=1e-14)
    check_rejected(Op(type, domain=MICROSOFT), [x, uniform(8)], "bias must have the type of X and the shape")


def test_large_tensors_are_cut_between_threads_without_a_seam() -> None:
    x = uniform(3, 100_003, low=-5, high=5, dtype=np.float32)
    check_forward(Op("Tanh"), [x], [np.tanh(x.astype(np.float64)).astype(np.float32)])
    check_forward(Op("Relu"), [x], [np.maximum(x, 0)])


def test_refusals() -> None:
    check_rejected(Op("Exp"), [np.array([1, 2])], "int64, which this operator does not accept")
    check_rejected(Op("Sigmoid"), [np.array([1, 2], np.int8)], "int8, which this operator does not accept")
    check_rejected(Op("ReluGrad", domain=MICROSOFT), [uniform(3), uniform(4)], "must have the same shape")
    check_rejected(
        Op("ReluGrad", domain=MICROSOFT),
        [uniform(3), uniform(3, dtype=np.float32)],
        "must have the same type",
    )
    check_rejected(
        Op("Gelu", {"approximate": "erf"}, opset=20), [uniform(3)], "approximate must be 'none' or 'tanh'"
    )


def test_gradient_of_relu_at_ties_is_zero() -> None:
    gradients = check_gradient(Op("Relu"), [apart(3, 4)])
    assert np.count_nonzero(gradients[0]) == 6
