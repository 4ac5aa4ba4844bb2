"""Builds compile together only sources whose names do not clash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNNAMED = "namespace ortrain {{\nnamespace {{\n{}\n}}  // namespace\n{}\n}}  // namespace ortrain\n"
SOURCES = {
    "a.cpp": UNNAMED.format("int size() { return 1; }", "int of_a() { return size(); }"),
    "b.cpp": UNNAMED.format("int width() { return 2; }", "int of_b() { return width(); }"),
    "same_name.cpp": UNNAMED.format("int size() { return 3; }", "int of_c() { return size(); }"),
    "calls_another.cpp": UNNAMED.format("", "int size(); int of_d() { return size(); }"),
    "variable.cpp": UNNAMED.format("thread_local int* current = nullptr;", "int of_e() { return *current; }"),
    "same_variable.cpp": UNNAMED.format(
        "thread_local int* current = nullptr;", "int of_f() { return *current; }"
    ),
    "macro.cpp": "#define SIZE 4\n",
    "vector.cpp": "#include <hwy/highway.h>\n",
    "first_operator.cpp": '#include "registry.h"\n'
    + UNNAMED.format(
        "int rank() { return 1; }\nAdd add(rank);\nvoid shape(ShapeContext& c) {\n  c.rank = rank();\n}\n"
        "template <int kRank>\nvoid fixed(ShapeContext& c) {\n  c.rank = kRank;\n}\nRule rules[] = {shape, fixed<1>};",
        "",
    ),
    "second_operator.cpp": '#include "registry.h"\n'
    + UNNAMED.format("int rank() { return 2; }\nAdd add(rank);", ""),
}
REGISTRY = (
    "#pragma once\nnamespace ortrain { extern int ranks; struct Add { Add(int (*f)()) { ranks += f(); } };\n"
    "struct ShapeContext { int rank = 0; }; using Rule = void (*)(ShapeContext&); }\n"
)


def compile_together(folder: Path, without: Iterable[str] = ()) -> list[Path]:
    """Return the sources that a build compiles."""
    together = folder / "together"
    together.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in SOURCES]
    for path in paths:
        path.write_text(SOURCES[path.name])
    (folder / "registry.h").write_text(REGISTRY)
    command = [
        sys.executable,
        str(ROOT / "cmake/compile_together.py"),
        str(together),
        str(folder),
        *map(str, paths),
        "--without",
        *(str(folder / name) for name in without),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [Path(line) for line in run.stdout.splitlines()]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The sources that a build compiles."""
    return compile_together(tmp_path_factory.mktemp("sources"))


def test_sources_whose_names_clash_are_apart(compiled: list[Path]) -> None:
    group = {name: path for path in compiled for name in SOURCES if f'"{name}"' in path.read_text()}
    assert group["a.cpp"] == group["b.cpp"]
    assert group["same_name.cpp"] != group["a.cpp"]
    assert group["calls_another.cpp"] not in (group["a.cpp"], group["same_name.cpp"])
    assert group["variable.cpp"] != group["same_variable.cpp"]
    alone = {path.name for path in compiled} & SOURCES.keys()
    assert alone == {"macro.cpp", "vector.cpp"}
    assert group.keys() == SOURCES.keys() - alone


def test_a_source_that_is_left_out_changes_its_group_alone(tmp_path: Path) -> None:
    before = {path: path.read_text() for path in compile_together(tmp_path)}
    after = {path: path.read_text() for path in compile_together(tmp_path, ["a.cpp", "macro.cpp"])}
    [group] = (path for path, text in before.items() if '"a.cpp"' in text)
    assert '"b.cpp"' in before[group]
    assert after[group] == before[group].replace('#include "a.cpp"\n', "")
    assert {path for path in before if before[path] != after.get(path)} == {group, tmp_path / "macro.cpp"}


def test_a_group_whose_sources_are_left_out_is_not_compiled(tmp_path: Path) -> None:
    before = compile_together(tmp_path)
    operators = ["first_operator.cpp", "second_operator.cpp"]
    assert {path.name for path in before} - {path.name for path in compile_together(tmp_path, operators)} == {
        "enclosed_0.cpp"
    }


def test_operators_with_the_same_names_are_compiled_together(compiled: list[Path], tmp_path: Path) -> None:
    (group,) = (path for path in compiled if '"first_operator.cpp"' in path.read_text())
    assert '"second_operator.cpp"' in group.read_text()
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    main = tmp_path / "main.cpp"
    main.write_text(
        "namespace ortrain { int ranks = 0; }\n"  # zero before the operators of the other source add their ranks
        "int main() { return ortrain::ranks; }\n"
    )
    program = tmp_path / "program"
    subprocess.run([compiler, f"-I{group.parents[1]}", main, group, "-o", program], check=True)
    assert subprocess.run([program], check=False).returncode == 3


def test_rules_of_operators_are_made_small(compiled: list[Path]) -> None:
    (group,) = (path for path in compiled if '"first_operator.cpp"' in path.read_text())
    declared = [line for line in group.read_text().splitlines() if "gnu::cold" in line]
    assert declared == ["[[gnu::cold]] void shape(ShapeContext&);"]
