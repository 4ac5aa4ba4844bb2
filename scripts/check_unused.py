"""List functions without a use in the core, the bindings, the generator, and the Python tests and tools.

python scripts/check_unused.py

A function is used if its name occurs outside the declarations and definitions of functions. Uses in tests do not count for C++
functions and for Python functions with a leading underscore. They count for other Python functions, because users call these. The
script does not find an unused function if something else has the function's name.
"""

from __future__ import annotations

import ast
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
THIS = pathlib.Path(__file__)

# Functions that only other software calls, grouped by reason.
EXCEPTIONS = {
    "a macro": "PYBIND11_MODULE HWY_BEFORE_NAMESPACE HWY_AFTER_NAMESPACE",
    "a function that only tests call": "SetSupportedTargetsForTest",
    "a symbol that programs for onnxruntime link to": "OrtSessionOptionsAppendExecutionProvider_CPU",
    "overrides a method of click": "list_commands get_command format_commands",
    "overrides a method of http.server": "do_GET do_POST log_message",
    "overrides a method of Flower": """
        num_available configure_fit aggregate_fit set_run create_message push_messages pull_messages""",
    "overrides a method of onnxruntime": "get_next",
    "the API of onnxruntime": """
        release_captured_graph get_output_memory_infos create_ortvalue_from_shape_and_type shrink_to_fit
        bool_tensor_indices dlpack_at to_dlpacks add_provider_for_devices set_provider_selection_policy
        _get_c_tensor to_cuda""",
    "the API of onnxruntime's onnxblock": "has_path",
    "notebooks call it": "_repr_png_ _repr_html_",
}

CPP = [f"{folder}/*.{suffix}" for folder in ("core/src", "bindings/python/src") for suffix in ("cpp", "h")]
PYTHON = ["bindings/python/ortrain/*.py", "codegen/*.py", "scripts/*.py"]
TOOLS = ["benchmarks/*.py", "cmake/*.py", "docs/*.py", "examples/*.py", "tests/*.py"]
CALLED_BY_PYTEST = ("test_", "pytest_")
ANYWHERE = ["*.py", "*.pyi", "*.md", "*.yaml", "*.j2", "*.cpp", "*.toml", "Makefile"]

NAME = re.compile(r"\b[A-Za-z_]\w*\b")
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'", re.DOTALL)
# A line that declares or defines a function: the type, the scope of the name, the name.
DECLARATION = re.compile(
    r"^([ \t]*(?:[\w:<>,*&\[\] .()]*?[\w>*&\])][\s*&]+)?(?:\w+(?:<[^<>()]*>)?::)*)~?(\w+)\(", re.MULTILINE
)
# Text inside a function that looks like a declaration: a statement, a call of a function in a scope, a variable.
STATEMENT = re.compile(
    r"\s*(return|else|throw|case|delete|new|if|for|while|switch|do|using|goto)\b|\s+(\w+::)*$|\s+const [\w:<>]+ $"
)


def texts(patterns: list[str]) -> dict[str, str]:
    """Return the texts of the files that match a pattern, by name."""
    listed = subprocess.run(
        ["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = (ROOT / name for name in listed.stdout.splitlines())
    found = {path: path.read_text(encoding="utf-8") for path in files if path.is_file() and path != THIS}
    return {path.relative_to(ROOT).as_posix(): text for path, text in found.items()}


def unused_cpp(sources: dict[str, str]) -> dict[str, str]:
    """Return the C++ functions that the sources do not use, with the place of each declaration or definition."""
    uses: collections.Counter[str] = collections.Counter()
    places: dict[str, str] = {}
    for file, text in sources.items():
        code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        uses.update(NAME.findall(code))
        for found in DECLARATION.finditer(code):
            if not STATEMENT.match(found[1]):
                uses[found[2]] -= 1
                places[found[2]] = f"{file}:{code.count(chr(10), 0, found.start(2)) + 1}"
    return {name: place for name, place in places.items() if uses[name] <= 0}


def unused_python(product: dict[str, str], anywhere: dict[str, str]) -> dict[str, str]:
    """Return the Python functions without a use, with the place of each definition."""
    private, public = (
        collections.Counter(name for text in where.values() for name in NAME.findall(text))
        for where in (product, anywhere)
    )
    places: dict[str, str] = {}
    definitions: collections.Counter[str] = collections.Counter()
    for file, text in product.items():
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.name.endswith("__"):
                continue
            definitions[node.name] += 1
            automatic = any("autouse=True" in ast.unparse(decorator) for decorator in node.decorator_list)
            if not automatic and not node.name.startswith(CALLED_BY_PYTEST):
                places[node.name] = f"{file}:{node.lineno}"
    return {
        name: place
        for name, place in places.items()
        if (private if name.startswith("_") else public)[name] <= definitions[name]
    }


def main() -> int:
    """Print unused functions that are not exceptions, and exceptions that are used or no longer exist."""
    anywhere = texts(ANYWHERE)
    unused = unused_cpp(texts(CPP))
    for product in (PYTHON, TOOLS):
        unused |= unused_python(texts(product), anywhere)
    expected = {name for names in EXCEPTIONS.values() for name in names.split()}
    wrong = [f"{place}: {name} is never used" for name, place in unused.items() if name not in expected]
    wrong += [
        f"{name} is used or no longer exists: remove it from EXCEPTIONS in {THIS.name}"
        for name in sorted(expected - set(unused))
    ]
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
