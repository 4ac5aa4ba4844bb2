"""Values of unusual kinds are made, run and read here as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def save(
    folder: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    inputs: list[object],
    outputs: list[object],
) -> None:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the program reads."""
    folder = tmp_path_factory.mktemp("models")

    def info(name: str, shape: list[int] | None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, element, shape)

    save(folder, "zero", [helper.make_node("Neg", ["w"], ["y"])], [info("w", [4, 0])], [info("y", None)])
    text = TensorProto.STRING
    save(
        folder,
        "strings",
        [helper.make_node("Identity", ["x"], ["y"])],
        [info("x", [3], text)],
        [info("y", [3], text)],
    )
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["b", "a"])
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(text, helper.make_tensor_type_proto(1, None))
    )
    save(folder, "zip", [zipped], [info("x", [2, 2])], [helper.make_value_info("y", maps)])
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), "values")
    places = numpy_helper.from_array(np.array([2, 7], np.int64), "places")
    sparse = helper.make_sparse_tensor(values, places, [3, 3])
    constant = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
    save(folder, "sparse_constant", [constant], [], [helper.make_sparse_tensor_value_info("y", 1, [3, 3])])
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    return both.compile_program(tmp_path_factory.mktemp("program"), "odd_values.c", "odd")


def test_values_behave_as_in_onnxruntime(program: Path, models: Path) -> None:
    both.run_on_both(program, models)
