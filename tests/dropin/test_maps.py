"""Maps of C programs, and models that take or return maps, are as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import onnx
from onnx import TensorProto, helper


def save(folder: Path, name: str, node: onnx.NodeProto, x: onnx.TypeProto, y: onnx.TypeProto) -> None:
    graph = helper.make_graph([node], "g", [helper.make_value_info("x", x)], [helper.make_value_info("y", y)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


def map_of(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


def make(op: str, **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, ["x"], ["y"], domain="ai.onnx.ml", **attributes)


def test_maps_are_made_taken_and_returned_as_in_onnxruntime(tmp_path: Path) -> None:
    rows = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, 3])
    text, integer, real = TensorProto.STRING, TensorProto.INT64, TensorProto.FLOAT
    words = ["fig", "kiwi", "pear"]
    save(tmp_path, "vectorize", make("DictVectorizer", string_vocabulary=words), map_of(text, real), rows)
    dense = make("CastMap", cast_to="TO_FLOAT", map_form="DENSE", max_map=1)
    save(tmp_path, "cast_dense", dense, map_of(integer, real), rows)
    sparse = make("CastMap", cast_to="TO_FLOAT", map_form="SPARSE", max_map=5)
    save(tmp_path, "cast_sparse", sparse, map_of(integer, real), rows)
    labelled = helper.make_sequence_type_proto(map_of(text, real))
    save(tmp_path, "zip_strings", make("ZipMap", classlabels_strings=["c", "a", "b"]), rows, labelled)
    numbered = helper.make_sequence_type_proto(map_of(integer, real))
    save(tmp_path, "zip_integers", make("ZipMap", classlabels_int64s=[5, 3, 4]), rows, numbered)
    printed = both.run_on_both(both.compile_program(tmp_path, "maps.c", "maps"), tmp_path)
    assert "  type 8, shape 3: apple fig pear" in printed
    assert "  type 1, shape 3: 0.7 0.2 0.1" in printed
