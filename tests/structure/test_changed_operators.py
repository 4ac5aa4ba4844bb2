"""A change of the list of operators recompiles only the sources of the operators that it adds or removes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from configured import ROOT, configure, core_commands, operators_header
from ortrain import _ortrain

CORE = ROOT / "core" / "src"
SCRIPT = ROOT / "cmake" / "asked_operators.py"
HEADER = "built_operators.h"
BASE = ["Gemm", "Relu", "com.microsoft.ReluGrad", "ortrain.Optimizer", "ortrain.Optimizer.sgd"]
needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")


def configured(folder: Path, operators: list[str]) -> dict[str, tuple[str, str, str]]:
    """Configure a release with these operators, and return what the object of each source of the core depends on."""
    configure(
        folder, "-DCMAKE_BUILD_TYPE=Release", f"-DORTRAIN_OPERATORS={';'.join(operators)}"
    ).check_returncode()
    return {
        path: (command, Path(path).read_text(), operators_header(command))
        for path, command in core_commands(folder).items()
    }


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reduced")


@needs_cmake
@pytest.mark.parametrize(
    ("added", "source", "most"),
    [
        # A row of a table: the table, and the signatures of all operators.
        pytest.param("Elu", "ops/math/unary.cpp", 2, marks=pytest.mark.first_case),
        # A source that the smaller build leaves out joins its group. A source of the second group names Trilu too.
        ("Trilu", "ops/tensor/trilu.cpp", 3),
        # The kernel of some reductions asks too.
        ("ReduceL1", "backend/cpu/reduce/reduction.cpp", 3),
        ("ortrain.Optimizer.lion", "backend/cpu/optimizer/rules/lion.cpp", 2),
    ],
)
def test_a_new_operator_recompiles_its_sources_alone(build: Path, added: str, source: str, most: int) -> None:
    before = configured(build, BASE)
    after = configured(build, [*BASE, added])
    changed = {path for path in after if after[path] != before.get(path)}
    assert len(changed) <= most
    assert len(before) > 100
    assert any(path.endswith(source) or f'#include "{source}"' in after[path][1] for path in changed)
    assert before.keys() <= after.keys()
    assert configured(build, BASE) == before


@needs_cmake
def test_optimizers_that_a_build_has_not_are_not_compiled(build: Path) -> None:
    def compiled(*optimizers: str) -> set[str]:
        paths = configured(build, [*BASE, *optimizers])
        return {Path(path).stem for path in paths if "/optimizer/rules/" in path}

    # The code of adamw.cpp is also that of an operator.
    assert compiled() == {"adamw", "sgd"}
    # A source with two optimizers is compiled for one of them.
    assert compiled("ortrain.Optimizer.amsgrad") == {"adam", "adamw", "sgd"}


def run(folder: Path, sources: list[Path], operators: list[str]) -> dict[str, str]:
    """Return the headers of the sources that ask about operators, by the path of the source below core/src."""
    command = [sys.executable, SCRIPT, folder, CORE, "--sources", *sources, "--operators", *operators]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    pairs = (line.split("|") for line in lines)
    return {
        str(Path(source).relative_to(CORE)): Path(place, HEADER).read_text()
        for source, place in pairs
        if place
    }


def test_every_operator_is_found_in_a_source(tmp_path: Path) -> None:
    registered = {tuple(line.split(",")[:2]) for line in _ortrain.list_operators().splitlines()}
    sources = [path for path in sorted(CORE.rglob("*.cpp")) if path.name != "signature.cpp"]
    headers = run(tmp_path, sources, [f"{domain}.{name}".strip(".") for domain, name in registered])
    assert len(headers) > 100
    found = {pair for text in headers.values() for pair in re.findall(r'\{"(.*)", "(.*)"\}', text)}
    assert len(registered) > 300
    assert registered - found == set()
    assert {("", "Elu"), ("", "Celu")} <= set(
        re.findall(r'\{"(.*)", "(.*)"\}', headers["ops/math/unary.cpp"])
    )


def test_a_source_that_asks_about_an_operator_that_it_does_not_name_does_not_compile(tmp_path: Path) -> None:
    headers = run(tmp_path, [CORE / "ops/math/unary.cpp"], ["Elu"])
    (tmp_path / "asked.h").write_text(headers["ops/math/unary.cpp"])
    for name, compiles in (("Elu", True), ("Tanh", True), ("Gemm", False)):
        source = tmp_path / "asking.cpp"
        source.write_text(
            f'#include "asked.h"\nstatic_assert(ortrain::is_built("", "{name}") == {str(name == "Elu").lower()});\n'
        )
        ran = subprocess.run(
            ["g++", "-std=c++20", "-fsyntax-only", source], check=False, capture_output=True, text=True
        )
        assert (ran.returncode == 0) == compiles, ran.stderr
    assert "finds no operator of this name in the source" in ran.stderr
