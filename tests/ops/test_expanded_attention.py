"""Attention of com.microsoft against stock onnxruntime, FlexAttention against its reference; gradients against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from differences import central_differences
from helpers import MICROSOFT, Array, Op, check_forward, check_gradient, check_rejected, make_model, uniform
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from runner import gradient_model, run_model

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


def flex_model(mods: dict[str, onnx.GraphProto], q: Array, k: Array, v: Array) -> onnx.ModelProto:
    node = helper.make_node("FlexAttention", ["q", "k", "v"], ["y"], domain="ai.onnx.preview", **mods)
    kind = helper.np_dtype_to_tensor_dtype(q.dtype)
    graph = helper.make_graph(
        [
            node,
            helper.make_node("Mul", ["y", "y"], ["square"]),
            helper.make_node("ReduceSum", ["square"], ["loss"], keepdims=0),
        ],
        "flex",
        [helper.make_tensor_value_info(n, kind, x.shape) for n, x in (("q", q), ("k", k), ("v", v))],
        [helper.make_tensor_value_info("loss", kind, [])],
    )
    imports = [
        helper.make_opsetid("", 26),
        helper.make_opsetid("ai.onnx.preview", 1),
        helper.make_opsetid(MICROSOFT, 1),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=13)


def graph_of(kind: str, value: float) -> onnx.GraphProto:
    scores = helper.make_tensor_value_info("given", TensorProto.DOUBLE, None)
    made = helper.make_tensor_value_info("made", TensorProto.DOUBLE, None)
    number = helper.make_tensor("number", TensorProto.DOUBLE, [], [value])
    nodes = [
        helper.make_node(kind, ["given", "number"], ["between"]),
        helper.make_node("Tanh", ["between"], ["made"]),
    ]
    return helper.make_graph(nodes, kind, [scores], [made], [number])


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize(
    "mods",
    [
        {},
        {"score_mod": graph_of("Mul", 0.7)},
        {"score_mod": graph_of("Add", 0.3), "prob_mod": graph_of("Mul", 2.0)},
    ],
    ids=["plain", "score", "both"],
)
def test_flex_attention_is_trained_through(mods: dict[str, onnx.GraphProto], kv_heads: int) -> None:
    q, k, v = uniform(1, 4, 3, 2), uniform(1, kv_heads, 4, 2, seed=1), uniform(1, kv_heads, 4, 3, seed=2)
    model = flex_model(mods, q, k, v)
    feeds = {"q": q, "k": k, "v": v}
    forward = model.SerializeToString()
    expected = ReferenceEvaluator(model).run(None, feeds)[0]
    np.testing.assert_allclose(run_model(forward, feeds)["loss"], expected, 1e-6)
    found = run_model(gradient_model(forward, list(feeds), "loss"), feeds)
    for name, x in feeds.items():
        numeric = central_differences(
            lambda moved, name=name: float(run_model(forward, {**feeds, name: moved})["loss"]),
            x,
            places=list(np.ndindex(x.shape))[::5],
        )
        compared = ~np.isnan(numeric)
        assert compared.any()
        np.testing.assert_allclose(found[f"{name}_grad"][compared], numeric[compared], 1e-4, 1e-8)
