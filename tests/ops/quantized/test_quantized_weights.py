"""MatMulNBits, MatMulBnb4 and GatherBlockQuantized, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform
from quantized_cases import by_onnxruntime, codes, f32

SPECIAL_POINTS = {"not in PyTorch": ["com.microsoft.MatMulBnb4", "com.microsoft.MatMulNBits"]}


def unpacked(packed: Array, bits: int) -> Array:
    """The codes along the last axis."""
    per_byte = 8 // bits
    mask = (1 << bits) - 1
    return np.stack([(packed >> (bits * i)) & mask for i in range(per_byte)], -1).reshape(
        *packed.shape[:-1], -1
    )


def weights_of(
    packed: Array, scales: Array, zeros: Array | None, groups: Array | None, bits: int, k: int
) -> Array:
    n, blocks, _ = packed.shape
    value = unpacked(packed, bits).reshape(n, -1)[:, :k].astype(np.float64)
    place = np.repeat(np.arange(blocks), value.shape[1] // blocks + 1)[:k] if groups is None else groups[:k]
    if groups is None:
        place = np.arange(k) // (packed.shape[2] * 8 // bits)
    if zeros is None:
        zero = np.full((n, blocks), float(1 << (bits - 1)))
    elif zeros.dtype == np.uint8:
        zero = unpacked(zeros.reshape(n, -1), bits)[:, :blocks].astype(np.float64)
    else:
        zero = zeros.reshape(n, blocks).astype(np.float64)
    return (value - zero[:, place]) * scales.reshape(n, blocks).astype(np.float64)[:, place]


def packed_inputs(
    n: int, k: int, block: int, bits: int, zeros: str, dtype: Any = np.float32
) -> list[Array | None]:
    blocks = -(-k // block)
    packed = codes(n, blocks, block * bits // 8, seed=bits)
    scales = uniform(n, blocks, dtype=dtype, seed=1, low=0.01, high=0.1)
    zero: Array | None = None
    if zeros == "packed":
        zero = codes(n, -(-blocks * bits // 8), seed=2)
    elif zeros == "float":
        zero = uniform(n, blocks, dtype=dtype, seed=3, low=0, high=1 << bits)
    return [packed, scales, zero]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32, 128])
@pytest.mark.parametrize("zeros", ["none", "packed", "float"])
@pytest.mark.parametrize(
    ("lead", "n", "k"),
    [((3,), 6, 40), ((2, 3), 130, 128), ((1,), 65, 17), ((37,), 301, 300), ((2, 260), 20, 17)],
    ids=str,
)
def test_matmul_nbits(lead: tuple[int, ...], n: int, k: int, bits: int, block: int, zeros: str) -> None:
    a = f32(*lead, k)
    packed, scales, zero = packed_inputs(n, k, block, bits, zeros)
    assert packed is not None
    assert scales is not None
    op = Op("MatMulNBits", {"N": n, "K": k, "bits": bits, "block_size": block}, MICROSOFT)
    w = weights_of(packed, scales, zero, None, bits, k)
    check_forward(op, [a, packed, scales, zero], [(a @ w.T).astype(np.float32)], rtol=2e-5)
    if not (bits == 8 and zeros == "float"):  # which onnxruntime does not run
        inputs: list[Array | None] = [a, packed, scales.ravel(), None if zero is None else zero.ravel()]
        check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=2e-3)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("grouped", [False, True])
def test_matmul_nbits_gradient(bits: int, grouped: bool) -> None:
    n, k, block = 70, 40, 16
    packed, scales, zero = packed_inputs(n, k, block, bits, "packed", np.float64)
    assert packed is not None
    assert scales is not None
    groups = np.random.default_rng(1).integers(0, 3, k).astype(np.int32) if grouped else None
    a, bias = uniform(3, k), uniform(n, seed=5)
    op = Op("MatMulNBits", {"N": n, "K": k, "bits": bits, "block_size": block}, MICROSOFT)
    inputs = [a, packed, scales, zero, groups, bias]
    w = weights_of(packed, scales, zero, groups, bits, k)
    check_forward(op, inputs, [a @ w.T + bias], rtol=1e-11)
    check_gradient(op, inputs, wrt=[0, 5])
    back = Op("MatMulNBitsGrad", op.attributes, MICROSOFT)
    dy = uniform(2, 3, n)
    check_forward(back, [dy, *inputs[1:5]], [dy @ w], rtol=1e-11)
    check_gradient(back, [uniform(1, n), *inputs[1:5]], wrt=[0])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("m", "n", "k"), [(37, 301, 300), (520, 20, 600), (16, 700, 17)], ids=str)
def test_matmul_nbits_of_many_rows_both_ways(m: int, n: int, k: int, bits: int) -> None:
    packed, scales, zero = packed_inputs(n, k, 16, bits, "packed")
    assert packed is not None
    assert scales is not None
    w = weights_of(packed, scales, zero, None, bits, k)
    op = Op("MatMulNBits", {"N": n, "K": k, "bits": bits, "block_size": 16}, MICROSOFT)
    a, bias, dy = f32(m, k), f32(n, seed=5), f32(m, n, seed=6)
    check_forward(op, [a, packed, scales, zero, None, bias], [(a @ w.T + bias).astype(np.float32)], rtol=2e-5)
    back = Op("MatMulNBitsGrad", op.attributes, MICROSOFT)
    check_forward(back, [dy, packed, scales, zero], [(dy @ w).astype(np.float32)], rtol=2e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits_in_half_precision(bits: int) -> None:
    packed, scales, zero = packed_inputs(6, 40, 16, bits, "packed")
    assert packed is not None
    assert scales is not None
    scales = scales.astype(np.float16)
    a = f32(3, 40).astype(np.float16)
    op = Op("MatMulNBits", {"N": 6, "K": 40, "bits": bits, "block_size": 16}, MICROSOFT)
    expected = a.astype(np.float64) @ weights_of(packed, scales, zero, None, bits, 40).T
    [found] = run(op, [a, packed, scales, zero])
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, expected, 2e-3, 2e-3 * np.abs(expected).max())


def test_matmul_nbits_rejects_what_does_not_fit() -> None:
    op = Op("MatMulNBits", {"N": 6, "K": 40, "bits": 4, "block_size": 16}, MICROSOFT)
    packed, scales, zero = packed_inputs(6, 40, 16, 4, "packed")
    a = f32(3, 40)
    check_rejected(op, [f32(3, 41), packed, scales, zero], "last axis of A must have size 40")
    check_rejected(op, [a, packed[:5], scales, zero], "the weights must hold 144")
    check_rejected(op, [a, packed, scales[:5], zero], "scales must hold 18")
    check_rejected(op, [a, packed, scales, zero[:5]], "zero_points must hold 12")
    check_rejected(op, [a, packed, scales.astype(np.float64), zero], "type of A")
    odd = Op("MatMulNBits", {"N": 6, "K": 40, "bits": 3, "block_size": 16}, MICROSOFT)
    check_rejected(odd, [a, packed, scales, zero], "bits must be 2, 4 or 8")
    groups = np.full(40, 3, np.int32)
    with pytest.raises(RuntimeError, match=r"under_test.*3"):
        run(op, [a, packed, scales, zero, groups])


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind: int) -> None:
    n, k = 5, 32
    packed, largest = codes(n * k // 2), f32(n * k // 16, low=0.1, seed=1)
    attributes = {"N": n, "K": k, "block_size": 16, "quant_type": kind}
    op = Op("MatMulBnb4", attributes, MICROSOFT)
    inputs = [f32(3, k), packed, largest]
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-5)
    wide = [uniform(3, k), packed, largest.astype(np.float64)]
    check_gradient(op, wide, wrt=[0])
    w = run(op, [np.eye(k), *wide[1:]])[0].T
    back = Op("MatMulBnb4", attributes | {"transB": 0}, MICROSOFT)
    dy = uniform(3, n)
    check_forward(back, [dy, *wide[1:]], [dy @ w], rtol=1e-12)
    check_gradient(back, [dy, *wide[1:]], wrt=[0])


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_gather_block_quantized(bits: int, zeros: bool, dtype: Any) -> None:
    table = codes(5, 64 * bits // 8)
    zero = codes(5, -(-2 * bits // 8), seed=1) if zeros else None
    inputs = [table, np.array([[1, 4], [0, -1]], dtype), f32(5, 2, low=0.01, seed=2), zero]
    op = Op("GatherBlockQuantized", {"bits": bits, "block_size": 32, "quantize_axis": 1}, MICROSOFT)
    check_forward(op, inputs, by_onnxruntime(op, inputs), rtol=1e-6)
    with pytest.raises(RuntimeError, match=r"under_test.*5"):
        run(op, [table, np.array([5], dtype), *inputs[2:]])
