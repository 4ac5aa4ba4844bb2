"""A program for onnxruntime's C++ interface compiles against the headers of this library and runs."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from ortrain.alias import library_folder

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("standard", ["c++14", "c++20"])
def test_a_program_with_strings_sequences_and_allocators_runs(standard: str, tmp_path: Path) -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"there is no {compiler}")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        "negative",
        [value("x", TensorProto.FLOAT, [1])],
        [value("y", TensorProto.FLOAT, [1])],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "model.onnx",
    )
    libraries = library_folder()
    source = ROOT / "tests/dropin/client.cpp"
    flags = [f"-std={standard}", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'core/include'}"]
    links = [f"-L{libraries}", "-lortrain", f"-Wl,-rpath,{libraries}", "-Wl,--allow-shlib-undefined"]
    built = subprocess.run(
        [*compiler.split(), *flags, str(source), "-o", str(tmp_path / "client"), *links],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [tmp_path / "client", tmp_path / "model.onnx"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
