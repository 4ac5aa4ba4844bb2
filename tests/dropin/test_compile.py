"""Compiling models, settings of environments and devices of C programs are as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


def save_model(folder: Path) -> Path:
    """What compile.c opens."""
    w = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    b = numpy_helper.from_array(np.array([1, 2, -300], np.float32), "b")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["s"], name="sum"),
        helper.make_node("Identity", ["s"], ["i"], name="same"),
        helper.make_node("Relu", ["i"], ["y"], name="relu"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", [x], [y], [w, b])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.metadata_props.add(key="ep_compatibility_info.Other", value="all of it")
    onnx.save(model, folder / "model.onnx")
    return folder


def test_models_are_compiled_and_devices_answer_as_in_onnxruntime(tmp_path: Path) -> None:
    program = both.compile_program(tmp_path, "compile.c", "compile", ["-Wno-cast-function-type"])
    printed = both.run_on_both(program, save_model(tmp_path))
    assert "  y: 0 0 0 61 72 0" in printed
    assert "  weights: 48 bytes" in printed
    assert "  CPUExecutionProvider: product '' MatMul," in printed


def test_initializers_are_compiled_into_memory_as_in_onnxruntime(tmp_path: Path) -> None:
    weights = [
        numpy_helper.from_array(np.arange(4, dtype=np.float32).reshape(1, 4), "tiny"),
        numpy_helper.from_array(np.arange(6, dtype=np.float32), "small"),
        numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w"),
        numpy_helper.from_array(np.arange(9, dtype=np.float32).reshape(3, 3), "v"),
    ]
    nodes = [
        helper.make_node("Add", ["x", "tiny"], ["t"]),
        helper.make_node("MatMul", ["t", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["b"]),
        helper.make_node("ReduceSum", ["small"], ["s"], keepdims=0),
        helper.make_node("Add", ["b", "s"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    program = both.compile_program(tmp_path, "compile_in_memory.c", "compile_in_memory")
    newest = int(onnxruntime.__version__.split(".")[1])
    ours = both.library_folder() / "libortrain.so"
    printed = both.run(program, ours, model, "32")
    expected = (np.arange(4) - 1 + np.arange(4)) @ np.arange(12).reshape(4, 3) @ np.arange(9).reshape(
        3, 3
    ) + 15
    assert printed.count("  y: " + " ".join(f"{value:g}" for value in expected)) == 3
    assert "  8192: 1" in printed
    assert "  left alone: 1" in printed
    assert [line for line in printed if line.startswith(("type 24", "type 25", "type 26"))] == [
        "type 24: 2 bytes, 24",
        "type 25: 2 bytes, 25",
        "type 26: 8 bytes, 26",
    ]
    if newest >= 31:
        both.run_on_both(program, model, str(min(newest, 32)))
