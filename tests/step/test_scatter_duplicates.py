"""Sums over duplicate indices in onnxruntime: step models add up gradients of embeddings and pooling by ScatterElements.

ScatterND of onnxruntime 1.32 loses updates here if it runs on several threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

ROWS, READS, WIDTH = 50, 40_000, 64


def test_many_duplicates_are_added_up_exactly_on_several_threads() -> None:
    """The numbers are integers, whose sums do not depend on the order; a lost update would change them."""
    rng = np.random.default_rng(0)
    places = rng.integers(0, ROWS, READS)
    indices = np.repeat(places[:, None], WIDTH, 1)
    updates = rng.integers(-8, 9, (READS, WIDTH)).astype(np.float32)
    inputs = {"data": np.zeros((ROWS, WIDTH), np.float32), "indices": indices, "updates": updates}
    node = helper.make_node("ScatterElements", list(inputs), ["sums"], axis=0, reduction="add")
    graph = helper.make_graph(
        [node],
        "sums",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ],
        [helper.make_tensor_value_info("sums", TensorProto.FLOAT, [ROWS, WIDTH])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    expected = np.zeros((ROWS, WIDTH))
    np.add.at(expected, places, updates)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    for _ in range(10):
        np.testing.assert_array_equal(session.run(None, inputs)[0], expected)

    # With rounding: the same bits in every run, so that training can be repeated.
    inputs["updates"] = rng.normal(size=updates.shape).astype(np.float32)
    first: Any = session.run(None, inputs)[0]
    for _ in range(10):
        np.testing.assert_array_equal(session.run(None, inputs)[0], first)
