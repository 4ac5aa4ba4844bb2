"""Imports in the Python package go one way: from each row to those that docs/architecture.md lists below it."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "bindings/python/ortrain"
EXTENSION = "_ortrain"

ONNX = "needs onnx, which training on a device does not"
FRAMEWORK = "a framework, which only its users have"
OPTIONAL = "an optional package"
NAMED = "is found under a name of onnxruntime"
OLDER = "is loaded when a program asks for the older API"
INSIDE = {
    ("__init__", "ortrain.legacy.generated.training_parameters"): OLDER,
    ("__init__", "ortrain.training_session"): OLDER,
    ("artifacts.networks", "ortrain.jax._export"): FRAMEWORK,
    ("artifacts.networks", "ortrain.keras._export"): FRAMEWORK,
    ("artifacts.networks", "ortrain.torch._export"): FRAMEWORK,
    ("_files.stored_state", "flatbuffers"): OPTIONAL,
    ("_files.stored_state", "onnx"): ONNX,
    ("cli.adapter_option", "ortrain.artifacts"): ONNX,
    ("cli.artifacts_command", "ortrain.artifacts"): ONNX,
    ("cli.artifacts_command", "ortrain.onnxblock.optim"): ONNX,
    ("cli.artifacts_command", "ortrain.trainer.creation"): ONNX,
    ("cli.quantize_command", "ortrain.artifacts"): ONNX,
    ("cli.checkpoints", "onnx"): ONNX,
    ("cli.checkpoints", "ortrain._files.models"): ONNX,
    ("cli.compat_command", "ortrain.artifacts.loading"): ONNX,
    ("cli.compat_command", "ortrain.trainer.creation"): ONNX,
    ("cli.doctor_command", "onnx"): ONNX,
    ("cli.export_command", "ortrain._files.weights"): ONNX,
    ("cli.export_command", "ortrain.artifacts"): ONNX,
    ("cli.export_command", "ortrain.preprocessing.nodes"): ONNX,
    ("cli.fitting", "onnx"): ONNX,
    ("cli.fitting", "ortrain.models"): ONNX,
    ("cli.language_models", "ortrain._files.models"): ONNX,
    ("cli.language_models", "ortrain._files.weights"): ONNX,
    ("cli.language_models", "ortrain.artifacts"): ONNX,
    ("cli.language_models", "ortrain.artifacts.graph.cache"): ONNX,
    ("cli.language_models", "ortrain.artifacts.graph.packed_tables"): ONNX,
    ("cli.language_models", "ortrain.trainer.creation"): ONNX,
    ("cli.reduce_command", "ortrain._files.models"): ONNX,
    ("cli.step_options", "ortrain.artifacts.step"): ONNX,
    ("cli.train_command", "ortrain.trainer.creation"): ONNX,
    ("compat", "ortrain.api"): NAMED,
    ("compat", "ortrain.artifacts"): NAMED,
    ("compat", "ortrain.capi._pybind_state"): NAMED,
    ("compat", "ortrain.onnxblock"): NAMED,
    ("compat", "ortrain.onnxblock._training"): NAMED,
    ("compat", "ortrain.onnxblock.loss"): NAMED,
    ("compat", "ortrain.onnxblock.optim"): NAMED,
    ("distributed.__main__", "resource"): "is missing on Windows",
    ("distributed.communicator", "mpi4py"): OPTIONAL,
    ("keras._export", "ortrain.keras._conversion"): "imports TensorFlow, which takes seconds",
    ("legacy.gradient_graph", "torch"): FRAMEWORK,
    ("legacy.sampler", "torch"): FRAMEWORK,
    ("preprocessing.augmentation", "PIL"): OPTIONAL,
    ("preprocessing.pictures", "PIL"): OPTIONAL,
    ("step._session", "onnx"): ONNX,
    ("step._session", "ortrain._files.models"): ONNX,
    ("step._session", "onnxruntime"): OPTIONAL,
    ("torch._exporters", "onnxscript"): OPTIONAL,
    ("torch._exporters", "torch"): FRAMEWORK,
    ("torch._state", "ml_dtypes"): OPTIONAL,
    ("trainer.private", "ortrain.trainer.clipped_rows"): ONNX,
    ("trainer.caching", "ortrain.trainer.cached_module"): ONNX,
    ("trainer.caching", "ortrain.trainer.frozen_body"): ONNX,
    ("trainer.core", "ortrain.trainer.creation"): ONNX,
    ("trainer.quantized", "onnx"): ONNX,
    ("trainer.quantized", "ortrain.artifacts.graph.quantization_aware"): ONNX,
    ("trainer.plotting", "matplotlib"): OPTIONAL,
    ("training", "ortrain.artifacts"): ONNX,
    ("training", "ortrain.onnxblock"): ONNX,
}
"""Imports inside functions, and modules that are imported by a name in a string: module, what it imports, and why there.

