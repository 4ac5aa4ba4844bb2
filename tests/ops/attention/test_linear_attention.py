"""LinearAttention, against the reference evaluator and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not in PyTorch": ["LinearAttention"]}

BATCH, TOKENS, KV_HEADS, SIZE, V_SIZE = 2, 5, 2, 3, 4


def linear_inputs(
    rule: str, heads: int, past: bool, decays: int = SIZE, rates: int = KV_HEADS, dtype: Any = np.float64
) -> list[Array | None]:
    inputs: list[Array | None] = [
        uniform(BATCH, TOKENS, heads * SIZE, dtype=dtype),
        uniform(BATCH, TOKENS, KV_HEADS * SIZE, dtype=dtype, seed=1),
        uniform(BATCH, TOKENS, KV_HEADS * V_SIZE, dtype=dtype, seed=2),
        uniform(BATCH, KV_HEADS, SIZE, V_SIZE, dtype=dtype, seed=3) if past else None,
        uniform(BATCH, TOKENS, KV_HEADS * decays, low=-1, high=0, dtype=dtype, seed=4)
        if "gated" in rule
        else None,
        uniform(BATCH, TOKENS, rates, low=0, high=1, dtype=dtype, seed=5) if "delta" in rule else None,
    ]
    while inputs[-1] is None:
        inputs.pop()
    return inputs


def linear(rule: str, heads: int = KV_HEADS, outputs: int | tuple[bool, ...] = 2, **more: Any) -> Op:
    attributes = {"q_num_heads": heads, "kv_num_heads": KV_HEADS, "update_rule": rule, **more}
    return Op("LinearAttention", attributes, opset=27, outputs=outputs)


RULES = ["linear", "gated", "delta", "gated_delta"]


@pytest.mark.parametrize("heads", [KV_HEADS, 3 * KV_HEADS])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_linear_attention(rule: str, past: bool, heads: int) -> None:
    floats = linear_inputs(rule, heads, past, dtype=np.float32)
    # The reference computes in float whatever the type of the operands.
    check_forward(linear(rule, heads), floats, rtol=1e-5)
    check_gradient(linear(rule, heads), linear_inputs(rule, heads, past))


@pytest.mark.parametrize("decays", [1, SIZE])
@pytest.mark.parametrize("rates", [1, KV_HEADS])
def test_decays_and_rates_that_are_shared(decays: int, rates: int) -> None:
    rule = "gated_delta"
    floats = linear_inputs(rule, KV_HEADS, True, decays, rates, np.float32)
    check_forward(linear(rule, scale=0.3), floats, rtol=1e-5)
    check_gradient(linear(rule, scale=0.5), linear_inputs(rule, KV_HEADS, True, decays, rates))


@pytest.mark.parametrize("output", [0, 1])
def test_the_gradient_of_either_output_alone(output: int) -> None:
    op = linear("gated_delta", outputs=(True, output == 1))
    check_gradient(op, linear_inputs("gated_delta", KV_HEADS, True), outputs=[output])


@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (1, 1)])
def test_few_tokens(shape: tuple[int, int]) -> None:
    inputs = [x[: shape[0], : shape[1]] for x in linear_inputs("linear", KV_HEADS, False) if x is not None]
    check_forward(linear("linear"), [x.astype(np.float32) for x in inputs], rtol=1e-5)
    check_gradient(linear("linear"), inputs)


def test_linear_attention_rejects_what_does_not_fit() -> None:
    q, k, v, past, decay, rate = linear_inputs("gated_delta", KV_HEADS, True)
    rule = "gated_delta"
    check_rejected(linear("other"), [q, k, v], "update_rule must be")
    check_rejected(linear(rule), [q, k, v], "needs decay")
    check_rejected(linear("linear"), [q, k, v, past, decay], "takes no decay")
    check_rejected(linear(rule), [q, k, v, past, decay], "needs beta")
    check_rejected(linear(rule, heads=3), [q, k, v, past, decay, rate], "multiple of kv_num_heads")
    assert k is not None
    check_rejected(linear(rule), [q, k[:, :4], v, past, decay, rate], "key must have shape")
    check_rejected(linear(rule), [q, k, v, k, decay, rate], "past_state must have shape")
