"""Allocators, threads, background runs and times behave here as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import both
import onnx
import pytest
from onnx import TensorProto, helper


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that the program runs."""
    folder = tmp_path_factory.mktemp("models")
    for name, shape, node in (
        ("model", [2], helper.make_node("Neg", ["x"], ["y"])),
        ("square", [512, 512], helper.make_node("MatMul", ["x", "x"], ["y"])),
    ):
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
        graph = helper.make_graph([node], "g", [x], [y])
        opsets = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")
    return folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    folder = tmp_path_factory.mktemp("program")
    return both.compile_program(folder, "odd_settings.c", "odd", ["-pthread"])


def test_settings_behave_as_in_onnxruntime(program: Path, models: Path) -> None:
    both.run_on_both(program, models)
