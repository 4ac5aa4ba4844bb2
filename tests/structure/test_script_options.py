"""Scripts read only command line options that they declare. mypy does not see this: a namespace has any attribute."""

from __future__ import annotations

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPTS = [
    path
    for folder in ("benchmarks", "scripts")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "options = parser.parse_args()" in path.read_text()
]


def undeclared(source: str) -> set[str]:
    """Return the attributes of `options` that the source reads, and that none of its strings names."""
    tree = ast.parse(source)
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    declared = {text.lstrip("-").replace("-", "_") for text in texts}
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Name)
        and node.value.id == "options"
    } - declared


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_options_are_declared(path: pathlib.Path) -> None:
    assert undeclared(path.read_text()) == set()


def test_a_missing_option_is_found() -> None:
    source = 'parser.add_argument("--length")\noptions = parser.parse_args()\nprint(options.length, options.precision)'
    assert undeclared(source) == {"precision"}
