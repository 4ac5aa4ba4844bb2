"""Attention of com.microsoft, against stock onnxruntime; gradients against finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    make_model,
    run,
    uniform,
)
from onnx import helper

BATCH, LENGTH, WIDTH, HEADS, SIZE = 2, 3, 5, 2, 3


def inputs(hidden: int = 3 * HEADS * SIZE) -> list[Array | None]:
    return [uniform(BATCH, LENGTH, WIDTH), uniform(WIDTH, hidden, seed=1), uniform(hidden, seed=2)]


def op(outputs: int = 1, **attributes: Any) -> Op:
    return Op("Attention", {"num_heads": HEADS, **attributes}, MICROSOFT, outputs=outputs)


def check_like_onnxruntime(attention: Op, given: list[Array | None]) -> None:
    floats = [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in given]
    model = make_model(attention, floats)
    for i, output in enumerate(model.graph.output):
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, [None] * (5 if i else 3)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {f"x{i}": x for i, x in enumerate(floats) if x is not None})
    check_forward(attention, floats, [np.asarray(x) for x in expected], rtol=2e-5)


@pytest.mark.parametrize("attributes", [{}, {"unidirectional": 1}, {"scale": 0.4}], ids=str)
def test_attention_with_its_weights(attributes: dict[str, Any]) -> None:
    check_like_onnxruntime(op(**attributes), inputs())
    check_gradient(op(**attributes), inputs())


def test_values_of_another_size() -> None:
    sizes = [HEADS * SIZE, HEADS * SIZE, HEADS * 2]
    check_like_onnxruntime(op(qkv_hidden_sizes=sizes), inputs(sum(sizes)))
    check_gradient(op(qkv_hidden_sizes=sizes), inputs(sum(sizes)))


@pytest.mark.parametrize(
    "mask", [np.array([[1, 1, 0], [1, 1, 1]], np.int32), np.array([3, 2], np.int32)], ids=["keys", "lengths"]
)
def test_masks(mask: Array) -> None:
    check_like_onnxruntime(op(), [*inputs(), mask])
    check_gradient(op(), [*inputs(), mask])
    biased = [*inputs(), mask, None, uniform(BATCH, HEADS, LENGTH, LENGTH, seed=3)]
    check_like_onnxruntime(op(), biased)
    check_gradient(op(), biased)


def test_past_and_present() -> None:
    past = uniform(2, BATCH, HEADS, 4, SIZE, seed=4)
    check_like_onnxruntime(op(2, unidirectional=1), [*inputs(), None, past])


def test_what_is_not_supported_is_named() -> None:
    check_rejected(op(), inputs(16), "multiple of 3, found 16")
    x, w, b = inputs()
    check_rejected(op(do_rotary=1), [x, w, b], "do_rotary is not supported")


def quantized(x: Array) -> tuple[Array, Array, Array]:
    """Codes, scale and zero point of a range with zero."""
    step = np.asarray((x.max() - x.min()) / 255, np.float32)
    zero = np.round(-x.min() / step)
    return np.clip(np.round(x / step) + zero, 0, 255).astype(np.uint8), step, np.asarray(zero, np.uint8)


@pytest.mark.parametrize("columns", [(), (3 * HEADS * SIZE,)], ids=["matrix", "columns"])
@pytest.mark.parametrize(
    "mask", [None, np.array([[1, 1, 0], [1, 1, 1]], np.int32), np.array([3, 2], np.int32)]
)
@pytest.mark.parametrize("largest", [63, 127])
def test_attention_of_quantized_operands(largest: int, mask: Array | None, columns: tuple[int, ...]) -> None:
    x, w, b = (value.astype(np.float32) for value in inputs() if value is not None)
    codes, step, zero = quantized(x)
    scale = np.broadcast_to(np.float32(np.abs(w).max() / largest), columns).copy()
    weights = np.round(w / scale).astype(np.int8)
    given = [codes, weights, b, step, scale, mask, zero, np.zeros(columns, np.int8)]
    attention = Op("QAttention", {"num_heads": HEADS, "unidirectional": 0}, MICROSOFT)
    # Without VNNI, onnxruntime adds two products in 16 bits: with weights of eight bits, they overflow.
    if largest == 63:
        check_like_onnxruntime(attention, given)
    exact = [((codes.astype(np.float32) - zero) * step), weights * scale, b, mask]
    close = run(op(), exact)[0]
    np.testing.assert_allclose(run(attention, given)[0], close, 1e-4, 1e-5)
