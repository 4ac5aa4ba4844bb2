"""No function is longer than a reader can hold in mind."""

from __future__ import annotations

import ast
import itertools
import pathlib
import subprocess
from collections.abc import Iterator

import lizard
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = ("core", "bindings", "codegen", "scripts", "benchmarks", "cmake", "docs", "examples", "tests")
SUFFIXES = {".cpp", ".h", ".c", ".m", ".cs", ".swift", ".js", ".mjs", ".py"}
MOST_LINES = 80
# Functions that are better whole, each with the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {}
# A sample of what the parser has to see: a template among vector code, a method, a kernel maker, the languages.
KNOWN = [
    ("core/src/backend/cpu/attention/attention_kernel.cpp", "HWY_NAMESPACE::Backward"),
    ("core/src/program/executor.cpp", "Executor::Impl::compile"),
    ("core/src/ops/recurrent/lstm.cpp", "backward"),
    ("bindings/python/src/ort_value.cpp", "python::bind_support"),
    ("bindings/python/ortrain/artifacts/generation.py", "generate_artifacts"),
    ("bindings/csharp/src/native/ForwardRun.cs", "IRunValue::Run"),
    ("bindings/swift/Sources/onnxruntime_training_objc/ORTValue.swift", "init"),
    ("bindings/objc/src/ort_value.m", "readTensorData: elementType: shape: call:"),
    ("bindings/javascript/files.mjs", "openFile"),
]


def sources() -> list[pathlib.Path]:
    """Return the sources written by hand."""
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [pathlib.Path(name) for name in listed.stdout.splitlines()]
    generated = [ROOT / "core" / "include"]
    return [
        path
        for path in paths
        if path.suffix in SUFFIXES
        and "generated" not in path.parts
        and ROOT / path.parent not in generated
        and (ROOT / path).is_file()
    ]


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Yield the functions of Python with their lines.

    A documentation string does not count, nor does a function inside of a function, which counts separately.
    """
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inner = [child for child in ast.walk(node) if child is not node and isinstance(child, type(node))]
        outermost = [i for i in inner if not any(o is not i and i in ast.walk(o) for o in inner)]
        lines = length(node) - sum(length(child) for child in outermost)
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            lines -= length(first)
        yield node.name, lines


def length(node: ast.stmt) -> int:
    """Return the lines of a statement."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def other_functions(path: pathlib.Path) -> Iterator[tuple[str, int]]:
    """Yield the functions of another language with their lines.

    Lambdas count for the function around them; functions of JavaScript with a name do not.
    """
    spans = [(f.name, f.start_line, f.end_line) for f in lizard.analyze_file(str(path)).function_list]
    for name, start, end in spans:
        if name == "(anonymous)":
            continue  # it belongs to the function around it, and where it ends is not always understood
        lines = end - start + 1
        if path.suffix in {".js", ".mjs"}:
            inner = [
                s
                for s in spans
                if s[0] != "(anonymous)" and start <= s[1] and s[2] <= end and s[1:] != (start, end)
            ]
            outermost = [i for i in inner if not any(o[1] <= i[1] and i[2] <= o[2] and o != i for o in inner)]
            lines -= sum(last - first + 1 for _, first, last in outermost)
        yield name.removeprefix("ortrain::"), lines


def may_be_long(path: pathlib.Path) -> bool:
    """Whether a source can have a function that is too long; parsing takes the more time.

    As clang-format leaves C, C++ and Objective-C, no line within a function begins with a brace, and the last line of a function
    that is in no class does.
    """
    if path.suffix not in {".c", ".cpp", ".h", ".m"}:
        return True
    lines = path.read_text(encoding="utf-8").splitlines()
    ends = [0, *(number for number, line in enumerate(lines, 1) if line.startswith("}")), len(lines)]
    return any(last - first > MOST_LINES for first, last in itertools.pairwise(ends))


def lengths() -> dict[tuple[str, str], int]:
    """Return the lines of every function that may be too long or is in a source of `KNOWN`, by source and name."""
    found: dict[tuple[str, str], int] = {}
    for source in sources():
        path = ROOT / source
        if not may_be_long(path) and source.as_posix() not in {name for name, _ in KNOWN}:
            continue
        functions = python_functions(path.read_text()) if source.suffix == ".py" else other_functions(path)
        for name, lines in functions:
            key = (source.as_posix(), name)
            found[key] = max(found.get(key, 0), lines)
    return found


@pytest.mark.thorough
def test_functions_are_not_too_long() -> None:
    found = lengths()
    for known in KNOWN:
        assert found[known] > 3, known
    too_long = {key: lines for key, lines in found.items() if lines > MOST_LINES and key not in EXCEPTIONS}
    assert not too_long, (
        f"more than {MOST_LINES} lines; cut at the phases that their comments name: {too_long}"
    )
    outdated = [key for key in EXCEPTIONS if found.get(key, 0) <= MOST_LINES]
    assert not outdated, f"no longer exceptions: {outdated}"


def test_what_counts_in_python() -> None:
    text = 'def outer():\n    """One.\n\n    Two."""\n    a = 1\n    def inner():\n        return a\n    return inner\n'
    assert dict(python_functions(text)) == {"outer": 3, "inner": 2}


def test_only_sources_without_long_functions_are_passed_over(tmp_path: pathlib.Path) -> None:
    for lines in (MOST_LINES, MOST_LINES + 1):
        source = tmp_path / "source.cpp"
        inner = "".join(f"  if (x == {i}) {{\n    ++x;\n  }}\n" for i in range((lines - 2) // 3))
        rest = "  ++x;\n" * ((lines - 2) % 3)
        source.write_text(f"namespace {{\n\nint f();\n}}\nvoid g(int& x) {{\n{inner}{rest}}}\n")
        assert dict(other_functions(source))["g"] == lines
        assert may_be_long(source) == (lines > MOST_LINES)
