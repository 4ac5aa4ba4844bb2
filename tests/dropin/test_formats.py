"""Adapters, external data in memory and models in ORT format do what they do in onnxruntime."""

from __future__ import annotations

import shutil
from pathlib import Path

import both
import numpy as np
import onnx
from languages import ROOT
from onnx import TensorProto, helper, numpy_helper

ADAPTER = ROOT / "tests/data/formats/adapter.onnx_adapter"


def write_models(folder: Path) -> tuple[Path, Path]:
    """A model whose initializers may be replaced, and the same with its weights in w.bin."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("ReduceSum", ["ids"], ["z"])],
        "graph",
        [
            info("x", TensorProto.FLOAT, [2]),
            info("w", TensorProto.FLOAT, [2]),
            info("ids", TensorProto.INT64, [1, 2]),
        ],
        [info("y", TensorProto.FLOAT, [2]), info("z", TensorProto.INT64, [1, 1])],
        [
            numpy_helper.from_array(np.float32([10, 20]), "w"),
            numpy_helper.from_array(np.array([[5, 6]], dtype=np.int64), "ids"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    onnx.save(
        model, folder / "outside.onnx", save_as_external_data=True, location="w.bin", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    (folder / "elsewhere").mkdir()
    shutil.move(folder / "w.bin", folder / "elsewhere")
    return folder / "model.onnx", folder / "outside.onnx"


def test_formats_are_read_and_written_as_in_onnxruntime(tmp_path: Path) -> None:
    model, outside = write_models(tmp_path)
    program = both.compile_program(tmp_path, "formats.c", "formats")
    printed = both.run_on_both(program, ADAPTER, model, outside, tmp_path / "elsewhere/w.bin", tmp_path)
    assert "identifier ORTM" in printed
    assert printed.count("y 11 22, z 11") >= 4  # without an adapter
    assert "no adapter: refused 1 1" in printed
