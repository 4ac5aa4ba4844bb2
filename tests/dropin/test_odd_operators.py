"""Custom operators of unusual signatures are taken, refused and run here as in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import both
import onnx
import pytest
from onnx import TensorProto, helper

DOMAIN = "test.odd"
FLOAT, DOUBLE, INT64 = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def save(
    folder: Path,
    name: str,
    node: tuple[str, Sequence[str], Sequence[str]],
    inputs: dict[str, int],
    outputs: dict[str, int],
    more: Sequence[onnx.NodeProto] = (),
    *,
    imports: bool = True,
) -> None:
    """A model around a node of a custom operator, named after the model."""
    made = helper.make_node(*node, domain=DOMAIN, name=f"node_of_{name}")
    ends = [[helper.make_tensor_value_info(n, t, [3]) for n, t in side.items()] for side in (inputs, outputs)]
    graph = helper.make_graph([made, *more], "g", *ends)
    opsets = [helper.make_opsetid("", 17)] + imports * [helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the program runs."""
    folder = tmp_path_factory.mktemp("models")
    twice = ("Twice", ["x"], ["y"])
    save(folder, "float", twice, {"x": FLOAT}, {"y": FLOAT})
    save(folder, "not_imported", twice, {"x": FLOAT}, {"y": FLOAT}, imports=False)
    save(folder, "integer", twice, {"x": INT64}, {"y": INT64})
    save(folder, "double", twice, {"x": DOUBLE}, {"y": DOUBLE})
    second = helper.make_node("Twice", ["w"], ["z"], domain=DOMAIN)
    save(folder, "both", twice, {"x": FLOAT, "w": INT64}, {"y": FLOAT, "z": INT64}, [second])

    any_ = ("Any", ["a", "b"], ["y", "z"])
    mixed = {"a": FLOAT, "b": INT64}
    equal = {"a": FLOAT, "b": FLOAT}
    inner = [helper.make_node("Neg", [a], [b]) for a, b in ("yu", "zv")]
    save(folder, "mixed", any_, mixed, {"y": FLOAT, "z": INT64})
    save(folder, "mixed_inner", any_, mixed, {"u": FLOAT, "v": INT64}, inner)
    save(folder, "equal", any_, equal, {"y": FLOAT, "z": FLOAT})
    save(folder, "equal_inner", any_, equal, {"u": FLOAT, "v": FLOAT}, inner)
    save(folder, "few_inputs", ("Any", ["a"], ["y", "z"]), {"a": FLOAT}, {"y": FLOAT, "z": FLOAT})
    save(folder, "few_outputs", ("Any", ["a", "b"], ["y"]), equal, {"y": FLOAT})
    save(folder, "mixed_outputs", any_, equal, {"y": FLOAT, "z": INT64})
    save(folder, "missing", ("Any", ["a", "", "b"], ["y", "z"]), equal, {"y": FLOAT, "z": FLOAT})

    three, two = {"a": FLOAT, "b": FLOAT, "c": INT64}, {"y": FLOAT, "z": INT64}
    save(folder, "all", ("Options", ["a", "b", "c"], ["y", "z"]), three, two)
    save(folder, "middle", ("Options", ["a", "", "c"], ["y"]), {"a": FLOAT, "c": INT64}, {"y": FLOAT})
    save(folder, "last", ("Options", ["a"], ["y"]), {"a": FLOAT}, {"y": FLOAT})
    save(folder, "one_output", ("Options", ["a", "b", "c"], ["y"]), three, {"y": FLOAT})
    save(folder, "only_second_output", ("Options", ["a", "b", "c"], ["", "z"]), three, {"z": INT64})
    save(folder, "too_many", ("Options", ["a", "b", "c", "a"], ["y"]), three, {"y": FLOAT})
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with the operators."""
    return both.compile_program(tmp_path_factory.mktemp("program"), "odd_operators.c", "odd")


def test_sessions_take_refuse_and_run_what_onnxruntime_does(program: Path, models: Path) -> None:
    both.run_on_both(program, models)
