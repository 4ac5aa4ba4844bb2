"""Attention compared with the reference implementation and stock onnxruntime, gradients with finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from helpers import (
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    gradient_model,
    make_model,
    run,
    run_model,
    uniform,
)
from onnx import helper
from onnx.reference import ReferenceEvaluator

SPECIAL_POINTS = {"not recorded": ["Attention"]}

BATCH, HEADS, QUERIES, KEYS, SIZE, V_SIZE = 2, 4, 5, 6, 3, 2

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scaled": {"scale": 0.25},
    "causal": {"is_causal": 1},
    "capped": {"softcap": 0.8},
    "capped_causal": {"softcap": 0.8, "is_causal": 1},
    "left_window": {"left_window_size": 1},
    "right_window": {"right_window_size": 1},
    "causal_window": {"left_window_size": 2, "right_window_size": 3, "is_causal": 1},
}


def operands(heads: int = HEADS, kv_heads: int = HEADS, dtype: Any = np.float64) -> list[Array]:
    return [
        uniform(BATCH, heads, QUERIES, SIZE, low=-2, high=2, dtype=dtype),
        uniform(BATCH, kv_heads, KEYS, SIZE, low=-2, high=2, dtype=dtype, seed=1),
        uniform(BATCH, kv_heads, KEYS, V_SIZE, dtype=dtype, seed=2),
    ]


def packed(x: Array) -> Array:
    """[batch, heads, rows, size] as [batch, rows, heads * size]."""
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1))


def op(attributes: dict[str, Any], outputs: int | tuple[bool, ...] = 1, opset: int = 25) -> Op:
    return Op("Attention", attributes, opset=opset, outputs=outputs)


def reference(attention: Op, inputs: list[Array | None]) -> list[Array]:
    model = make_model(attention, inputs)
    found = ReferenceEvaluator(model).run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
    return [np.asarray(x) for x in found]


def masks() -> dict[str, Array]:
    whole = np.random.default_rng(3).uniform(size=(BATCH, HEADS, QUERIES, KEYS)) < 0.7
    whole[0, 1, 2] = False  # a query that sees nothing
    return {
        "bool": whole,
        "bool_of_keys": np.random.default_rng(4).uniform(size=(BATCH, 1, 1, KEYS)) < 0.7,
        "bool_shared": whole[0, 0],
        "added": uniform(BATCH, HEADS, QUERIES, KEYS, low=-2, high=2, seed=5),
        "added_of_heads": uniform(HEADS, QUERIES, KEYS, seed=6),
        "added_of_queries": uniform(BATCH, 1, QUERIES, 1, seed=7),
    }


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kv_heads", [HEADS, 2, 1])
def test_settings_and_heads(name: str, kv_heads: int) -> None:
    q, k, v = operands(kv_heads=kv_heads)
    check_forward(op(SETTINGS[name]), [q, k, v], rtol=1e-11)
    check_gradient(op(SETTINGS[name]), [q, k, v])
    rows = op({**SETTINGS[name], "q_num_heads": HEADS, "kv_num_heads": kv_heads})
    check_forward(rows, [packed(q), packed(k), packed(v)], rtol=1e-11)
    check_gradient(rows, [packed(q), packed(k), packed(v)])


@pytest.mark.parametrize("name", SETTINGS)
def test_float(name: str) -> None:
    check_forward(op(SETTINGS[name]), operands(dtype=np.float32), rtol=5e-6)


@pytest.mark.parametrize("settings", ["plain", "causal", "capped", "causal_window"])
@pytest.mark.parametrize("mask", masks())
def test_masks(mask: str, settings: str) -> None:
    inputs: list[Array | None] = [*operands(), masks()[mask]]
    # A mask of opset 23 broadcasts along the keys; since opset 24 keys beyond it are hidden.
    attention = op(SETTINGS[settings], opset=23 if mask == "added_of_queries" else 25)
    # The reference takes the shape of the scores from the mask, so it gets the whole mask.
    whole = np.array(np.broadcast_to(masks()[mask], (BATCH, HEADS, QUERIES, KEYS)))
    expected = reference(attention, [*operands(), whole])
    check_forward(attention, inputs, expected[:1], rtol=1e-11)
    check_gradient(attention, inputs)


@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
def test_few_queries(name: str, queries: int, kv_heads: int) -> None:
    """So few queries that keys and values are not packed."""
    q, k, v = operands(kv_heads=kv_heads)
    mask = masks()["bool"][:, :, 3 - queries : 3]
    inputs: list[Array | None] = [q[:, :, :queries].copy(), k, v, mask.copy()]
    check_forward(op(SETTINGS[name]), inputs, rtol=1e-11)
    check_gradient(op(SETTINGS[name]), inputs)
    lengths: list[Array | None] = [*inputs[:3], None, None, None, np.array([6, 3])]
    check_forward(op(SETTINGS[name]), lengths, rtol=1e-11)
    check_gradient(op(SETTINGS[name]), lengths)


def test_scores_far_apart_and_no_numbers() -> None:
    """Probabilities down to the smallest float, and NaN only in the rows that it affects."""
    q = np.ones((1, 1, 3, 1), np.float32)
    k = -np.linspace(0, 120, 41, dtype=np.float32).reshape(1, 1, -1, 1)
    q[0, 0, 2] = np.nan
    v = np.eye(41, dtype=np.float32)[None, None]  # the result is the probabilities
    y = run(op({"scale": 1.0}), [q, k, v])[0][0, 0]
    scores = k[0, 0, :, 0].astype(np.float64)
    expected = np.exp(scores) / np.exp(scores).sum()
    for row in y[:2]:
        np.testing.assert_allclose(row, expected, 1e-6, np.finfo(np.float32).tiny)
    assert np.isnan(y[2]).all()


@pytest.mark.parametrize("kind", [bool, np.float64])
def test_a_short_mask_hides_the_keys_behind_it(kind: Any) -> None:
    mask = masks()["bool"][..., :4] if kind is bool else masks()["added"][..., :4]
    check_forward(op({}), [*operands(), mask], rtol=1e-11)
    check_gradient(op({}), [*operands(), mask])


@pytest.mark.parametrize("settings", ["plain", "causal", "left_window", "capped_causal"])
def test_lengths(settings: str) -> None:
    inputs: list[Array | None] = [*operands(), None, None, None, np.array([6, 3])]
    check_forward(op(SETTINGS[settings]), inputs, rtol=1e-11)
    check_gradient(op(SETTINGS[settings]), inputs)


@pytest.mark.parametrize("settings", ["plain", "causal", "left_window"])
@pytest.mark.parametrize("outputs", [1, 3])
def test_past_and_present(settings: str, outputs: int) -> None:
    q, k, v = operands()
    past = [uniform(BATCH, HEADS, 2, SIZE, seed=8), uniform(BATCH, HEADS, 2, V_SIZE, seed=9)]
    inputs: list[Array | None] = [q, k, v, None, *past]
    check_forward(op(SETTINGS[settings], outputs), inputs, rtol=1e-11)
    check_gradient(op(SETTINGS[settings], outputs), inputs)


def test_present_without_past() -> None:
    check_forward(op({}, 3), operands(), rtol=1e-11)
    check_gradient(op({}, 3), operands())
    rows = [packed(x) for x in operands()]
    check_forward(op({"q_num_heads": HEADS, "kv_num_heads": HEADS}, 3), rows, rtol=1e-11)


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("settings", ["plain", "causal"])
def test_scores(mode: int, settings: str) -> None:
    attributes = {**SETTINGS[settings], "qk_matmul_output_mode": mode}
    inputs: list[Array | None] = [*operands(), masks()["bool"]]
    expected = reference(op(attributes, 4), inputs)
    check_forward(op(attributes, (True, False, False, True)), inputs, [expected[0], expected[3]], rtol=1e-11)


def test_scores_shown_before_the_cap() -> None:
    q, k, v = operands()
    attention = op({"softcap": 0.8, "qk_matmul_output_mode": 0}, (True, False, False, True))
    product = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(SIZE)
    np.testing.assert_allclose(run(attention, [q, k, v])[1], product, 1e-12)


def test_softmax_in_double() -> None:
    q, k, v = operands(dtype=np.float32)
    wide = run(op({"softmax_precision": 11}), [q * 20, k * 20, v])[0]
    exact = run(op({}), [x.astype(np.float64) for x in (q * 20, k * 20, v)])[0]
    np.testing.assert_allclose(wide, exact, 1e-4, 1e-5)


@pytest.mark.parametrize(
    "shape", [(0, 2, 3, 4, 4), (2, 2, 0, 4, 4), (1, 1, 1, 1, 1), (2, 2, 3, 0, 4)], ids=str
)
def test_empty_and_single(shape: tuple[int, ...]) -> None:
    batch, heads, queries, keys, size = shape
    inputs = [
        uniform(batch, heads, queries, size),
        *[uniform(batch, heads, keys, size, seed=s) for s in (1, 2)],
    ]
    expected = np.zeros_like(inputs[0]) if 0 in shape else None
    check_forward(op({}), inputs, None if expected is None else [expected])
    check_gradient(op({}), inputs)


@pytest.mark.parametrize(
    ("queries", "keys", "size"),
    [(70, 150, 5), (201, 97, 17), (130, 130, 64), (13, 1100, 33), (1, 1100, 64), (2, 97, 70)],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("causal", [0, 1])
def test_many_tiles(queries: int, keys: int, size: int, dtype: Any, causal: int) -> None:
    """Sizes that are not multiples of tiles and vectors; gradients compared with formulas in double."""
    q, k = uniform(1, 3, queries, size, dtype=dtype), uniform(1, 3, keys, size, dtype=dtype, seed=1)
    v = uniform(1, 3, keys, size + 2, dtype=dtype, seed=2)
    weight = uniform(1, 3, queries, size + 2, dtype=dtype, seed=3)
    attention = op({"is_causal": causal})
    model = make_model(
        attention,
        [q, k, v],
        extra_nodes=[
            helper.make_node("Mul", ["y0", "weight"], ["weighted"]),
            helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0),
        ],
        extra_constants={"weight": weight},
        outputs=["loss"],
    )
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", kind, []))
    backward = gradient_model(model.SerializeToString(), ["x0", "x1", "x2"], "loss")
    found = run_model(backward, {"x0": q, "x1": k, "x2": v})

    q, k, v, weight = (x.astype(np.float64) for x in (q, k, v, weight))
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(size)
    if causal:
        scores = np.where(np.tri(queries, keys, dtype=bool), scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    dp = np.einsum("bhqd,bhkd->bhqk", weight, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(size)
    limit = {"rtol": 2e-4, "atol": 2e-6} if dtype is np.float32 else {"rtol": 1e-9, "atol": 1e-13}
    np.testing.assert_allclose(run(attention, [x.astype(dtype) for x in (q, k, v)])[0], p @ v, **limit)
    np.testing.assert_allclose(found["x0_grad"], ds @ k, **limit)
    np.testing.assert_allclose(found["x1_grad"], ds.swapaxes(2, 3) @ q, **limit)
    np.testing.assert_allclose(found["x2_grad"], p.swapaxes(2, 3) @ weight, **limit)


@pytest.mark.parametrize("settings", ["plain", "causal", "capped"])
def test_like_onnxruntime(settings: str) -> None:
    q, k, v = operands(dtype=np.float32)
    attention = op(SETTINGS[settings], opset=23)
    model = make_model(attention, [q, k, v])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", 1, [BATCH, HEADS, QUERIES, V_SIZE]))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, {"x0": q, "x1": k, "x2": v})
    check_forward(attention, [q, k, v], expected, rtol=1e-5)


def test_what_does_not_fit_is_rejected() -> None:
    q, k, v = operands()
    check_rejected(op({}), [q, k[..., :2], v], "the same size, found 3 and 2")
    check_rejected(op({}), [q, k, v[:, :, :5]], "as many values as keys")
    check_rejected(op({}), [q, k[:, :3], v[:, :3]], "must divide the 4 heads")
    check_rejected(op({}), [q, k, v.astype(np.float32)], "the same type")
    check_rejected(op({}), [packed(q), packed(k), packed(v)], "q_num_heads must divide")
    check_rejected(op({}), [q, k, v, uniform(3, 6)], "does not broadcast")
    check_rejected(op({}), [q, k, v, uniform(5, 6).astype(np.float32)], "mask must be bool or of the type")
    check_rejected(op({}), [q, k, v, None, k], "given together")
    check_rejected(op({}), [q, k, v, None, None, None, np.array([7, 1])], "sample 0 has 7 keys")
    check_rejected(op({"left_window_size": -2}), [q, k, v], "window must have")
    check_rejected(op({"qk_matmul_output_mode": 4}), [q, k, v], "must be 0 to 3")
