"""Operators that draw random numbers: moments, seeds, types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_rejected, make_model, run, run_model
from onnx import TensorProto

MANY = 40001


def drawn(
    name: str, attributes: dict[str, Any], shape: tuple[int, ...] = (MANY,), dtype: Any = np.float32
) -> Array:
    kind = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}[dtype]
    if name.endswith("Like"):
        return run(Op(name, {"dtype": int(kind), **attributes}), [np.zeros(shape, np.float32)])[0]
    return run(Op(name, {"shape": list(shape), "dtype": int(kind), **attributes}), [])[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", ["", "Like"])
def test_normal_numbers(suffix: str, dtype: Any) -> None:
    x = drawn(f"RandomNormal{suffix}", {"mean": 2.0, "scale": 3.0, "seed": 1.0}, dtype=dtype)
    assert x.dtype == dtype
    assert x.shape == (MANY,)
    z = (x.astype(np.float64) - 2) / 3
    # Moments of the normal distribution, within five standard errors.
    error = 5 / np.sqrt(MANY)
    assert abs(z.mean()) < error
    assert abs((z**2).mean() - 1) < np.sqrt(2) * error
    assert abs((z**3).mean()) < np.sqrt(15) * error
    assert abs((z**4).mean() - 3) < np.sqrt(96) * error
    assert abs((z[:-1] * z[1:]).mean()) < error


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", ["", "Like"])
def test_uniform_numbers(suffix: str, dtype: Any) -> None:
    x = drawn(f"RandomUniform{suffix}", {"low": -1.0, "high": 3.0, "seed": 1.0}, dtype=dtype)
    assert x.dtype == dtype
    counts, _ = np.histogram(x, 20, (-1, 3))
    assert counts.sum() == MANY
    # Chi-squared with 19 degrees of freedom: 50 has probability 1e-4.
    assert ((counts - MANY / 20) ** 2 / (MANY / 20)).sum() < 50


def test_numbers_differ_between_runs_and_repeat_with_the_seed() -> None:
    op = Op("RandomNormal", {"shape": [8], "seed": 3.0})
    model = make_model(op, []).SerializeToString()
    first, again, second = (run_model(model, {}, repeat)["y0"] for repeat in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, run(Op("RandomNormal", {"shape": [8], "seed": 4.0}), [])[0])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    assert drawn("RandomUniformLike", {}, shape).shape == shape
    if shape:  # an empty list has no type
        assert drawn("RandomNormal", {}, shape).shape == shape


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8])
def test_bernoulli(kind: int) -> None:
    p = np.repeat(np.array([0, 0.3, 0.9, 1], np.float32), 10000)
    y = (
        run(Op("Bernoulli", {"dtype": int(kind), "seed": 1.0}), [p])[0]
        .astype(np.float64)
        .reshape(4, -1)
        .mean(1)
    )
    np.testing.assert_array_equal(y[[0, 3]], [0, 1])
    np.testing.assert_allclose(y[1:3], [0.3, 0.9], atol=0.025)
    assert run(Op("Bernoulli"), [p])[0].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_multinomial(dtype: Any) -> None:
    p = np.array([[0.1, 0.2, 0.7], [0.5, 0, 0.5]])
    kind = TensorProto.INT32 if dtype == np.int32 else TensorProto.INT64
    with np.errstate(divide="ignore"):
        logits = np.log(p) + np.array([[3], [-200]])
    y = run(Op("Multinomial", {"sample_size": 20000, "dtype": int(kind), "seed": 1.0}), [logits])[0]
    assert y.dtype == dtype
    found = np.array([np.bincount(row, minlength=3) / row.size for row in y])
    np.testing.assert_allclose(found, p, atol=0.02)
    assert found[1, 1] == 0


def test_bad_attributes_are_rejected() -> None:
    check_rejected(
        Op("RandomNormal", {"shape": [2], "dtype": int(TensorProto.INT32)}), [], "cannot produce values"
    )
    check_rejected(Op("RandomNormal", {"shape": [-2]}), [], "negative")
    check_rejected(Op("RandomUniform"), [], "attribute shape is required")
    check_rejected(Op("Multinomial"), [np.zeros(3)], "must have two axes")
    check_rejected(Op("Multinomial", {"dtype": 1}), [np.zeros((1, 3))], "dtype must be")
