"""A build takes its operators from a list of names and models."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto, helper

SCRIPT = pathlib.Path(__file__).parents[2] / "cmake" / "built_operators.py"


def check(
    tmp_path: pathlib.Path, entries: list[str], built: list[tuple[str, str]], left_out: list[tuple[str, str]]
) -> None:
    """Compile statements about the generated header."""
    header = tmp_path / "built_operators.h"
    subprocess.run([sys.executable, SCRIPT, header, *entries], check=True)
    source = tmp_path / "test.cpp"
    lines = ['#include "built_operators.h"']
    for wanted, names in (("", built), ("!", left_out)):
        lines += [
            f'static_assert({wanted}ortrain::is_built("{domain}", "{name}"));' for domain, name in names
        ]
    source.write_text("\n".join(lines) + "\n")
    subprocess.run(["g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", source], check=True)


def test_without_a_list_all_are_built(tmp_path: pathlib.Path) -> None:
    check(tmp_path, [], [("", "Conv"), ("com.microsoft", "Gelu")], [])


def test_names_are_built_and_others_are_not(tmp_path: pathlib.Path) -> None:
    listed = [
        ("", "Conv"),
        ("com.microsoft", "Gelu"),
        ("ai.onnx.ml", "Scaler"),
        ("ortrain.session", "FusedProduct"),
    ]
    check(
        tmp_path,
        ["Conv", "com.microsoft.Gelu", "ai.onnx.ml.Scaler"],
        listed,
        [("", "Gelu"), ("", "Relu"), ("com.microsoft", "Conv")],
    )


def test_optimizers_are_built_by_name_or_as_operators_of_the_optimizer_model(tmp_path: pathlib.Path) -> None:
    names = ["com.microsoft.SGDOptimizerV2", "ortrain.Optimizer.schedule_free_adamw"]
    built = [("ortrain.Optimizer", "sgd"), ("ortrain.Optimizer", "schedulefreeadamw")]
    check(tmp_path, names, built, [("ortrain.Optimizer", "adamw"), ("ortrain.Optimizer", "lion")])


def test_the_optimizers_of_models_are_built(tmp_path: pathlib.Path) -> None:
    node = helper.make_node("Optimizer", ["rate"], ["y"], domain="ortrain", type="adamw_8bit")
    rate = helper.make_tensor_value_info("rate", TensorProto.FLOAT, [1])
    model = helper.make_model(helper.make_graph([node], "graph", [rate], []))
    onnx.save(model, tmp_path / "model.onnx")
    built = [("ortrain.Optimizer", "adamw8bit"), ("ortrain", "Optimizer")]
    check(tmp_path, [str(tmp_path / "model.onnx")], built, [("ortrain.Optimizer", "adamw")])


def test_names_of_optimizers_are_their_titles_in_lower_case() -> None:
    rules = SCRIPT.parents[1] / "core" / "src" / "backend" / "cpu" / "optimizer" / "rules"
    found = [
        match
        for path in rules.glob("*.cpp")
        for match in re.findall(
            r'^ORTRAIN_OPTIMIZER\(\s*(\w+),\s*\{\.name = "(\w+)"', path.read_text(), re.MULTILINE
        )
    ]
    assert len(found) > 15
    assert [title.lower() for title, _ in found] == [name.replace("_", "") for _, name in found]


def test_operators_of_models_are_built_with_those_of_their_subgraphs(tmp_path: pathlib.Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], [out])

    nodes = [
        helper.make_node("If", ["c"], ["h"], then_branch=branch("Neg"), else_branch=branch("Abs")),
        helper.make_node("FastGelu", ["h"], ["y"], domain="com.microsoft"),
    ]
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)), tmp_path / "model.onnx")
    check(
        tmp_path,
        [str(tmp_path / "model.onnx"), "Relu"],
        [("", "If"), ("", "Neg"), ("", "Abs"), ("", "Relu"), ("com.microsoft", "FastGelu")],
        [("", "Exp"), ("", "FastGelu")],
    )


def test_a_header_that_says_the_same_is_not_written_again(tmp_path: pathlib.Path) -> None:
    header = tmp_path / "built_operators.h"
    subprocess.run([sys.executable, SCRIPT, header, "Relu"], check=True)
    before = header.stat().st_mtime_ns
    subprocess.run([sys.executable, SCRIPT, header, "Relu"], check=True)
    assert header.stat().st_mtime_ns == before


def test_a_model_that_is_not_there_is_an_error(tmp_path: pathlib.Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        subprocess.run(
            [sys.executable, SCRIPT, tmp_path / "built_operators.h", str(tmp_path / "no.onnx")], check=True
        )


def unneeded(folder: pathlib.Path, entries: list[str]) -> set[str]:
    """Return the sources that a build with these operators can do without."""
    command = [sys.executable, SCRIPT.with_name("unneeded_sources.py"), folder, *entries]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {pathlib.Path(line).name for line in printed.splitlines()}


def test_sources_of_other_operators_are_not_compiled(tmp_path: pathlib.Path) -> None:
    sources = {
        "conv.cpp": 'ORTRAIN_OPERATOR({.type = "Conv"});',
        "gelu.cpp": 'ORTRAIN_OPERATOR({.domain = kMicrosoft,\n  .type = "Gelu"});\nORTRAIN_DECOMPOSITION("BiasGelu", "", f);',
        "hidden.cpp": 'namespace {\nint f(int n) { return n; }\n}  // namespace\nORTRAIN_OPERATOR({.type = "Split"});',
        "shared.cpp": 'int f(int n) { return n; }\nORTRAIN_OPERATOR({.type = "Split"});',
        "with_a_table.cpp": 'ORTRAIN_OPERATOR({.type = "Mod"});\nregister_rows<2>(f);',
        "made_by_passes.cpp": 'ORTRAIN_OPERATOR({.domain = kSessionDomain, .type = "FusedConv"});',
        "named_by_a_macro.cpp": "ORTRAIN_OPERATOR({.type = name});",
    }
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    assert unneeded(tmp_path, []) == set()
    assert unneeded(tmp_path, ["Relu"]) == {"conv.cpp", "gelu.cpp", "hidden.cpp"}
    assert unneeded(tmp_path, ["Conv"]) == {"gelu.cpp", "hidden.cpp"}
    assert unneeded(tmp_path, ["com.microsoft.BiasGelu"]) == {"conv.cpp", "hidden.cpp"}


def test_sources_of_other_operators_are_found_in_the_core() -> None:
    ops = SCRIPT.parents[1] / "core" / "src" / "ops"
    found = unneeded(ops, ["Gemm", "Relu"])
    assert {"where.cpp", "causal_conv.cpp", "ml_trees.cpp"} <= found
    assert not {"matmul.cpp", "unary.cpp", "decomposed.cpp"} & found
