"""Values without elements take no time, however large their other dimensions are.

The models are processed by a child process: what takes hours would otherwise block the tests.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import GradientGraphBuilder

SHAPE = (1 << 31, 1, 1, 0)
ATTRIBUTES = {
    "LRN": {"size": 3},
    "Softmax": {"axis": -1},
    "LogSoftmax": {"axis": 1},
    "Hardmax": {"axis": 1},
    "LpNormalization": {"axis": 1},
    "MeanVarianceNormalization": {},
    "InstanceNormalization": {},
    "LayerNormalization": {"axis": 1},
    "BatchNormalization": {},
    "Relu": {},
    "Erf": {},
    "Dropout": {},
    "Transpose": {"perm": [1, 0, 2, 3]},
    "DepthToSpace": {"blocksize": 1},
    "CumSum": {},
    "Slice": {},
    "Tile": {},
    "TopK": {},
    "Gather": {"axis": 1},
    "Trilu": {},
    "ReduceSum": {"keepdims": 0},
    "ReduceMean": {"keepdims": 0},
    "ReduceL2": {"keepdims": 0},
}
MORE_INPUTS: dict[str, list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]] = {
    "InstanceNormalization": [np.ones(1, np.float32)] * 2,
    "LayerNormalization": [np.ones((1, 1, 0), np.float32)],
    "BatchNormalization": [np.ones(1, np.float32)] * 4,
    "CumSum": [np.array(1)],
    "Slice": [np.array([0]), np.array([1 << 30]), np.array([0])],
    "Tile": [np.array([1, 2, 1, 1])],
    "TopK": [np.array([0])],
    "Gather": [np.array([0, 0])],
}
LONG = 120
"""Seconds that all operators together may take; they take a few. Without the checks one takes hours."""


def model(op_type: str, constant: bool) -> onnx.ModelProto:
    """Return a node over a value without elements, which is a constant of the model or an input."""
    more = MORE_INPUTS.get(op_type, [])
    names = ["x", *(f"more{i}" for i in range(len(more)))]
    outputs = ["y", "indices"] if op_type == "TopK" else ["y"]
    nodes = [helper.make_node(op_type, names, outputs, "node", **ATTRIBUTES[op_type])]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)]
    if constant:
        value = helper.make_tensor("value", TensorProto.FLOAT, SHAPE, [])
        nodes.insert(0, helper.make_node("Constant", [], ["x"], value=value))
        inputs = []
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for value, name in zip(more, names[1:], strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def process(op_type: str) -> None:
    """Create sessions, run them, and build a gradient."""
    print(f"{op_type}:", flush=True)
    for constant in (True, False):
        print(f"  {'constant' if constant else 'input'}: creation", end="", flush=True)
        session = ortrain.InferenceSession(model(op_type, constant).SerializeToString())
        print(", run", end="", flush=True)
        given = {} if constant else {"x": np.zeros(SHAPE, np.float32)}
        found = session.run(["y"], given)[0]
        assert isinstance(found, np.ndarray)
        expected = 1 if op_type.startswith("Reduce") else 0
        assert found.size == expected
        print(", done", flush=True)
    builder = GradientGraphBuilder(model(op_type, False).SerializeToString(), {"y"}, {"x"}, "")
    print("  gradient", end="", flush=True)
    try:
        builder.build()
    except ortrain.OrtrainError as error:
        print(f": {error}", end="")
    print(", done", flush=True)


@pytest.mark.first_case
@pytest.mark.parametrize("op_type", ATTRIBUTES)
def test_an_operator_over_no_elements_is_quick(op_type: str) -> None:
    subprocess.run([sys.executable, __file__, op_type], check=True, timeout=LONG)


if __name__ == "__main__":
    process(sys.argv[1])
