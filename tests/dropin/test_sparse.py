"""Sparse tensors of C programs, and models that take or return them, are as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import onnx
from onnx import TensorProto, helper

Types = dict[str, onnx.TypeProto]


def save(folder: Path, name: str, nodes: list[onnx.NodeProto], inputs: Types, outputs: Types) -> None:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_value_info(value, kind) for value, kind in inputs.items()],
        [helper.make_value_info(value, kind) for value, kind in outputs.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


def dense(kind: int = TensorProto.FLOAT, shape: list[int | str | None] | None = None) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, shape)


def sparse(kind: int = TensorProto.FLOAT, shape: list[int | str | None] | None = None) -> onnx.TypeProto:
    return helper.make_sparse_tensor_type_proto(kind, shape)


def product(y: str = "Y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node("SparseToDenseMatMul", ["A", "B"], [y], domain="com.microsoft", **attributes)


def save_models(folder: Path) -> None:
    """What sparse.c opens."""
    square, tall = sparse(shape=[3, 3]), dense(shape=[3, None])
    inputs, outputs = {"A": square, "B": tall}, {"Y": dense()}
    save(folder, "plain", [product()], inputs, outputs)
    save(folder, "alpha", [product(alpha=2.5)], inputs, outputs)
    save(folder, "left", [product(transA=1)], inputs, outputs)
    flipped = {"A": square, "B": dense(shape=[None, 3])}
    save(folder, "right", [product(transB=1)], flipped, outputs)
    save(folder, "both", [product(transA=1, transB=1, alpha=-1.0)], flipped, outputs)
    save(folder, "loose", [product()], {"A": sparse(shape=["m", "k"]), "B": dense(shape=["k", "n"])}, outputs)
    branch = helper.make_graph([product("inner")], "then", [], [helper.make_value_info("inner", dense())])
    same = helper.make_node("Identity", ["B"], ["same"])
    otherwise = helper.make_graph([same], "else", [], [helper.make_value_info("same", dense())])
    yes = helper.make_node(
        "Constant", [], ["yes"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])
    )
    choice = helper.make_node("If", ["yes"], ["Y"], then_branch=branch, else_branch=otherwise)
    save(folder, "branch", [yes, choice], inputs, outputs)
    for name, kind, attributes in (
        ("integers", TensorProto.INT64, {"alpha": 2.5}),
        ("doubles", TensorProto.DOUBLE, {"alpha": 0.1}),
        ("halves", TensorProto.FLOAT16, {}),
    ):
        given = {"A": sparse(kind, [3, 3]), "B": dense(kind, [3, None])}
        save(folder, name, [product(**attributes)], given, {"Y": dense(kind)})
    relu = helper.make_node("Relu", ["B"], ["Y"])
    save(folder, "through", [relu], inputs, {"Y": dense(), "A": square})
    save(folder, "tensor", [product()], {"A": dense(shape=[3, 3]), "B": tall}, outputs)
    save(folder, "dense_product", [helper.make_node("MatMul", ["A", "B"], ["Y"])], inputs, outputs)


def test_sparse_tensors_are_made_read_and_multiplied_as_in_onnxruntime(tmp_path: Path) -> None:
    save_models(tmp_path)
    printed = both.run_on_both(both.compile_program(tmp_path, "sparse.c", "sparse"), tmp_path)
    assert "  values: 1.5 2 -3" in printed
    assert "    type 1, 6 elements, shape 3 2: 3 4.5 -10 -11 0 0" in printed
