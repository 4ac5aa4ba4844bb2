"""MultiHeadAttention against stock onnxruntime, its gradient against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, make_model, uniform
from onnx import helper

SPECIAL_POINTS = {"not in PyTorch": ["com.microsoft.MultiHeadAttention"]}

BATCH, QUERIES, KEYS, HEADS, SIZE, V_SIZE = 2, 3, 4, 2, 3, 5


def operands(dtype: Any = np.float64) -> list[Array | None]:
    return [
        uniform(BATCH, QUERIES, HEADS * SIZE, low=-2, high=2, dtype=dtype),
        uniform(BATCH, KEYS, HEADS * SIZE, low=-2, high=2, dtype=dtype, seed=1),
        uniform(BATCH, KEYS, HEADS * V_SIZE, dtype=dtype, seed=2),
    ]


def op(outputs: int = 1, **attributes: Any) -> Op:
    return Op("MultiHeadAttention", {"num_heads": HEADS, **attributes}, MICROSOFT, outputs=outputs)


def check_like_onnxruntime(attention: Op, inputs: list[Array | None]) -> None:
    floats = [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in inputs]
    model = make_model(attention, floats)
    for i, output in enumerate(model.graph.output):
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, [None] * (4 if i else 3)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {f"x{i}": x for i, x in enumerate(floats) if x is not None})
    check_forward(attention, floats, [np.asarray(x) for x in expected], rtol=2e-5)


BIAS = uniform(2 * HEADS * SIZE + HEADS * V_SIZE, seed=3)
SEEN = np.random.default_rng(0).integers(0, 2, (BATCH, KEYS)).astype(np.int32)
SEEN[:, 0] = 1
PADDINGS: dict[str, Array] = {
    "keys": SEEN,
    "lengths": np.array([4, 2], np.int32),
    "lengths_and_starts": np.array([4, 2, 0, 3, 6, 0, 4, 8], np.int32),
    "queries_and_keys": np.stack([SEEN] * QUERIES, 1) | np.eye(QUERIES, KEYS, dtype=np.int32),
}


@pytest.mark.parametrize("attributes", [{}, {"scale": 0.3}, {"unidirectional": 1}], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_multi_head_attention(bias: bool, attributes: dict[str, Any]) -> None:
    q, k, v = operands()
    if "unidirectional" in attributes:
        assert k is not None
        assert v is not None
        k, v = k[:, :QUERIES], v[:, :QUERIES]  # onnxruntime lets the last query see all keys
    inputs = [q, k, v, *([BIAS] if bias else [])]
    check_like_onnxruntime(op(**attributes), inputs)
    check_gradient(op(**attributes), inputs)


@pytest.mark.parametrize("shape", [(1, 1), (1, HEADS), (BATCH, 1), (BATCH, HEADS)], ids=str)
@pytest.mark.parametrize("padding", ["", *PADDINGS])
def test_masks(padding: str, shape: tuple[int, int]) -> None:
    scores = uniform(*shape, QUERIES, KEYS, seed=4)
    inputs = [*operands(), BIAS, PADDINGS[padding] if padding else None, scores]
    check_like_onnxruntime(op(mask_filter_value=-50.0), inputs)
    check_gradient(op(mask_filter_value=-50.0), inputs)


@pytest.mark.parametrize("padding", PADDINGS)
def test_padding_alone(padding: str) -> None:
    inputs = [*operands(), None, PADDINGS[padding]]
    if padding != "lengths":
        check_like_onnxruntime(op(), inputs)
    check_gradient(op(), inputs)


def test_keys_that_are_heads_already() -> None:
    q, k, _ = operands()
    assert k is not None
    heads = [np.ascontiguousarray(x.reshape(BATCH, KEYS, HEADS, -1).transpose(0, 2, 1, 3)) for x in (k, -k)]
    check_like_onnxruntime(op(), [q, *heads])
    check_gradient(op(), [q, *heads])


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}], ids=str)
def test_past_and_present(attributes: dict[str, Any]) -> None:
    past = [uniform(BATCH, HEADS, 2, SIZE, seed=5), uniform(BATCH, HEADS, 2, SIZE, seed=6)]
    q = operands()[0]
    check_like_onnxruntime(op(3, **attributes), [q, q, q, None, None, None, *past])
    check_like_onnxruntime(op(3, **attributes), [q, q, q])


@pytest.mark.parametrize("extra", ["", "bias", "padding", "lengths", "score_bias"])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}], ids=str)
def test_past_and_present_have_gradients(attributes: dict[str, Any], outputs: int, extra: str) -> None:
    """With the present keys and values as outputs, gradients also flow through them."""
    q, k, v = operands()
    past = [uniform(BATCH, HEADS, 2, SIZE, seed=5), uniform(BATCH, HEADS, 2, V_SIZE, seed=6)]
    seen = np.ones((BATCH, KEYS + 2), np.int32)
    seen[1, 3:] = 0
    inputs = [
        q, k, v,
        BIAS if extra == "bias" else None,
        seen if extra == "padding" else np.array([6, 4], np.int32) if extra == "lengths" else None,
        uniform(BATCH, HEADS, QUERIES, KEYS + 2, seed=7) if extra == "score_bias" else None,
        *past,
    ]  # fmt: skip
    check_gradient(op(outputs, mask_filter_value=-50.0, **attributes), inputs)
    if extra in ("", "bias"):
        check_gradient(op(outputs, **attributes), inputs[:4])


def test_keys_by_heads_join_the_past_with_a_gradient() -> None:
    q = operands()[0]
    heads = [uniform(BATCH, HEADS, KEYS, SIZE, seed=1), uniform(BATCH, HEADS, KEYS, V_SIZE, seed=2)]
    past = [uniform(BATCH, HEADS, 2, SIZE, seed=5), uniform(BATCH, HEADS, 2, V_SIZE, seed=6)]
    check_gradient(op(3), [q, *heads, None, None, None, *past])
    check_gradient(op(3), [q, *heads])


def test_what_does_not_fit_is_rejected() -> None:
    q, k, v = operands()
    assert k is not None
    check_rejected(op(), [q, k[..., :5], v], "num_heads must divide")
    check_rejected(op(), [q, k[..., :4], v], "the same size, found 3 and 2")
    check_rejected(op(), [q, k, v, BIAS[1:]], "bias must have shape")
    check_rejected(op(), [q, k, v, None, SEEN[:, :3]], "key_padding_mask must be int32")
    check_rejected(op(), [q], "packed into one")
    check_rejected(op(), [q, k, v, None, None, None, k], "given together")