All other imports stand at the head of a module. An import moves into a function only if it needs a package that many
users do not have, or one that takes long to load.
"""


class Import(NamedTuple):
    """An import: the module that has it, what it imports, and whether that happens in a function."""

    source: str
    target: str
    inside: bool


def name_of(path: pathlib.Path) -> str:
    """Return the name of a module, below the package; `__init__` for the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def modules() -> dict[str, pathlib.Path]:
    return {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def levels() -> dict[str, int]:
    """Return the level of each entry of the table, 0 for the topmost; arrows divide a row into several levels."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## The Python package\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    rows = [level for cell in cells for level in cell.split("→")]
    entries = [(name, i) for i, row in enumerate(rows) for name in re.findall(r"`([\w.]+)`", row)]
    assert len(entries) == len(dict(entries)), "an entry is listed twice"
    return dict(entries)


def entry_of(module: str, entries: dict[str, int]) -> str | None:
    """Return the entry of the table that a module belongs to: the longest that is the module or a package around it."""
    while module and module not in entries:
        module = module.rpartition(".")[0]
    return module or None


def imported(node: ast.Import | ast.ImportFrom, known: set[str]) -> Iterator[str]:
    """Yield what a statement imports: modules of ortrain in full, of others the package."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        assert node.level == 0, "imports name the package"
        module = node.module or ""
        names = [full if (full := f"{module}.{alias.name}") in known else module for alias in node.names]
    for name in names:
        yield name if name.partition(".")[0] == "ortrain" else name.partition(".")[0]


def docstrings(tree: ast.AST) -> set[int]:
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def imports_in(source: str, module: str, known: set[str]) -> Iterator[Import]:
    """Yield the imports of a module, those for type checkers and those by a name in a string included."""
    tree = ast.parse(source)

    def visit(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                yield from (Import(module, name, inside) for name in imported(child, known))
            yield from visit(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from visit(tree, False)
    if "import_module(" in source:
        texts = docstrings(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or id(node) in texts or node.value not in known:
                continue
            if "." in node.value and node.value != f"ortrain.{module}":  # alone, it is the program's name
                yield Import(module, node.value, True)


@functools.cache
def all_imports() -> list[Import]:
    found = modules()
    known = {"ortrain", f"ortrain.{EXTENSION}", *(f"ortrain.{name}" for name in found)}
    return [
        each
        for name, path in found.items()
        for each in imports_in(path.read_text(encoding="utf-8"), name, known)
    ]


def inner(imports: list[Import]) -> set[tuple[str, str]]:
    """Return the imports of one module of the package by another, without the common name in front."""
    pairs = {
        (source, target.removeprefix("ortrain").removeprefix(".") or "__init__")
        for source, target, _ in imports
        if target.partition(".")[0] == "ortrain"
    }
    return {(source, target) for source, target in pairs if source != target}


def wrong(pairs: set[tuple[str, str]], entries: dict[str, int]) -> list[str]:
    """Return the imports that go up or sideways in a table."""
    found = []
    for source, target in sorted(pairs):
        ends = entry_of(source, entries), entry_of(target, entries)
        if ends[0] != ends[1] and None not in ends and entries[ends[0]] >= entries[ends[1]]:
            found.append(f"{source} -> {target}")
    return found


def circle(pairs: set[tuple[str, str]]) -> list[str]:
    """Return modules that import each other in a circle; none if there are none."""
    after: dict[str, list[str]] = {}
    for source, target in sorted(pairs):
        after.setdefault(source, []).append(target)
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for target in after.get(name, ()):
                if found := visit(target, [*way, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in after if (found := visit(name, []))), [])


def test_every_module_belongs_to_a_row() -> None:
    entries = levels()
    assert [name for name in modules() if entry_of(name, entries) is None] == []
    unknown = {EXTENSION, *modules()}
    assert [name for name in entries if name not in unknown] == []


def test_imports_go_down() -> None:
    found = wrong(inner(all_imports()), levels())
    assert not found, f"against the order of docs/architecture.md: {found}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    # Classes of the spec name each other in annotations: a state has parameters, and each keeps its state.
    pairs = {
        (source, target)
        for source, target in inner(all_imports())
        if not (source.startswith("api.generated.") and target.startswith("api.generated."))
    }
    assert circle(pairs) == []


def test_imports_inside_functions_are_listed() -> None:
    found = {(i.source, i.target) for i in all_imports() if i.inside}
    assert found == set(INSIDE), f"new: {sorted(found - set(INSIDE))}, gone: {sorted(set(INSIDE) - found)}"


def test_modules_in_the_root_are_public() -> None:
    private = {path.name for path in PACKAGE.glob("_*.py")}
    assert private == {"__init__.py", "__main__.py"}


def test_the_older_api_is_loaded_when_a_program_asks_for_it() -> None:
    program = (
        "import sys, ortrain\n"
        "loaded = [name for name in sys.modules if name.startswith(('ortrain.legacy', 'ortrain.distributed'))]\n"
        "assert loaded == [], loaded\n"
        "assert {'TrainingSession', 'TrainingParameters'} < set(dir(ortrain))\n"
        "assert ortrain.TrainingSession is ortrain.training_session.TrainingSession\n"
        "assert ortrain.TrainingParameters().world_size == 1\n"
        "assert 'ortrain.legacy.training_session' in sys.modules\n"
        "assert not hasattr(ortrain, 'no_such_name')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from ortrain import b", Import("a", "ortrain.b", False)),
        ("import ortrain.b", Import("a", "ortrain.b", False)),
        ("from ortrain.b import name", Import("a", "ortrain.b", False)),
        ("def f():\n    from ortrain.b import name", Import("a", "ortrain.b", True)),
        ("if TYPE_CHECKING:\n    from ortrain.b import name", Import("a", "ortrain.b", False)),
        ("def f():\n    import numpy.typing", Import("a", "numpy", True)),
        ("import_module(NAMES[0])\nNAMES = ['ortrain.b']", Import("a", "ortrain.b", True)),
    ],
)
def test_an_import_is_found(statement: str, expected: Import) -> None:
    assert list(imports_in(statement, "a", {"ortrain", "ortrain.a", "ortrain.b"})) == [expected]


def test_what_goes_up_or_sideways_or_round_is_found() -> None:
    entries = {"top": 0, "left": 1, "right": 1, "low": 2}
    pairs = {
        ("top.x", "low"),
        ("left", "right.y"),
        ("low", "top"),
        ("left.a", "left.b"),
        ("left.b", "left.a"),
    }
    assert wrong(pairs, entries) == ["left -> right.y", "low -> top"]
    assert circle(pairs) == ["left.a", "left.b", "left.a"]
    assert circle({("a", "b"), ("b", "c"), ("a", "c")}) == []
