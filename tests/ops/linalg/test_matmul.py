"""Matrix products: MatMul, Gemm and FusedMatMul against NumPy, their gradients against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform

SPECIAL_POINTS = {"linear": ["Gemm"]}

# (A, B): vectors, matrices, batches, broadcast batches, dimensions of one and zero.
MATMUL_SHAPES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((5, 3), (3,)),
    ((5, 3), (3, 4)),
    ((1, 7), (7, 1)),
    ((1, 1), (1, 1)),
    ((2, 5, 3), (3, 4)),
    ((2, 3, 5, 3), (3, 4)),
    ((2, 5, 3), (2, 3, 4)),
    ((5, 3), (2, 3, 4)),
    ((3,), (2, 3, 4)),
    ((2, 5, 3), (3,)),
    ((2, 1, 5, 3), (1, 4, 3, 2)),
    ((4, 5, 3), (2, 4, 3, 2)),
    ((1, 5, 3), (6, 3, 2)),
]
EMPTY_SHAPES = [((0, 3), (3, 4)), ((5, 0), (0, 4)), ((2, 5, 3), (2, 3, 0)), ((0, 5, 3), (3, 4)), ((0,), (0,))]


def transposed(x: Array, trans: int, trans_batch: int = 0) -> Array:
    """An operand as FusedMatMul reads it: first axis after the batch axes, then the last two exchanged."""
    if x.ndim < 2:
        return x
    if trans_batch and x.ndim > 2:
        x = np.moveaxis(x, 0, -2)
    return np.swapaxes(x, -1, -2) if trans else x


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int32])
@pytest.mark.parametrize(("a", "b"), MATMUL_SHAPES + EMPTY_SHAPES)
def test_matmul_equals_numpy(a: tuple[int, ...], b: tuple[int, ...], dtype: Any) -> None:
    x, y = uniform(*a, low=-9, high=9, dtype=dtype), uniform(*b, low=-9, high=9, dtype=dtype, seed=1)
    check_forward(
        Op("MatMul"), [x, y], [np.matmul(x, y, dtype=dtype)], rtol=1e-5 if dtype == np.float32 else None
    )


@pytest.mark.parametrize(("a", "b"), [*MATMUL_SHAPES, ((0, 3), (3, 4)), ((5, 0), (0, 4))])
def test_gradient_of_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_gradient(Op("MatMul"), [uniform(*a), uniform(*b, seed=1)])


@pytest.mark.parametrize("opset", [12, 17])
def test_gradient_of_broadcast_matmul_in_either_form_of_reduction(opset: int) -> None:
    check_gradient(Op("MatMul", opset=opset), [uniform(2, 1, 3, 4), uniform(5, 4, 2, seed=1)])


@pytest.mark.parametrize(
    ("m", "k", "n"),
    [
        (64, 784, 500),
        (1, 784, 500),
        (500, 1, 784),
        (784, 500, 1),
        (10, 64, 500),
        (131, 67, 259),
        (33, 1, 1),
        (1, 1, 9),
    ],
)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_float_products_of_real_sizes_agree_with_double(
    m: int, k: int, n: int, trans_a: int, trans_b: int
) -> None:
    a = uniform(*((k, m) if trans_a else (m, k)))
    b = uniform(*((n, k) if trans_b else (k, n)), seed=1)
    bias = uniform(n, seed=2)
    op = Op("Gemm", {"transA": trans_a, "transB": trans_b})
    expected = transposed(a, trans_a) @ transposed(b, trans_b) + bias
    check_forward(op, [a, b, bias], [expected], rtol=1e-11)
    single = run(op, [x.astype(np.float32) for x in (a, b, bias)])[0]
    np.testing.assert_allclose(single, expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(
    "bias",
    [None, (), (1,), (7,), (1, 7), (5, 1), (5, 7), (1, 1)],
    ids=lambda s: "none" if s is None else str(s),
)
def test_gemm_equals_its_formula(
    bias: tuple[int, ...] | None, trans_a: int, trans_b: int, dtype: Any
) -> None:
    a, b = (
        uniform(*((3, 5) if trans_a else (5, 3)), dtype=dtype),
        uniform(*((7, 3) if trans_b else (3, 7)), dtype=dtype),
    )
    c = None if bias is None else np.asarray(uniform(*bias, seed=2), dtype)
    for alpha, beta in ((1.0, 1.0), (0.5, -2.0), (1.0, 0.0), (0.0, 1.0)):
        op = Op("Gemm", {"alpha": alpha, "beta": beta, "transA": trans_a, "transB": trans_b})
        expected = alpha * (transposed(a, trans_a) @ transposed(b, trans_b)) + (0 if c is None else beta * c)
        check_forward(op, [a, b, c] if c is not None else [a, b], [expected.astype(dtype)], rtol=1e-5)


@pytest.mark.parametrize("bias", [(), (1,), (96,), (1, 96), (80, 1), (80, 96)], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (0.25, -2.0)])
def test_large_float_gemm_adds_every_form_of_bias(bias: tuple[int, ...], alpha: float, beta: float) -> None:
    a, b, c = uniform(80, 64), uniform(64, 96, seed=1), np.asarray(uniform(*bias, seed=2))
    expected = alpha * (a @ b) + beta * c
    found = run(Op("Gemm", {"alpha": alpha, "beta": beta}), [x.astype(np.float32) for x in (a, b, c)])[0]
    np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((5, 0), (0, 4)), ((5, 3), (3, 0))])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_empty_gemm(shapes: tuple[tuple[int, int], tuple[int, int]], dtype: Any) -> None:
    a, b = uniform(*shapes[0], dtype=dtype), uniform(*shapes[1], dtype=dtype)
    c = uniform(b.shape[1], dtype=dtype)
    check_forward(Op("Gemm"), [a, b, c], [a @ b + c])


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("bias", [None, (), (1,), (4,), (1, 4), (5, 1), (5, 4)], ids=str)
def test_gradient_of_gemm(bias: tuple[int, ...] | None, trans_a: int, trans_b: int) -> None:
    a, b = uniform(*((3, 5) if trans_a else (5, 3))), uniform(*((4, 3) if trans_b else (3, 4)), seed=1)
    inputs = [a, b] if bias is None else [a, b, np.asarray(uniform(*bias, seed=2))]
    check_gradient(Op("Gemm", {"alpha": 0.5, "beta": -1.5, "transA": trans_a, "transB": trans_b}), inputs)
    check_gradient(Op("Gemm", {"transA": trans_a, "transB": trans_b}), inputs)


def fused(**attributes: Any) -> Op:
    return Op("FusedMatMul", attributes, domain=MICROSOFT)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)], ids=str)
@pytest.mark.parametrize("sizes", [(5, 3, 7), (48, 33, 40)], ids=str)
@pytest.mark.parametrize("flags", range(16))
def test_fused_matmul_reads_transposed_operands(
    flags: int, sizes: tuple[int, int, int], batch: tuple[int, ...], dtype: Any
) -> None:
    trans_a, trans_b, batch_a, batch_b = (flags >> i & 1 for i in range(4))
    m, k, n = sizes

    def operand(rows: int, columns: int, trans: int, trans_batch: int, seed: int) -> Array:
        first, last = (columns, rows) if trans else (rows, columns)
        shape = (first, *batch, last) if trans_batch else (*batch, first, last)
        return uniform(*shape, dtype=dtype, seed=seed)

    a, b = operand(m, k, trans_a, batch_a, 0), operand(k, n, trans_b, batch_b, 1)
    expected = 0.125 * (transposed(a, trans_a, batch_a) @ transposed(b, trans_b, batch_b))
    op = fused(transA=trans_a, transB=trans_b, transBatchA=batch_a, transBatchB=batch_b, alpha=0.125)
    check_forward(op, [a, b], [expected], rtol=1e-5 if dtype == np.float32 else None)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(
    ("a_batch", "b_batch"), [((), ()), ((2,), ()), ((), (2,)), ((2,), (2,)), ((1, 2), (3, 1))]
)
def test_gradient_of_fused_matmul(
    a_batch: tuple[int, ...], b_batch: tuple[int, ...], trans_a: int, trans_b: int
) -> None:
    a = uniform(*a_batch, *((3, 5) if trans_a else (5, 3)))
    b = uniform(*b_batch, *((4, 3) if trans_b else (3, 4)), seed=1)
    check_gradient(fused(transA=trans_a, transB=trans_b, alpha=0.5), [a, b])


@pytest.mark.parametrize(
    "shapes",
    [((32, 128, 64), (32, 64, 128)), ((2, 8, 100, 32), (2, 8, 32, 100)), ((7, 64, 33), (1, 33, 65))],
    ids=str,
)
def test_batched_float_products_agree_with_double(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = uniform(*shapes[0]), uniform(*shapes[1], seed=1)
    found = run(Op("MatMul"), [a.astype(np.float32), b.astype(np.float32)])[0]
    expected = a @ b
    np.testing.assert_allclose(found, expected, 0, 1e-5 * np.abs(expected).max())


def test_products_that_do_not_fit_are_rejected() -> None:
    check_rejected(Op("MatMul"), [uniform(5, 3), uniform(4, 2)], "3 columns.*4 rows")
    check_rejected(Op("MatMul"), [uniform(2, 5, 3), uniform(3, 3, 2)], "dimensions 2 and 3")
    check_rejected(Op("MatMul"), [np.float64(1), uniform(3)], "at least one axis")
    check_rejected(Op("MatMul"), [uniform(5, 3), uniform(3, 2, dtype=np.float32)], "float64 and float32")
    check_rejected(Op("Gemm"), [uniform(2, 5, 3), uniform(3, 2)], "must be matrices")
    check_rejected(
        Op("Gemm"), [uniform(5, 3), uniform(3, 2), uniform(3)], r"broadcast to \[5, 2\], found \[3\]"
    )
    check_rejected(Op("MatMul"), [np.ones((2, 2), np.int8), np.ones((2, 2), np.int8)], "int8")
