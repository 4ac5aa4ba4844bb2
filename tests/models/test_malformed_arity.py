"""A node that has not the inputs, outputs and attributes of its operator is refused before anything uses it."""

from __future__ import annotations

import re

import numpy as np
import onnx
import ortrain
import pytest
from malformed import attempts, check_refused, check_taken
from onnx import TensorProto, defs, helper, numpy_helper

X = np.ones((2, 3), np.float32)
FLAG = np.ones((), np.bool_)

MALFORMED = {
    "Relu without outputs": ("Relu", ["x"], [], {}),
    "Relu without inputs": ("Relu", [], ["y"], {}),
    "Reshape without a shape": ("Reshape", ["x"], ["y"], {}),
    "Mul of nothing": ("Mul", [], ["y"], {}),
    "Mul of one": ("Mul", ["x"], ["y"], {}),
    "Add with an empty operand": ("Add", ["x", ""], ["y"], {}),
    "MatMul of nothing": ("MatMul", [], ["y"], {}),
    "MatMul of three": ("MatMul", ["x", "x", "x"], ["y"], {}),
    "Split without outputs": ("Split", ["x"], [], {}),
    "DynamicQuantizeLinear with four": ("DynamicQuantizeLinear", ["x"], ["a", "b", "c", "d"], {}),
    "NonZero with two outputs": ("NonZero", ["x"], ["y", "z"], {}),
    "Concat with an empty input": ("Concat", ["x", ""], ["y"], {"axis": 0}),
    "Concat without inputs": ("Concat", [], ["y"], {"axis": 0}),
    "Identity without outputs": ("Identity", ["x"], [], {}),
    "Cast without its type": ("Cast", ["x"], ["y"], {}),
    "Transpose with a number for axes": ("Transpose", ["x"], ["y"], {"perm": 1}),
    "Gather with axes for an axis": ("Gather", ["x", "i"], ["y"], {"axis": [1]}),
    "Softmax with a text for an axis": ("Softmax", ["x"], ["y"], {"axis": "last"}),
    "LeakyRelu with an integer": ("LeakyRelu", ["x"], ["y"], {"alpha": 1}),
}


def node_of(name: str) -> onnx.NodeProto:
    kind, inputs, outputs, attributes = MALFORMED[name]
    return helper.make_node(kind, inputs, outputs, "bad", **attributes)


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_node_is_refused_by_name(name: str) -> None:
    values = {"x": X, "i": np.zeros(1, np.int64)}
    check_refused(
        node_of(name), values, 'node "bad"', MALFORMED[name][0], "does not have the form", "expected", "found"
    )


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs"),
    [("Gelu", [], ["y"]), ("ReluGrad", ["x"], ["y"]), ("FusedMatMul", ["x"], ["y"]), ("SkipLayerNormalization", ["x"], ["y"]),
     ("ConvGrad", ["x", "x"], ["y"]), ("LayerNormalizationGrad", ["x"], ["y", "z", "w"]), ("QLinearAdd", [], ["y"])],
)  # fmt: skip
def test_operators_of_other_domains_are_refused_too(kind: str, inputs: list[str], outputs: list[str]) -> None:
    node = helper.make_node(kind, inputs, outputs, "bad", domain="com.microsoft")
    check_refused(node, {"x": X}, f'node "bad" (com.microsoft.{kind})', "expected", "found")


@pytest.mark.parametrize("inputs", [[], ["m"]])
def test_a_loop_without_its_two_inputs_is_refused(inputs: list[str]) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [
            helper.make_tensor_value_info("t", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("d", TensorProto.BOOL, [])],
    )
    node = helper.make_node("Loop", inputs, ["y"], "bad", body=body)
    check_refused(node, {"m": np.int64(3)}, 'node "bad" (Loop)', "M?, cond?, v_initial...?")


def test_all_malformed_nodes_are_named_at_once() -> None:
    nodes = []
    for i, name in enumerate(MALFORMED):
        node = node_of(name)
        node.name = f"bad{i}"
        del node.output[:]
        nodes.append(node)
    good = helper.make_node("Relu", ["x"], ["y"], "good")
    for end in attempts([*nodes, good], {"x": X, "i": np.zeros(1, np.int64)}):
        assert {int(n) for n in re.findall(r'node "bad(\d+)"', end)} == set(range(len(nodes)))
        assert f"{len(nodes)} nodes do not have the form" in end
        assert "good" not in end


