"""ORTRAIN_ALL_VECTOR_CODE: a build with few operators compiles the vector code of all of them, and nothing else of the others."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from configured import ROOT, configure, core_commands, operators_header

CORE = ROOT / "core" / "src"
# Every source with vector code names the namespace in which Highway compiles it for an instruction set.
VECTOR_CODE = re.compile(r"\bHWY_NAMESPACE\b")
# The operators of a source are registered, or the source asks about them, in one of these ways.
ASKS = re.compile(r"\bORTRAIN_(?:OPERATOR|OPTIMIZER)\(|\bis_built\(")

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")


def headers(folder: Path, *options: str) -> dict[str, str]:
    """Configure a build with two operators; return which operators each source of the core has, or each group of sources."""
    configure(folder, "-DORTRAIN_OPERATORS=Gemm;Relu", "-DORTRAIN_LEGACY=OFF", *options).check_returncode()
    return {path: operators_header(command) for path, command in core_commands(folder).items()}


def test_all_vector_code_is_built_with_few_operators(tmp_path: Path) -> None:
    sources = {str(path) for path in CORE.rglob("*.cpp") if VECTOR_CODE.search(path.read_text())}
    asking = {path for path in sources if ASKS.search(Path(path).read_text())}
    assert len(sources) > 40
    assert len(asking) > 10
    every = tmp_path / "built_operators.h"
    subprocess.run([sys.executable, ROOT / "cmake" / "built_operators.py", every], check=True)

    few = headers(tmp_path / "few")
    found = headers(tmp_path / "all", "-DORTRAIN_ALL_VECTOR_CODE=ON")
    with_every = {path for path in found if found[path] == every.read_text()}
    assert sources - found.keys() == set(), "sources with vector code that are not compiled"
    assert asking - with_every == set(), "sources with vector code of the two operators alone"
    assert with_every - sources == set(), "sources without vector code that have every operator"
    assert every.read_text() not in few.values()


def test_the_quick_test_for_arm64_builds_all_vector_code() -> None:
    recipe = re.search(r"^test-arm64-quick:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert "-DORTRAIN_ALL_VECTOR_CODE=ON" in recipe[1]
