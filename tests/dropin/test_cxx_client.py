"""Programs for onnxruntime's C++ interface compile against the headers of this library and run."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.alias import library_folder
from ortrain.api import CheckpointState, Module, Optimizer

ROOT = Path(__file__).resolve().parents[2]


def run(source: str, standard: str, folder: Path, *arguments: Path) -> str:
    """What a program of this folder prints; it may print no errors."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"there is no {compiler}")
    libraries = library_folder()
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'core/include'}"]
    links = [f"-L{libraries}", "-lortrain", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    program = folder / "program"
    built = subprocess.run(
        [*compiler.split(), *flags, str(ROOT / "tests/dropin" / source), "-o", str(program), *links],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def info(name: str, shape: list[int | str] | None, element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def model(graph: onnx.GraphProto, *domains: str) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="a test")


@pytest.mark.first_case
@pytest.mark.parametrize("standard", ["c++14", "c++20"])
def test_a_program_with_strings_sequences_and_allocators_runs(standard: str, tmp_path: Path) -> None:
    node = helper.make_node("Neg", ["x"], ["y"])
    onnx.save(
        model(helper.make_graph([node], "negative", [info("x", [1])], [info("y", [1])])),
        tmp_path / "model.onnx",
    )
    assert run("client.cpp", standard, tmp_path, tmp_path / "model.onnx") == "done\n"


def test_a_program_with_custom_operators_of_its_own_runs(tmp_path: Path) -> None:
    def scaled(scale: float) -> onnx.NodeProto:
        told = {"scale": scale, "label": "a label", "powers": [2, 3]}
        return helper.make_node("Scaled", ["x", "offset"], ["y"], name="scaled", domain="test.custom", **told)

    offset = numpy_helper.from_array(np.array([0.5], np.float32), "offset")
    joined = helper.make_node("Joined", ["x", "x", "x"], ["y"], domain="test.custom")
    doubled = helper.make_node("Doubled", ["x"], ["y"], domain="test.custom")
    for name, node in (("scaled", scaled(2.5)), ("joined", joined), ("doubled", doubled)):
        graph = helper.make_graph(
            [node], name, [info("x", [3])], [info("y", None)], [offset] if name == "scaled" else []
        )
        onnx.save(model(graph, "test.custom"), tmp_path / f"{name}.onnx")
    assert run("operators.cpp", "c++14", tmp_path, tmp_path) == "done\n"


def test_a_model_that_a_program_builds_trains_as_one_from_a_file(tmp_path: Path) -> None:
    assert run("built.cpp", "c++14", tmp_path, tmp_path / "built.onnx") == "done\n"
    built = onnx.load(tmp_path / "built.onnx")
    onnx.checker.check_model(built, full_check=True)
    weights = [
        numpy_helper.from_array(np.array([[2], [-4]], np.float32), "w"),
        numpy_helper.from_array(np.array([0.25], np.float32), "b"),
    ]
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="linear", alpha=0.5)
    written = model(
        helper.make_graph([node], "g", [info("x", ["rows", 2])], [info("y", ["rows", 1])], weights)
    )
    losses = []
    for i, forward in enumerate((built, written)):
        folder = tmp_path / str(i)
        artifacts.generate_artifacts(
            forward,
            requires_grad=["w", "b"],
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=folder,
        )
        state = CheckpointState.load_checkpoint(folder / "checkpoint")
        module = Module(folder / "training_model.onnx", state)
        optimizer = Optimizer(folder / "optimizer_model.onnx", module)
        x = np.arange(8, dtype=np.float32).reshape(4, 2)
        losses.append([])
        for _ in range(3):
            losses[-1].append(float(module(x, np.ones((4, 1), np.float32))))
            optimizer.step()
            module.lazy_reset_grad()
    assert losses[0] == losses[1]
    assert losses[0][2] < losses[0][0]


# ---- reading graphs ----


def walked(
    graph: onnx.GraphProto, opsets: dict[str, int], types: dict[str, str], outer: set[str], margin: str
) -> list[str]:
    """What the program prints of a graph, from the ONNX file and the schemas of ONNX."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    inputs = [value.name for value in graph.input]
    made = {name: (node, o) for node in graph.node for o, name in enumerate(node.output)}
    reads: dict[str, list[str]] = {}
    order = [*inputs, *constants]
    types = {**types, **{name: describe(tensor) for name, tensor in constants.items()}}
    types.update({value.name: stated(value) for value in [*graph.input, *graph.output, *graph.value_info]})
    lines = [f"graph {graph.name}", " ".join(["inputs", *inputs])]
    lines.append(" ".join(["outputs", *(value.name for value in graph.output)]))
    for i, node in enumerate(graph.node):
        schema = onnx.defs.has(node.op_type, opsets[node.domain], node.domain)
        since = (
            onnx.defs.get_schema(node.op_type, opsets[node.domain], node.domain).since_version
            if schema
            else 1
        )
        kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        left, right = (
            " ".join(["", *(name or "-" for name in names)]) for names in (node.input, node.output)
        )
        lines.append(f"node {i} {node.name} {kind}:{since}:{left} ->{right}")
        subgraphs = sorted((one for one in node.attribute if one.HasField("g")), key=lambda one: one.name)
        implicit = list(dict.fromkeys(name for one in subgraphs for name in free(one.g)))
        lines += ["  reads " + " ".join(implicit)] if implicit else []
        lines += [f"  {attribute(one)}" for one in sorted(node.attribute, key=lambda one: one.name)]
        for one in subgraphs:
            lines.append(f"  {one.name}:")
            lines += walked(one.g, opsets, types, {*outer, *inputs, *constants, *made}, "    ")
        for k, name in enumerate(node.input):
            reads.setdefault(name, []).append(f"{node.name}.{k}")
        for name in implicit:
            reads.setdefault(name, []).append(f"{node.name}.-1")
        order += [name for name in (*node.input, *implicit, *node.output) if name]
    for name in dict.fromkeys(order):
        defined = name in inputs or name in constants or name in made
        marks = [
            "required" if name in inputs and name not in constants else "",
            "default" if (name in inputs and name in constants) or name == OUTER_DEFAULT else "",
            "output" if name in [value.name for value in graph.output] else "",
            "constant" if name in constants and name not in inputs else "",
            "" if defined else "outer",
        ]
        line = f"value {name}: {types[name]}" + "".join(f" {mark}" for mark in marks if mark)
        line += f" < {made[name][0].name}.{made[name][1]}" if name in made else ""
        line += "".join(f" > {use}" for use in reads.get(name, []))
        if name in constants or name == OUTER_DEFAULT:
            line += f" = {3 if name == OUTER_DEFAULT else int(np.prod(constants[name].dims))}"
        lines.append(line)
    return [margin + line for line in lines]


OUTER_DEFAULT = "bias"
"""A default value of an input that a subgraph reads too."""


def describe(tensor: onnx.TensorProto) -> str:
    return " ".join(map(str, [tensor.data_type, *tensor.dims]))


def stated(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dims = [dim.dim_param or str(dim.dim_value) for dim in kind.shape.dim]
    return " ".join([str(kind.elem_type), *dims])


def attribute(one: onnx.AttributeProto) -> str:
    value = helper.get_attribute_value(one)
    text = {
        onnx.AttributeProto.INT: lambda: str(value),
        onnx.AttributeProto.FLOAT: lambda: f"{value:.6f}",
        onnx.AttributeProto.STRING: lambda: value.decode(),
        onnx.AttributeProto.INTS: lambda: "".join(f"{v}," for v in value),
        onnx.AttributeProto.STRINGS: lambda: "".join(f"{v.decode()}," for v in value),
        onnx.AttributeProto.TENSOR: lambda: f"tensor of {int(np.prod(value.dims))}",
        onnx.AttributeProto.GRAPH: lambda: "kind 7",
    }
    return f"{one.name}={text[one.type]()}"


def free(graph: onnx.GraphProto) -> list[str]:
    """The values that a graph reads from those around it."""
    own = {value.name for value in [*graph.input, *graph.initializer]} | {
        n for node in graph.node for n in node.output
    }
    return [name for node in graph.node for name in node.input if name and name not in own]


@pytest.mark.thorough
def test_a_program_walks_a_graph_with_its_subgraphs_and_finds_what_onnx_states(tmp_path: Path) -> None:
    def constant(name: str, value: object, kind: type) -> onnx.TensorProto:
        return numpy_helper.from_array(np.array(value, kind), name)

    then = helper.make_graph(
        [helper.make_node("Mul", ["h", "two"], ["doubled"], name="mul")],
        "then",
        [],
        [info("doubled", ["n", 3])],
        [constant("two", 2, np.float32)],
    )
    other = helper.make_graph(
        [
            helper.make_node("Add", ["h", "bias"], ["moved"], name="add"),
            helper.make_node("Relu", ["moved"], ["positive"], name="relu"),
        ],
        "else",
        [],
        [info("positive", ["n", 3])],
        value_info=[info("moved", ["n", 3])],
    )
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["h"], name="gemm", alpha=0.5, transB=0),
        helper.make_node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other),
        helper.make_node("Dropout", ["y"], ["z", "mask"], name="dropout"),
        helper.make_node("Clip", ["z", "", "most"], ["c"], name="clip"),
        helper.make_node("Constant", [], ["axes"], name="axes", value=constant("", [1], np.int64)),
        helper.make_node("ReduceSum", ["c", "axes"], ["s"], name="sum", keepdims=0),
        helper.make_node(
            "Upsampled", ["s"], ["u"], name="own", domain="never.heard", texts=["a", "b"], mode="m"
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "main",
        [info("x", ["n", 4]), info("flag", [], TensorProto.BOOL), info("bias", [3])],
        [info("s", ["n"]), info("mask", ["n", 3], TensorProto.BOOL), info("u", ["n"])],
        [
            constant("w", np.ones((4, 3)), np.float32),
            constant("bias", [0, 0, 0], np.float32),
            constant("most", 9, np.float32),
        ],
    )
    written = model(graph, "never.heard")
    onnx.save(written, tmp_path / "graph.onnx")
    printed = run("graphs.cpp", "c++14", tmp_path, tmp_path / "graph.onnx").splitlines()
    inferred = onnx.shape_inference.infer_shapes(written, strict_mode=False)
    types = {value.name: stated(value) for value in inferred.graph.value_info}
    assert printed == [
        f"path {tmp_path / 'graph.onnx'}",
        "format 8",
        "operators '' 17",
        "operators 'never.heard' 1",
        "producer a test",
        *walked(graph, {"": 17, "never.heard": 1}, types, set(), ""),
        "the first node alone: x bias -> h",
        "never_heard: code 14",
    ]


@pytest.mark.thorough
def test_a_program_sees_in_which_file_an_initializer_is(tmp_path: Path) -> None:
    tensors = [
        numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in (("a", 3), ("b", 5))
    ]
    node = helper.make_node("Concat", ["a", "b", "x"], ["y"], axis=0)
    whole = model(helper.make_graph([node], "g", [info("x", [1])], [info("y", [9])], tensors))
    onnx.save(whole, tmp_path / "g.onnx", save_as_external_data=True, location="data.bin", size_threshold=0)
    stored = onnx.load(tmp_path / "g.onnx", load_external_data=False).graph.initializer
    printed = [
        line.strip() for line in run("graphs.cpp", "c++14", tmp_path, tmp_path / "g.onnx").splitlines()
    ]
    for tensor, count in zip(stored, (3, 5), strict=True):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        lines = [line for line in printed if line.startswith(f"value {tensor.name}:")]
        expected = f"= {count} in data.bin {entries.get('offset', 0)} {4 * count}"
        assert lines, printed
        assert all(line.endswith(expected) for line in lines), lines