def test_nodes_of_subgraphs_are_checked() -> None:
    def branch(nodes: list[onnx.NodeProto]) -> onnx.GraphProto:
        return helper.make_graph(
            nodes, "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        )

    yes = branch([helper.make_node("Mul", ["x"], ["y"], "inner")])
    no = branch([helper.make_node("Identity", ["x"], ["y"])])
    node = helper.make_node("If", ["c"], ["z"], "outer", then_branch=yes, else_branch=no)
    check_refused(node, {"x": X, "c": FLAG}, 'node "inner" (Mul)', "A, B")


def test_optional_inputs_and_outputs_may_be_left_out() -> None:
    clip = helper.make_node("Clip", ["x", "", "h"], ["y"])
    check_taken(clip, {"x": X, "h": np.float32(0.5)})
    check_taken(helper.make_node("Split", ["x"], ["y", ""], axis=0), {"x": X})
    check_taken(helper.make_node("Dropout", ["x"], ["y", ""]), {"x": X})
    check_taken(helper.make_node("Resize", ["r", "", "s"], ["y"]), {
        "r": np.ones((1, 1, 2, 2), np.float32), "s": np.array([1, 1, 2, 2], np.float32),
    })  # fmt: skip


def schemas() -> list[defs.OpSchema]:
    return [s for s in defs.get_all_schemas_with_history() if s.domain == "" and s.since_version <= 28]


def counts_of(message: str) -> bool:
    return "does not have the form" in message


@pytest.mark.thorough
def test_the_table_agrees_with_the_onnx_package_for_every_version() -> None:
    """Each schema refuses one input too few and one too many, unless a newer one takes them, and not what lies between."""
    unlimited = 2147483647
    of_name: dict[str, list[defs.OpSchema]] = {}
    for schema in schemas():
        of_name.setdefault(schema.name, []).append(schema)
    for schema in [schema for versions in of_name.values() for schema in versions]:
        newer = [s for s in of_name[schema.name] if s.since_version > schema.since_version]
        lowest, highest = schema.min_input, schema.max_input
        cases = [(lowest - 1, False), (lowest, True)]
        cases += [] if highest == unlimited else [(highest, True), (highest + 1, False)]
        for count, fits in cases:
            if count < 0 or (not fits and any(s.min_input <= count <= s.max_input for s in newer)):
                continue
            optional = [p.option == defs.OpSchema.FormalParameterOption.Optional for p in schema.inputs]
            names = [
                "" if i < len(optional) - 1 and optional[i] and i < count - 1 else "x" for i in range(count)
            ]
            outputs = [f"y{i}" for i in range(max(schema.min_output, 1))]
            node = helper.make_node(schema.name, names, outputs, "n")
            graph = helper.make_graph(
                [node],
                "g",
                [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
                [helper.make_tensor_value_info("y0", TensorProto.FLOAT, None)],
            )
            opset = helper.make_opsetid("", schema.since_version)
            model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
            message = ""
            try:
                ortrain.InferenceSession(model.SerializeToString())
            except ortrain.OrtrainError as error:
                message = str(error)
            if "it is supported from opset" in message:  # the version is refused, whatever the form
                continue
            refused = f"found {count} input" in message
            assert refused != fits, (schema.name, schema.since_version, count, message)


def graph_with(inputs: int, outputs: int) -> onnx.GraphProto:
    """A graph that gives a truth value, whatever it takes."""
    nodes = [
        helper.make_node("Constant", [], [f"d{o}"], value=numpy_helper.from_array(FLAG))
        for o in range(outputs)
    ]
    return helper.make_graph(
        nodes,
        "body",
        [helper.make_tensor_value_info(f"i{k}", TensorProto.FLOAT, None) for k in range(inputs)],
        [helper.make_tensor_value_info(f"d{o}", TensorProto.BOOL, []) for o in range(outputs)],
    )


@pytest.mark.parametrize(
    ("node", "part"),
    [
        (helper.make_node("Loop", ["m", "c", "x"], ["y"], "bad", body=graph_with(3, 1)), "at least 2 outputs"),
        (helper.make_node("Loop", ["m", "c", "x"], ["y"], "bad", body=graph_with(1, 2)), "must have 3 inputs"),
        (helper.make_node("Loop", ["m", "c"], ["y", "z"], "bad", body=graph_with(2, 2)), "at least 3 outputs"),
        (helper.make_node("Scan", ["x", "x"], ["y"], "bad", body=graph_with(2, 0), num_scan_inputs=1), "at least 1 output,"),
        (helper.make_node("Scan", ["x", "x"], ["y"], "bad", body=graph_with(0, 2), num_scan_inputs=1), "must have 2 inputs"),
        (helper.make_node("Scan", ["x"], ["y"], "bad", body=graph_with(1, 1), num_scan_inputs=2**62), "num_scan_inputs"),
        (helper.make_node("If", ["c"], ["y", "z"], "bad", then_branch=graph_with(0, 2), else_branch=graph_with(0, 1)), "2 out"),
        (helper.make_node("If", ["c"], ["y"], "bad", then_branch=graph_with(1, 1), else_branch=graph_with(0, 1)), "no inputs"),
    ],
)  # fmt: skip
def test_subgraphs_that_do_not_fit_their_node_are_refused(node: onnx.NodeProto, part: str) -> None:
    values = {"x": X, "c": FLAG, "m": np.array(2, np.int64)}
    check_refused(node, {name: values[name] for name in set(node.input)}, 'node "bad"', part)
