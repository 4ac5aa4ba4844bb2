"""Includes go one way: from each folder of the core to those that docs/architecture.md lists below it."""

from __future__ import annotations

import pathlib
import re

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
SOURCES = ROOT / "core" / "src"
# Includes from one family of operators to another, except those of ops/common.
ACROSS_FAMILIES = {
    ("ops/optimizer/sequence_optimizers.cpp", "ops/control/sequence.h"),
}


def layers() -> list[set[str]]:
    """Return the rows of the table under "Layers", the topmost first."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("\n## Layers\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return [set(re.findall(r"`(\w+)`", row)) for row in rows]


def includes(source: pathlib.Path) -> list[str]:
    """Return the headers of the core that a source or header includes."""
    return [
        name for name in re.findall(r'^#include "([^"]+)"', source.read_text(), re.MULTILINE) if "/" in name
    ]


def sources() -> list[pathlib.Path]:
    return sorted(path for path in SOURCES.rglob("*") if path.suffix in {".cpp", ".h"})


def operators() -> list[pathlib.Path]:
    """Return the sources of operators."""
    return [path for path in sources() if "/ops/" in path.as_posix()]


def arrows(depth: int) -> set[tuple[str, str]]:
    """Return which folders, of at most that depth, include which others."""
    found = set()
    for source in sources():
        name = source.relative_to(SOURCES)
        for included in includes(source):
            if not (SOURCES / included).exists():
                continue  # generated during the build, or from core/include
            ends = [
                pathlib.PurePath(*[part for part in path.parts[:-1] if part != "generated"][:depth])
                for path in (name, pathlib.PurePath(included))
            ]
            if ends[0] != ends[1]:
                found.add((str(ends[0]), str(ends[1])))
    return found


def circle(graph: set[tuple[str, str]]) -> list[str]:
    """Return folders that include each other in a circle; None if there are none."""
    after: dict[str, set[str]] = {}
    for source, target in graph:
        after.setdefault(source, set()).add(target)
    done: set[str] = set()

    def visit(folder: str, way: list[str]) -> list[str]:
        if folder in way:
            return [*way[way.index(folder) :], folder]
        if folder in done:
            return []
        for target in sorted(after.get(folder, ())):
            if found := visit(target, [*way, folder]):
                return found
        done.add(folder)
        return []

    for folder in sorted(after):
        if found := visit(folder, []):
            return found
    return []


def test_the_table_lists_every_folder_once() -> None:
    listed = [folder for row in layers() for folder in row]
    assert sorted(listed) == sorted({path.name for path in SOURCES.iterdir() if path.is_dir()})


def test_folders_include_those_below_them_alone() -> None:
    level = {folder: i for i, row in enumerate(layers()) for folder in row}
    wrong = [
        f"{source} -> {target}" for source, target in sorted(arrows(1)) if level[source] >= level[target]
    ]
    assert not wrong, f"against the order of docs/architecture.md: {wrong}"


@pytest.mark.parametrize("depth", [1, 2])
def test_no_folders_include_each_other_in_a_circle(depth: int) -> None:
    assert circle(arrows(depth)) == []


def test_a_circle_is_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")}) == ["a", "b", "c", "a"]
    assert circle({("a", "b"), ("b", "c"), ("a", "c")}) == []


def test_only_one_source_needs_the_older_training_api() -> None:
    # Builds with ORTRAIN_LEGACY=OFF leave out the folder and this source.
    needing = {
        path.relative_to(SOURCES).as_posix()
        for path in sources()
        if not path.is_relative_to(SOURCES / "legacy")
        and any(i.startswith("legacy/") for i in includes(path))
    }
    assert needing == {"capi/legacy.cpp"}


def test_the_spec_marks_the_calls_of_the_older_training_api() -> None:
    calls = yaml.safe_load((ROOT / "spec" / "training_graph.yaml").read_text())["calls"]
    marked = {call["name"] for call in calls if call.get("part") == "legacy" and call["core"] == "body"}
    text = (SOURCES / "capi" / "legacy.cpp").read_text()
    defined = re.findall(r"^void ([A-Z]\w+)\(", text, re.MULTILINE)
    assert marked == {re.sub(r"(?<=.)([A-Z])", r"_\1", name).lower() for name in defined}


def test_families_of_operators_share_what_is_common() -> None:
    across = set()
    for source in sorted((SOURCES / "ops").rglob("*")):
        if source.suffix not in {".cpp", ".h"}:
            continue
        name = source.relative_to(SOURCES)
        for included in includes(source):
            parts = pathlib.PurePath(included).parts
            if parts[0] == "ops" and parts[1] not in {name.parts[1], "common"}:
                across.add((name.as_posix(), included))
    assert across == ACROSS_FAMILIES


def test_operators_are_rules_without_vector_code() -> None:
    vectorized = [
        path.relative_to(SOURCES).as_posix()
        for path in operators()
        if re.search(r"hwy|HWY|-inl\.h|immintrin", path.read_text())
    ]
    assert not vectorized, f"vector code belongs in backend/cpu: {vectorized}"


def test_an_operator_registers_with_all_its_members() -> None:
    """`describe` writes each member that differs from its default, and would drop a member that it does not name."""
    operator, traits = ((SOURCES / "op" / name).read_text() for name in ("operator.h", "traits.h"))
    described = operator[
        operator.index("void describe(Operator& to)") : operator.index("struct RegisterOperator")
    ]
    member = re.compile(r"^  [\w:<>]+ (?:\(\*)?(\w+)(?:\)\(.*\))?(?: = [^;]*)?;$", re.M)
    found = {
        (place, name)
        for place, struct, text in (
            ("", "Operator", operator),
            ("rules.", "Rules", operator),
            ("kernels.", "Kernels", operator),
            ("traits.", "Traits", traits),
        )
        for name in member.findall(re.search(rf"^struct {struct} {{\n(.*?)^}};$", text, re.M | re.S)[1])
    }
    assert {("", "signature"), ("rules.", "gradient"), ("kernels.", "cpu"), ("traits.", "repeat")} <= found
    parts = {("", name) for name in ("rules", "kernels", "traits", "made_from")}
    missing = sorted(place + name for place, name in found - parts if f"to.{place}{name} = " not in described)
    assert not missing, f"add to describe in op/operator.h: {missing}"


def test_the_core_needs_no_run_time_type_information() -> None:
    # Libraries that are optimized at link time have none (cmake/small_library.cmake).
    named = re.compile(r"\b(dynamic_cast|dynamic_pointer_cast|typeid|std::any)\b")
    found = [path.relative_to(SOURCES).as_posix() for path in sources() if named.search(path.read_text())]
    assert not found, f"virtual functions and layout_as (op/kernel.h) tell classes apart: {found}"


def test_rules_do_not_read_variants_out_of_an_operators_name() -> None:
    reads = re.compile(
        r"op_type\s*(==|!=)|op_type\.(find|starts_with|ends_with|substr|compare)|[=!]=\s*[\w.()]*op_type"
    )
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in operators()
        for line in path.read_text().splitlines()
        if reads.search(line)
    ]
    assert not found, f"state the variant where the operator is registered: {found}"
