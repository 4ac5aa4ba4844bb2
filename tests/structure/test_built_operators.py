"""A build takes its operators from a list of names and models."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "cmake" / "built_operators.py"
OPERATORS = ROOT / "core" / "src" / "ops"


def check(
    tmp_path: pathlib.Path, entries: list[str], built: list[tuple[str, str]], left_out: list[tuple[str, str]]
) -> None:
    """Compile statements about the generated header."""
    header = tmp_path / "built_operators.h"
    subprocess.run([sys.executable, SCRIPT, header, OPERATORS, *entries], check=True)
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
            [sys.executable, SCRIPT, tmp_path / "built_operators.h", OPERATORS, str(tmp_path / "no.onnx")],
            check=True,
        )


def left_out(tmp_path: pathlib.Path, *entries: str) -> set[str]:
    """Return the sources, without their folder, that a build does without."""
    command = [sys.executable, SCRIPT, tmp_path / "built_operators.h", OPERATORS, *entries]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {str(pathlib.Path(line).relative_to(OPERATORS)) for line in printed.splitlines()}


def test_sources_of_operators_that_are_left_out_are_not_compiled(tmp_path: pathlib.Path) -> None:
    assert not left_out(tmp_path)
    sources = left_out(tmp_path, "Conv", "com.microsoft.Gelu")
    assert {"text/string_split.cpp", "vision/grid_sample.cpp"} <= sources
    assert "nn/conv.cpp" not in sources
    assert "math/comparison.cpp" in sources
    assert "math/comparison.cpp" not in left_out(tmp_path, "Equal")  # a macro makes the text of its name
    # It defines functions that the kernels of other operators call.
    assert not {"attention/attention.cpp", "nn/convolution_gradient.cpp"} & sources
