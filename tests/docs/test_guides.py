"""The guides for contributors are true: what they name exists, and a new operator touches the places that they list."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from languages import ROOT
from ortrain import _ortrain

GUIDES = [
    ROOT / "CONTRIBUTING.md",
    *(ROOT / f"docs/adding-{what}.md" for what in ("a-call", "a-language", "an-operator", "an-optimizer")),
]
FOLDERS = (
    ROOT,
    ROOT / "core/src",
    ROOT / "core/src/backend/cpu/optimizer",
    ROOT / "tests",
    ROOT / "bindings/python/ortrain",
)
"""A path in a guide starts in one of these."""
OPERATORS = (ROOT / "docs/adding-an-operator.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "tests/core/test_adding_an_operator.cpp"


def prose_of(guide: Path) -> str:
    """The text of a guide without the blocks that show files."""
    return re.sub(r"^```.*?^```", "", guide.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def places(guide: str) -> list[str]:
    """The paths in the first column of the table of places, with ``*`` for what a contributor names."""
    table = guide.split("| place |")[1].split("\n\n")[0]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [re.sub(r"<\w+>", "*", path) for cell in cells for path in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_paths_in_a_guide_exist(guide: Path) -> None:
    prose = prose_of(guide)
    named = set(re.findall(r"`((?:[\w.<>-]+/)+[\w.<>-]*)`", prose))
    named |= {
        path for path in re.findall(r"\{literalinclude\} \.\./(\S+)", guide.read_text(encoding="utf-8"))
    }
    assert len(named) > 5
    # Files of the language that the guide creates, results of builds, and the name of many folders.
    absent = re.compile(r"ctypes|^(build|\.venv|templates|generated)/")
    named = {name for name in named if not absent.search(name)}
    missing = []
    for name in sorted(named):
        pattern = re.sub(r"<\w+>", "*", name)
        forms = (pattern, f"{pattern.rstrip('/')}.py")  # a module of Python may be a file or a folder
        if not any(any(folder.glob(form)) for folder in FOLDERS for form in forms):
            missing.append(name)
    assert not missing


def test_an_operator_is_named_in_the_places_of_the_guide_and_no_others() -> None:
    """CausalConvWithState is an operator that nothing else in the project mentions."""
    listed = places(OPERATORS)
    assert len(listed) == 2
    naming = {
        path
        for folder in ("core", "tests", "docs", "bindings", "codegen", "cmake", "spec")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".cpp", ".h", ".py", ".md", ".yaml", ".txt", ".j2"}
        and path != Path(__file__).resolve()
        and not {"generated", "_build", "__pycache__"} & set(path.parts)
        and "docs/reference/api" not in path.as_posix()
        and path.name not in ("conformance.md", "gradients.md", "standard-forms.md")  # rendered with the site
        and path.name != "standard_forms.yaml"  # recorded by tests
        and re.search(r"\bCausalConvWithState\b", path.read_text(encoding="utf-8"))
    }
    expected = {next(p for p in ROOT.glob(place) if p in naming) for place in listed}
    assert naming == expected
    assert len(expected) == 2


def test_operators_of_the_guide_are_registered() -> None:
    registered = {tuple(line.split(",")[:2]) for line in _ortrain.list_operators().splitlines()}
    included = re.findall(r"literalinclude\} \.\./(core/src/ops/\S+)", OPERATORS)
    assert included
    for path in included:
        source = (ROOT / path).read_text(encoding="utf-8")
        [name] = re.findall(r'\.type = "(\w+)"', source) or re.findall(r'ORTRAIN_OPERATOR\("(\w+)"', source)
        assert ("", name) in registered


@pytest.mark.thorough
def test_the_example_compiles_where_the_guide_says_and_nothing_else_changes(tmp_path: Path) -> None:
    """An operator's file in the folder of a family includes all that it needs, and CMake finds it there."""
    shutil.copytree(ROOT / "core/src", tmp_path / "core/src")
    subprocess.run(
        [sys.executable, ROOT / "cmake/built_operators.py", tmp_path / "built_operators.h"], check=True
    )
    parts = EXAMPLE.read_text(encoding="utf-8").split("// [example]\n")
    assert len(parts) == 3
    source = tmp_path / "core/src/ops/tensor/peaks.cpp"
    source.write_text(parts[1], encoding="utf-8")
    includes = [f"-I{tmp_path}", f"-I{tmp_path / 'core/src'}"]
    command = ["g++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", *includes, source]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    [found] = re.findall(
        r"file\(GLOB_RECURSE CORE_SOURCES CONFIGURE_DEPENDS \$\{PROJECT_SOURCE_DIR\}/(\S+)/\*\.cpp\)",
        (ROOT / "CMakeLists.txt").read_text(encoding="utf-8"),
    )
    assert source in (tmp_path / found).rglob("*.cpp")


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.name)
def test_targets_and_options_of_commands_exist(guide: Path) -> None:
    text = guide.read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        name for line in re.findall(r"^([a-z0-9- ]+):(?!=)", makefile, re.MULTILINE) for name in line.split()
    }
    wanted = set(re.findall(r"(?:^|`|&& )make ([a-z][a-z0-9-]*)", text, re.MULTILINE))
    assert wanted <= targets
    options = set(re.findall(r"pytest [\w/. ]*(--[a-z-]+)", text))
    defined = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("conftest.py"))
    assert all(f'"{option}"' in defined for option in options)
