"""Matrix products of com.microsoft with what is fused into them, against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, uniform
from microsoft_cases import check, f32

SPECIAL_POINTS = {"linear": ["com.microsoft.FusedMatMul"]}

ACTIVATIONS: list[tuple[str, dict[str, float]]] = [
    ("Relu", {}),
    ("Sigmoid", {}),
    ("Tanh", {}),
    ("LeakyRelu", {"activation_alpha": 0.2}),
    ("Elu", {"activation_alpha": 1.5}),
    ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
    ("Softplus", {}),
    ("Softsign", {}),
    ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
    ("ThresholdedRelu", {"activation_alpha": 0.05}),
]


@pytest.mark.parametrize(("activation", "settings"), ACTIVATIONS, ids=[a for a, _ in ACTIVATIONS])
def test_fused_gemm(activation: str, settings: dict[str, float]) -> None:
    attributes: dict[str, Any] = {
        "activation": activation,
        "alpha": 0.7,
        "beta": 1.3,
        "transB": 1,
        **settings,
    }
    check(Op("FusedGemm", attributes, MICROSOFT), [f32(2, 3), f32(4, 3, seed=1), f32(4, seed=2)])


def test_fused_gemm_without_activation_or_bias() -> None:
    a, b = uniform(3, 2), uniform(3, 4)
    check(Op("FusedGemm", {"activation": "Relu", "transA": 1}, MICROSOFT), [f32(3, 2), f32(3, 4, seed=1)])
    check_forward(Op("FusedGemm", {"transA": 1}, MICROSOFT), [a, b], [a.T @ b])


def test_an_unknown_activation_is_named() -> None:
    op = Op("FusedGemm", {"activation": "Cubic"}, MICROSOFT)
    check_rejected(op, [f32(2, 3), f32(3, 4)], "'Cubic' is not supported")


@pytest.mark.parametrize("a", [(2, 3, 4, 5), (3, 4, 5)], ids=str)
@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize("batch", [(1, 0), (0, 1), (1, 1), (0, 0)], ids=str)
def test_fused_matmul_with_transposed_batches(
    a: tuple[int, ...], trans_a: int, trans_b: int, batch: tuple[int, int]
) -> None:
    front, (m, n, k) = list(a[:-2]), (3, 2, 4)

    def operand(rows: int, columns: int, trans: int, turned: int, front: list[int], seed: int) -> Array:
        if trans:
            rows, columns = columns, rows
        return f32(*([rows, *front, columns] if turned else [*front, rows, columns]), seed=seed)

    inputs = [operand(m, k, trans_a, batch[0], front, 0), operand(k, n, trans_b, batch[1], front, 1)]
    attributes = {
        "transA": trans_a, "transB": trans_b, "transBatchA": batch[0], "transBatchB": batch[1], "alpha": 0.5,
    }  # fmt: skip
    check(Op("FusedMatMul", attributes, MICROSOFT), inputs)


def test_transpose_matmul() -> None:
    op = Op("TransposeMatMul", {"transA": 1, "alpha": 2.0}, MICROSOFT)
    check(op, [f32(2, 4, 3), f32(2, 4, 5, seed=1)])


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("biased", [False, True])
def test_gemm_fast_gelu(biased: bool) -> None:
    x, w, b = uniform(2, 3), uniform(3, 4, seed=1), uniform(4, seed=2)
    op = Op("GemmFastGelu", {}, MICROSOFT)
    inputs = [x, w, b] if biased else [x, w]
    check_forward(op, inputs, [_gelu_tanh(x @ w + (b if biased else 0))], rtol=1e-10)
    check_gradient(op, inputs)


def test_fused_matmul_activation() -> None:
    a, b = uniform(2, 3, 4), uniform(4, 5, seed=1)
    op = Op("FusedMatMulActivation", {"activation": "Softmax", "activation_axis": -1}, MICROSOFT)
    y = np.exp(a @ b)
    check_forward(op, [a, b], [y / y.sum(-1, keepdims=True)], rtol=1e-12)
    check_gradient(op, [a, b])


def test_matmul_integer16() -> None:
    a, b = (
        np.random.default_rng(i).integers(-900, 900, s).astype(np.int16)
        for i, s in enumerate([(2, 3), (3, 4)])
    )
    check_forward(Op("MatMulInteger16", {}, MICROSOFT), [a, b], [a.astype(np.int32) @ b.astype(np.int32)])
