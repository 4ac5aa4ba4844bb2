"""GroupQueryAttention against stock onnxruntime; gradients against finite differences."""

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

BATCH, LENGTH, HEADS, KV_HEADS, SIZE, PAST = 2, 5, 4, 2, 16, 7
WIDTH, KV_WIDTH = HEADS * SIZE, KV_HEADS * SIZE
ANGLES = np.arange(20)[:, None] / 10.0 ** np.linspace(0, 2, SIZE // 2)
CACHES = [np.cos(ANGLES), np.sin(ANGLES)]
ROTATED = {"do_rotary": 1}
SETTINGS: list[dict[str, Any]] = [
    {},
    ROTATED,
    {**ROTATED, "rotary_interleaved": 1},
    {"local_window_size": 3},
    {"scale": 0.4, "softcap": 1.5},
]


def op(outputs: int = 1, **attributes: Any) -> Op:
    settings = {"num_heads": HEADS, "kv_num_heads": KV_HEADS, **attributes}
    return Op("GroupQueryAttention", settings, MICROSOFT, outputs=outputs)


def operands(length: int = LENGTH) -> list[Array | None]:
    return [
        uniform(BATCH, length, WIDTH),
        uniform(BATCH, length, KV_WIDTH, seed=1),
        uniform(BATCH, length, KV_WIDTH, seed=2),
    ]


def packed(length: int = LENGTH) -> list[Array | None]:
    return [np.concatenate([x for x in operands(length) if x is not None], axis=-1), None, None]


def past(room: int = PAST) -> list[Array | None]:
    return [uniform(BATCH, KV_HEADS, room, SIZE, seed=seed) for seed in (3, 4)]


def counts(lengths: list[int]) -> list[Array | None]:
    return [np.array(lengths, np.int32) - 1, np.array(max(lengths), np.int32)]


def caches(attributes: dict[str, Any]) -> list[Array | None]:
    return list(CACHES) if attributes.get("do_rotary") else []


def onnxruntime_results(attention: Op, inputs: list[Array | None]) -> list[Array]:
    model = make_model(attention, inputs)
    for i, output in enumerate(model.graph.output):
        output.CopyFrom(helper.make_tensor_value_info(output.name, 1, [None] * (4 if i else 3)))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return [
        np.asarray(x) for x in session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
    ]


def narrowed(inputs: list[Array | None]) -> list[Array | None]:
    return [x.astype(np.float32) if x is not None and x.dtype == np.float64 else x for x in inputs]


@pytest.mark.parametrize("operands_of", [operands, packed], ids=["apart", "packed"])
@pytest.mark.parametrize("attributes", SETTINGS, ids=str)
def test_texts_from_their_beginning(attributes: dict[str, Any], operands_of: Any) -> None:
    inputs = [*operands_of(), None, None, *counts([LENGTH] * BATCH), *caches(attributes)]
    floats = narrowed(inputs)
    floats[3:5] = [np.zeros((BATCH, KV_HEADS, 0, SIZE), np.float32)] * 2
    expected = onnxruntime_results(op(3, **attributes), floats)
    check_forward(op(3, **attributes), floats, expected, rtol=2e-5, atol=1e-6)
    check_forward(op(3, **attributes), narrowed(inputs), expected, rtol=2e-5, atol=1e-6)
    check_gradient(op(3, **attributes), inputs, wrt=[i for i in range(3) if inputs[i] is not None])


@pytest.mark.parametrize("room", [0, 12], ids=["no_cache", "shared_cache"])
def test_padding_at_the_end_changes_only_the_padding(room: int) -> None:
    lengths = [3, LENGTH]
    inputs = narrowed([*operands(), *past(room), *counts(lengths), *CACHES])
    expected = onnxruntime_results(op(**ROTATED), inputs)[0]
    without = [*inputs[:3], None, None, *inputs[5:]]
    for given in (inputs, without):
        found = run(op(**ROTATED), given)[0]
        for sample, length in enumerate(lengths):
            np.testing.assert_allclose(found[sample, :length], expected[sample, :length], 2e-5, 1e-6)


# onnxruntime takes several samples only with one new token each.
@pytest.mark.parametrize(("added", "lengths"), [(1, [8, 8]), (1, [5, 8]), (3, [10])], ids=str)
@pytest.mark.parametrize("room", [PAST, 12], ids=["cache", "shared_cache"])
@pytest.mark.parametrize("attributes", SETTINGS, ids=str)
def test_keys_behind_those_of_a_cache(
    attributes: dict[str, Any], room: int, added: int, lengths: list[int]
) -> None:
    samples = len(lengths)
    inputs = [x[:samples] for x in (*operands(added), *past(room)) if x is not None]
    inputs = [*inputs, *counts(lengths), *caches(attributes)]
    floats = narrowed(inputs)
    y, *present = onnxruntime_results(op(3, **attributes), floats)
    found = run(op(3, **attributes), floats)
    np.testing.assert_allclose(found[0], y, 2e-5, 1e-6)
    for mine, theirs in zip(found[1:], present, strict=True):
        assert mine.shape == theirs.shape
        for sample, length in enumerate(lengths):
            np.testing.assert_allclose(mine[sample, :, :length], theirs[sample, :, :length], 2e-5, 1e-6)
    check_gradient(op(3, **attributes), inputs, wrt=range(5))


@pytest.mark.parametrize("room", [None, PAST], ids=["no_cache", "cache"])
def test_given_positions_and_biases_of_scores(room: int | None) -> None:
    lengths = [LENGTH if room is None else LENGTH + room]
    inputs = [x[:1] for x in operands() if x is not None]
    inputs += [None, None] if room is None else [x[:1] for x in past(room) if x is not None]
    # At the beginning of a text, onnxruntime counts from the first position, whatever the others are.
    positions = np.array([[3, 4, 5, 6, 7] if room is None else [3, 1, 4, 1, 5]], np.int64)
    inputs += [*counts(lengths), *CACHES, positions, uniform(1, HEADS, LENGTH, lengths[0], seed=9)]
    floats = narrowed(inputs)
    if room is None:
        floats[3:5] = [np.zeros((1, KV_HEADS, 0, SIZE), np.float32)] * 2
    expected = onnxruntime_results(op(3, **ROTATED), floats)  # without present_key, it drops past_key
    check_forward(op(3, **ROTATED), narrowed(inputs), expected, rtol=2e-5, atol=1e-6)
    check_gradient(op(3, **ROTATED), inputs, wrt=[0, 1, 2, 10])


def test_a_part_of_each_head_is_rotated() -> None:
    """onnxruntime requires that a multiple of 16 elements is rotated."""
    attention = op(3, num_heads=HEADS // 2, kv_num_heads=KV_HEADS // 2, **ROTATED)
    no_past = [np.zeros((BATCH, KV_HEADS // 2, 0, 2 * SIZE))] * 2
    inputs = [*operands(), *no_past, *counts([LENGTH] * BATCH), *CACHES]
    expected = onnxruntime_results(attention, narrowed(inputs))
    check_forward(attention, narrowed(inputs), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "epsilons", [{"qk_norm_epsilon": 0.125}, {"q_norm_epsilon": 0.25, "k_norm_epsilon": 0.5}]
)
def test_queries_and_keys_are_normalized_before_the_rotation(epsilons: dict[str, float]) -> None:
    """onnxruntime's kernel for processors rejects the weights, so the operator without them is the reference."""
    q, k, v = (x for x in operands() if x is not None)
    weights = [uniform(SIZE, seed=7), uniform(SIZE, seed=8)]

    def normalized(x: Array, weight: Array, epsilon: float) -> Array:
        heads = x.reshape(BATCH, LENGTH, -1, SIZE)
        return (heads / np.sqrt((heads**2).mean(-1, keepdims=True) + epsilon) * weight).reshape(x.shape)

    rest = [None, None, *counts([LENGTH] * BATCH), *CACHES]
    shared = epsilons.get("qk_norm_epsilon", 0)
    of_q = normalized(q, weights[0], epsilons.get("q_norm_epsilon", shared))
    of_k = normalized(k, weights[1], epsilons.get("k_norm_epsilon", shared))
    expected = run(op(**ROTATED), [of_q, of_k, v, *rest])
    nothing: list[Array | None] = [None] * 5
    inputs = [q, k, v, *rest, *nothing, *weights]
    check_forward(op(**ROTATED, **epsilons), inputs, expected, rtol=1e-10)
    check_gradient(op(**ROTATED, **epsilons), inputs, wrt=[0, 1, 2, 14, 15])


def test_what_is_not_supported_is_named() -> None:
    q, k, v = operands()
    length = counts([LENGTH] * BATCH)
    nothing: list[Array | None] = [None] * 4
    check_rejected(op(num_heads=3), [q, k, v, None, None, *length], "must divide num_heads, found 2 and 3")
    check_rejected(op(num_heads=6), [q, None, None, None, None, *length], "multiple of 10, found 64")
    check_rejected(op(smooth_softmax=1), [q, k, v, None, None, *length], "smooth_softmax are not supported")
    check_rejected(op(do_rotary=1), [q, k, v, None, None, *length], "requires inputs cos_cache and sin_cache")
    check_rejected(op(), [q, k, None, None, None, *length], "key and value must be given together")
    check_rejected(op(), [q, k, v, past()[0], None, *length], "past_value must be given together")
    check_rejected(op(), [q, k, v, None, None, *length, *nothing, np.zeros(HEADS)], "head_sink")
    check_rejected(op(causal=0), [q, k, v, None, None, *length], "causal must be 1")
    caches = [q, k, v, *past(), *length]
    check_rejected(op(sliding_window_cache=1), caches, "sliding_window_cache")
    one = [q, k, v, None, None, *length, *nothing, *nothing[:3], np.ones(SIZE)]
    check_rejected(op(), one, "k_norm_weight must be given together")
    new = [*one[:-1], None, None, np.ones(BATCH, np.int32)]
    check_rejected(op(), new, "query_seqlens is not supported")
    check_rejected(op(), [*one[:12], np.ones(1)], "a quantized cache")
    check_rejected(op(4), [q, k, v, None, None, *length], "output_qk is not supported")
