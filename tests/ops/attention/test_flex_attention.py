"""FlexAttention, against its reference; gradients against finite differences."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import (
    MICROSOFT,
    Array,
    differences_of,
    gradient_model,
    run_model,
    uniform,
)
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


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
    numerics = differences_of(forward, feeds, list(feeds), places=lambda x: list(np.ndindex(x.shape))[::5])
    for name, numeric in zip(feeds, numerics, strict=True):
        compared = ~np.isnan(numeric)
        assert compared.any()
        np.testing.assert_allclose(found[f"{name}_grad"][compared], numeric[compared], 1e-4, 1e-8)
