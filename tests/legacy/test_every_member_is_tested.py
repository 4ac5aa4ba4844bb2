"""Each member that the documentation of the older Python API lists is used by a test, not only looked up."""

from __future__ import annotations

import ast
import json
import pathlib
from collections.abc import Iterator

import pytest

TESTS = pathlib.Path(__file__).parents[1]
MEMBERS: dict[str, list[str]] = json.loads((TESTS / "data/legacy_members.json").read_text())


def functions(folder: str) -> Iterator[tuple[pathlib.Path, ast.FunctionDef]]:
    for path in sorted((TESTS / folder).glob("**/*.py")):
        if path == pathlib.Path(__file__):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                yield path, node


def mentions(function: ast.FunctionDef, name: str) -> bool:
    return any(name in (getattr(n, "attr", ""), getattr(n, "id", "")) for n in ast.walk(function))


def called(function: ast.FunctionDef) -> set[str]:
    """Return the names of the methods and functions that a function calls."""
    calls = [n.func for n in ast.walk(function) if isinstance(n, ast.Call)]
    return {
        f.attr if isinstance(f, ast.Attribute) else f.id
        for f in calls
        if isinstance(f, (ast.Attribute, ast.Name))
    }


def set_in(function: ast.AST) -> set[str]:
    """Return the names that are assigned as attributes, passed by keyword or keys of a dictionary."""
    found = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
        elif isinstance(node, ast.Dict):
            found |= {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    return found


def used() -> dict[str, set[str]]:
    """Return what tests use of each class."""
    of: dict[str, set[str]] = {name: set() for name in MEMBERS}
    for _, function in functions("legacy"):
        inner = mentions(function, "C") and mentions(function, "TrainingSession")
        of["C.TrainingSession" if inner else "TrainingSession"] |= called(function)
    for _, function in functions("."):
        if mentions(function, "GradientGraphBuilder"):
            of["GradientGraphBuilder"] |= called(function)
    for path in sorted((TESTS / "legacy").glob("*.py")):
        of["TrainingParameters"] |= set_in(tree := ast.parse(path.read_text()))
        of["TrainingParameters"] |= {
            n.func.attr
            for n in ast.walk(tree)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
        }
    for name, constructed in (
        ("TrainingSession", "TrainingSession"),
        ("C.TrainingSession", "TrainingSession"),
        ("GradientGraphBuilder", "GradientGraphBuilder"),
    ):
        if constructed in of[name]:
            of[name].add("__init__")
    return of


USED = used()


@pytest.mark.parametrize(("cls", "member"), [(c, m) for c, members in MEMBERS.items() for m in members])
def test_a_test_uses_the_member(cls: str, member: str) -> None:
    assert member in USED[cls], f"no test uses {cls}.{member}"


def test_the_list_is_complete() -> None:
    assert {name: len(members) for name, members in MEMBERS.items()} == {
        "TrainingSession": 23, "C.TrainingSession": 10, "TrainingParameters": 38, "GradientGraphBuilder": 4,
    }  # fmt: skip
    assert "no_such_member" not in set().union(*USED.values())
