"""Models that are built in memory, or extended before they run, behave as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import numpy as np
import onnx
from languages import library_folder
from onnx import helper, numpy_helper


def linear_model(path: Path) -> Path:
    """A model that computes y from x."""
    w = numpy_helper.from_array((np.arange(16).reshape(4, 4) - 8).astype(np.float32), "w")
    b = numpy_helper.from_array(np.array([0.5, -0.5, 1, -1], np.float32), "b")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")], "g", [x], [y], [w, b]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_model_that_is_built_or_extended_in_memory_runs_as_in_onnxruntime(tmp_path: Path) -> None:
    program = both.compile_program(tmp_path, "model_editor.c", "model_editor")
    printed = both.run_on_both(program, linear_model(tmp_path / "model.onnx"), tmp_path)
    assert printed.count("  16.5 17.5 21 21") == 5
    assert "a missing value: code 2" in printed


def test_a_graph_that_is_built_can_be_read(tmp_path: Path) -> None:
    program = both.compile_program(tmp_path, "built_graph.c", "built_graph")
    assert both.run(program, library_folder() / "libortrain.so") == [
        "ort->ValueInfo_GetValueProducer(y, &none, &count): code 9",
        "ort->Node_GetInputs(gemm, &value, 3): code 9",
        "ort->Graph_GetNumOperatorSets(graph, &count): code 9",
        "ort->Node_GetSinceVersion(gemm, &(int){0}): code 9",
        "operators '' 17",
        "graph inputs: x w",
        "x: required 1 default 0 output 0 constant 0 outer 0, producer 0, uses 2, tensor 0, file 0",
        "w: required 0 default 1 output 0 constant 0 outer 0, producer 0, uses 1, tensor 1, file 0",
        "graph outputs: y",
        "y: required 0 default 0 output 1 constant 0 outer 0, producer 1, uses 0, tensor 0, file 0",
        "initializers: w b",
        "b: required 0 default 0 output 0 constant 1 outer 0, producer 0, uses 1, tensor 1, file 0",
        "2 nodes, parent 0",
        "node gemm in its graph: 1",
        "ort->Node_GetSinceVersion(node, &since): code 0",
        f"since {onnx.defs.get_schema('Gemm', 17).since_version}",
        "provider: 0",
        "inputs: x w b",
        "ort->Node_GetInputs(node, values, count - 1): code 2",
        "outputs: h",
        "implicit inputs:",
        "attribute alpha of kind 3",
        'ort->Node_GetAttributeByName(node, "alpha", attributes): code 0',
        'ort->Node_GetAttributeByName(node, "beta", attributes): code 0',
        "beta: 0",
        'ort->Node_GetAttributeByName(node, "gamma", attributes): code 14',
        "subgraphs: 0",
        "inputs of clip: h - x",
        "h: required 0 default 0 output 0 constant 0 outer 0, producer 1, uses 1, tensor 0, file 0",
        "rank 2",
        "ort->Graph_GetGraphView(graph, nodes, 1, &view): code 0",
        "inputs of the view: x w",
        "outputs of the view: h",
        "ort->Graph_GetGraphView(graph, nodes, 1, &other): code 2",
    ]
