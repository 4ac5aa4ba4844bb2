"""QGemm, MatMulIntegerToFloat and DynamicQuantizeMatMul, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Op, check_forward, run
from quantized_cases import by_onnxruntime, check_quantized, codes, f32, scale, straight_through


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("per_column", [False, True])
def test_gemm(trans_b: int, per_column: bool) -> None:
    a, b = codes(5, 8), codes(*((6, 8) if trans_b else (8, 6)), dtype=np.int8, seed=1)
    b_scale = f32(6, low=0.001, high=0.003) if per_column else scale(0.002)
    b_zero = np.zeros(6, np.int8) if per_column else np.array(0, np.int8)
    c = codes(6, dtype=np.int16, seed=2).astype(np.int32)
    attributes = {"transB": trans_b, "alpha": 0.5}
    inputs = [a, scale(0.05), np.array(3, np.uint8), b, b_scale, b_zero, c]
    check_quantized(Op("QGemm", attributes, MICROSOFT), [*inputs, scale(0.02), np.array(9, np.uint8)])
    op = Op("QGemm", attributes, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-5)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("biased", [False, True])
def test_matmul_integer_to_float(per_column: bool, dtype: Any, biased: bool) -> None:
    b_scale, b_zero = (
        (f32(6, low=0.01), codes(6, dtype=dtype)) if per_column else (scale(0.02), np.array(7, dtype))
    )
    inputs = [codes(2, 5, 8), codes(8, 6, dtype=dtype), scale(0.1), b_scale, np.array(3, np.uint8), b_zero]
    op = Op("MatMulIntegerToFloat", {}, MICROSOFT)
    inputs += [f32(6, seed=4)] if biased else []
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-5)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_dynamic_quantize_matmul(per_column: bool, zero: bool, biased: bool) -> None:
    b_scale = f32(6, low=0.01) if per_column else scale(0.02)
    b_zero = None if not zero else codes(6, dtype=np.int8) if per_column else np.array(7, np.int8)
    inputs = [f32(2, 5, 8), codes(8, 6, dtype=np.int8), b_scale, b_zero, f32(6, seed=4) if biased else None]
    op = Op("DynamicQuantizeMatMul", {}, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-5)


def test_a_long_product_is_summed_in_integers() -> None:
    """The sum does not fit in the 24 bits of a float, and must not lose precision before it is scaled."""
    length = 1024
    a = np.full((1, length), 255, np.uint8)
    b = np.full((length, 2), 127, np.int8)
    b[:, 1] = -128
    a[0, -1] = 254
    one = np.float32(1)
    op = Op("MatMulIntegerToFloat", {}, MICROSOFT)
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert np.abs(exact).min() > 2**24
    inputs = [a, b, np.asarray(one), np.asarray(one), np.array(0, np.uint8), np.array(0, np.int8)]
    np.testing.assert_array_equal(run(op, inputs)[0], exact.astype(np.float32))


def test_dynamic_quantize_matmul_passes_gradients_to_its_activations() -> None:
    a, b, s, weight = f32(5, 8), codes(8, 6, dtype=np.int8), scale(0.02), f32(5, 6, seed=3)
    found = straight_through(Op("DynamicQuantizeMatMul", {}, MICROSOFT), [a, b, s], 0, weight)
    np.testing.assert_allclose(found, weight @ (b * 0.02).T.astype(np.float32), 1e-5, 1e-6)
