"""BitmaskDropout, BiasDropout and BiasSoftmaxDropout, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, run, uniform

SPECIAL_POINTS = {"linear": ["com.microsoft.BitmaskDropout"]}


def _bits(mask: Array, count: int) -> Array:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:count].astype(bool)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000, 200_003])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bitmask_dropout(count: int, dtype: Any) -> None:
    x = uniform(count, low=0.5, high=1, dtype=dtype)
    ratio, training = np.array(0.3, np.float32), np.array(True)
    op = Op("BitmaskDropout", {"seed": 5}, MICROSOFT, outputs=2)
    y, mask = run(op, [x, ratio, training])
    assert mask.dtype == np.uint32
    assert mask.shape == ((count + 31) // 32,)
    kept = _bits(mask, count)
    np.testing.assert_allclose(y, np.where(kept, x / dtype(0.7), 0), 1e-6)
    assert not _bits(mask, 32 * mask.size)[count:].any()
    if count > 1000:
        assert abs(kept.mean() - 0.7) < 0.01
    dy = uniform(count, dtype=dtype, seed=2)
    back = Op("BitmaskDropoutGrad", {}, MICROSOFT)
    check_forward(back, [dy, mask, ratio, training], [np.where(kept, dy / dtype(0.7), 0)], rtol=1e-6)
    plain = run(op, [x])
    np.testing.assert_array_equal(plain[0], x)
    assert _bits(plain[1], count).all()
    check_forward(back, [dy, mask], [np.where(kept, dy, 0)])


def test_bitmask_dropout_passes_gradients_to_what_it_kept() -> None:
    op = Op("BitmaskDropout", {"seed": 5}, MICROSOFT, outputs=2)
    check_gradient(op, [uniform(40), np.array(0.3), np.array(True)], wrt=[0], outputs=[0])


def test_bitmask_dropout_rejects_a_mask_of_another_size() -> None:
    inputs = [uniform(40), np.zeros(3, np.uint32)]
    check_rejected(Op("BitmaskDropoutGrad", {}, MICROSOFT), inputs, r"uint32\[2\]")


@pytest.mark.parametrize("kind", ["BiasDropout", "BitmaskBiasDropout"])
@pytest.mark.parametrize("residual", [False, True])
def test_bias_dropout(kind: str, residual: bool) -> None:
    x, bias = uniform(4, 10), uniform(10, seed=1)
    rest = uniform(4, 10, seed=2) if residual else None
    ratio, training = np.array(0.5), np.array(True)
    op = Op(kind, {"seed": 3}, MICROSOFT, outputs=2)
    y, mask = run(op, [x, bias, rest, ratio, training])
    kept = _bits(mask, 40).reshape(4, 10) if kind.startswith("Bit") else mask
    assert kept.any()
    assert not kept.all()
    expected = np.where(kept, (x + bias) * 2, 0) + (0 if rest is None else rest)
    np.testing.assert_allclose(y, expected, 1e-12)
    check_gradient(op, [x, bias, rest, ratio, training], wrt=[0, 1, 2] if residual else [0, 1], outputs=[0])


@pytest.mark.parametrize("axis", [1, 2, -1])
def test_bias_softmax_dropout(axis: int) -> None:
    x, bias, ratio = uniform(2, 3, 4), uniform(1, 3, 4, seed=1), np.array(0.5)
    op = Op("BiasSoftmaxDropout", {"axis": axis, "is_inner_broadcast": 1, "seed": 9}, MICROSOFT, outputs=3)
    y, mask, s = run(op, [x, bias, ratio])
    rows = (x + bias).reshape((2, -1) if axis == 1 else (6, -1))
    powers = np.exp(rows - rows.max(1, keepdims=True))
    expected = (powers / powers.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(s, expected, 1e-12)
    np.testing.assert_allclose(y, np.where(mask, 2 * expected, 0), 1e-12)
    check_gradient(op, [x, bias, ratio], wrt=[0, 1], outputs=[0])
    dy = uniform(2, 3, 4, seed=4)
    d = np.where(mask, 2 * dy, 0)
    flat = (d * s).reshape(rows.shape).sum(-1, keepdims=True)
    wanted = s * d - (s.reshape(rows.shape) * flat).reshape(x.shape)
    check_forward(
        Op("SoftmaxDropoutGrad", {"axis": axis}, MICROSOFT), [dy, mask, s, ratio], [wanted], rtol=1e-12
    )
