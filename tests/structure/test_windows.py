"""What a build for Windows is compiled from, without compiling it: `make test-windows` runs a library (docs/targets.md)."""

from __future__ import annotations

import json
import pathlib
import re
import shutil

import pytest
from configured import configure

# The compilers of Linux, which cannot link a program for Windows.
WINDOWS = (
    "-DCMAKE_SYSTEM_NAME=Windows",
    "-DCMAKE_SYSTEM_PROCESSOR=AMD64",
    "-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY",
    "-DCMAKE_CXX_COMPILER_WORKS=1",
    "-DHIGHWAY_INCLUDE=/usr/include",
    "-DFLATBUFFERS_INCLUDE=/usr/include",
    "-DORTRAIN_OPERATORS=Relu",
)


@pytest.mark.parametrize(
    ("compiler", "left_out"),
    [("clang++", set()), ("g++", {"HWY_AVX2", "HWY_AVX3"})],
)
@pytest.mark.parametrize("build", ["Release", "Development"])
def test_only_gcc_leaves_out_vectors_of_more_than_16_bytes(
    compiler: str, left_out: set[str], build: str, tmp_path: pathlib.Path
) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    result = configure(tmp_path, *WINDOWS, f"-DCMAKE_CXX_COMPILER={compiler}", f"-DCMAKE_BUILD_TYPE={build}")
    assert result.returncode == 0, result.stderr
    assert ("out of this build" in " ".join(result.stderr.split())) == bool(left_out)
    commands = {
        entry["file"]: entry["command"]
        for entry in json.loads((tmp_path / "compile_commands.json").read_text())
    }
    kernels = [command for file, command in commands.items() if file.endswith("matmul/multiply.cpp")]
    (disabled,) = re.findall(r"HWY_DISABLED_TARGETS=\W*\(([\w|]+)\)", kernels[0])
    assert set(disabled.split("|")) & {"HWY_SSE4", "HWY_AVX2", "HWY_AVX3"} == left_out
    assert not re.search(r"HWY_COMPILE_ONLY|-march=", kernels[0])


def test_msvc_is_refused_with_the_reason(tmp_path: pathlib.Path) -> None:
    result = configure(tmp_path, "-DMSVC=1")  # what CMake sets for this compiler
    assert result.returncode != 0
    assert "ortrain cannot be compiled with MSVC" in " ".join(result.stderr.split())
