"""Limits that a session sets on nodes, nesting, elements and bytes, by configuration entries with defaults."""

from __future__ import annotations

import itertools
import pathlib

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture
from training import options_of


def chain(count: int) -> bytes:
    """Return a model of that many nodes, one behind another, that doubles its input in each."""
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    x = helper.make_tensor_value_info("v0", TensorProto.FLOAT, ["n"])
    y = helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph(nodes, "chain", [x], [y])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def nested(depth: int) -> bytes:
    """Return a model of an If in an If, so deep."""

    def graph_of(level: int) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"y{level}", TensorProto.FLOAT, [1])
        if level == depth:
            return helper.make_graph([helper.make_node("Neg", ["x"], [f"y{level}"])], "g", [], [out])
        inner = graph_of(level + 1)
        node = helper.make_node("If", ["c"], [f"y{level}"], then_branch=inner, else_branch=inner)
        return helper.make_graph([node], "g", [], [out])

    graph = graph_of(0)
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]))
    graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def functions_in_graphs(chain_length: int, depth: int) -> bytes:
    """Return a model of functions that call each other, each from within nested subgraphs."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

    def wrapped(node: onnx.NodeProto, levels: int) -> onnx.NodeProto:
        for level in range(levels):
            out = f"w{level}"
            inner = onnx.NodeProto()
            inner.CopyFrom(node)
            inner.output[0] = out
            branch = helper.make_graph(
                [inner], "g", [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)]
            )
            other = helper.make_graph(
                [helper.make_node("Identity", ["x"], [out])],
                "g",
                [],
                [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
            )
            node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
        return node

    functions = []
    for i in range(chain_length):
        last = i + 1 == chain_length
        call = (
            helper.make_node("Neg", ["x"], ["y"])
            if last
            else helper.make_node(f"F{i + 1}", ["x", "c"], ["y"], domain="own")
        )
        functions.append(
            helper.make_function("own", f"F{i}", ["x", "c"], ["y"], [wrapped(call, depth)], opsets)
        )
    graph = helper.make_graph(
        [helper.make_node("F0", ["x", "c"], ["y"], domain="own")],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    return helper.make_model(
        graph, functions=functions, opset_imports=opsets, ir_version=8
    ).SerializeToString()


def session(model: bytes, **config: str) -> ortrain.InferenceSession:
    return ortrain.InferenceSession(model, options_of({f"session.{key}": v for key, v in config.items()}))


def test_a_model_with_more_nodes_than_allowed_is_refused() -> None:
    session(chain(10), max_nodes="10")
    with pytest.raises(ortrain.OrtrainError, match=r"more than 9 nodes.*session\.max_nodes"):
        session(chain(10), max_nodes="9")


def test_subgraphs_nested_deeper_than_allowed_are_refused() -> None:
    x = {"x": np.ones(1, np.float32), "c": np.ones((), np.bool_)}
    np.testing.assert_array_equal(session(nested(8), max_nesting="8").run(None, x)[0], [-1])
    with pytest.raises(ortrain.OrtrainError, match=r"nested more than 7 deep.*session\.max_nesting"):
        session(nested(8), max_nesting="7")


def test_functions_do_not_evade_the_limit_of_nesting() -> None:
    """By default; without a limit these are 2,000 graphs in each other, which no stack holds."""
    with pytest.raises(ortrain.OrtrainError, match=r"nested more than 64 deep"):
        session(functions_in_graphs(90, 24))


def test_values_with_more_elements_than_allowed_are_refused() -> None:
    x = {"v0": np.ones(100, np.float32)}
    assert session(chain(3), max_elements="100").run(None, x)[0][0] == 8
    with pytest.raises(ortrain.OrtrainError, match=r"shape \[100\].*session\.max_elements allows at most 99"):
        session(chain(3), max_elements="99").run(None, x)


def test_values_that_take_more_bytes_than_allowed_are_refused() -> None:
    x = {"v0": np.ones(2**18, np.float32)}
    assert session(chain(9), max_bytes="4M").run(None, x)[0][0] == 512
    with pytest.raises(ortrain.OrtrainError, match=r"session\.max_bytes allows at most 524288"):
        session(chain(9), max_bytes="512K").run(None, x)


def growing_loop(kind: str) -> bytes:
    """Return a model that adds its input to what a Loop carries or stacks, 1,000 times."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1024])
    begin = {
        "sequence": [helper.make_node("SequenceEmpty", [], ["first"])],
        "nested sequence": [helper.make_node("SequenceEmpty", [], ["first"])],
        "tensor": [helper.make_node("Identity", ["x"], ["first"])],
        "stack": [helper.make_node("Identity", ["x"], ["first"])],
    }[kind]
    step = {
        "sequence": [helper.make_node("SequenceInsert", ["v", "x"], ["w"])],
        "nested sequence": [
            helper.make_node("SequenceInsert", ["v", "x"], ["u"]),
            helper.make_node("SequenceInsert", ["u", "x"], ["w"]),
        ],
        "tensor": [helper.make_node("Concat", ["v", "x"], ["w"], axis=0)],
        "stack": [helper.make_node("Identity", ["v"], ["w"]), helper.make_node("Neg", ["x"], ["s"])],
    }[kind]
    if "sequence" in kind:

        def carried(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)

        end = [helper.make_node("SequenceAt", ["last", "zero"], ["y"])]
    else:

        def carried(name: str) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

        end = [helper.make_node("ReduceSum", ["stacked" if kind == "stack" else "last"], ["y"])]
    stacks = ["s"] if kind == "stack" else []
    body = helper.make_graph(
        [helper.make_node("Identity", ["more"], ["goes_on"]), *step],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            carried("v"),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            carried("w"),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1024]) for name in stacks),
        ],
    )
    outputs = ["last", "stacked"] if stacks else ["last"]
    graph = helper.make_graph(
        [*begin, helper.make_node("Loop", ["count", "", "first"], outputs, body=body), *end],
        "growing",
        [x],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor("count", TensorProto.INT64, [], [1000]),
            helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


@pytest.mark.parametrize("kind", ["sequence", "nested sequence", "tensor", "stack"])
def test_what_a_loop_accumulates_counts_as_bytes(kind: str) -> None:
    """A body that allocates 4 KB in every iteration, in a session that allows 64 KB."""
    x = {"x": np.ones(1024, np.float32)}
    assert session(growing_loop(kind), max_bytes="64M").run(None, x)[0].size > 0
    with pytest.raises(ortrain.OrtrainError, match=r"session\.max_bytes allows at most 65536"):
        session(growing_loop(kind), max_bytes="64K").run(None, x)


def test_an_optimizer_that_is_attached_later_is_limited_too(mlp: Fixture, tmp_path: pathlib.Path) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    module = Module(
        mlp.path("training_model.onnx"), state, session_options=options_of({"session.max_nodes": "60"})
    )
    model = onnx.load(mlp.path("optimizer_model.onnx"))
    names = ["learning_rate", *(f"unused{i}" for i in range(100))]
    model.graph.node.extend(helper.make_node("Identity", [a], [b]) for a, b in itertools.pairwise(names))
    onnx.save(model, tmp_path / "optimizer_model.onnx")
    with pytest.raises(ortrain.OrtrainError, match=r"more than 60 nodes.*session\.max_nodes"):
        Optimizer(tmp_path / "optimizer_model.onnx", module)


@pytest.mark.parametrize("key", ["max_nodes", "max_nesting", "max_elements", "max_bytes"])
@pytest.mark.parametrize("value", ["0", "-1", "many", "", "99999999999999999999"])
def test_a_limit_that_is_no_number_is_refused(key: str, value: str) -> None:
    with pytest.raises(ortrain.InvalidArgumentError, match=f"session.{key}"):
        SessionOptions().add_session_config_entry(f"session.{key}", value)


def test_the_limits_hold_for_training_too(mlp: Fixture, tmp_path: pathlib.Path) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    files = (mlp.path("training_model.onnx"), state, mlp.path("eval_model.onnx"))
    with pytest.raises(ortrain.OrtrainError, match=r"session\.max_nodes"):
        Module(*files, session_options=options_of({"session.max_nodes": "5"}))
    module = Module(*files, session_options=options_of({"session.max_elements": "5"}))
    module.train()
    with pytest.raises(ortrain.OrtrainError, match=r"session\.max_elements"):
        module(*mlp.batches[0])
