"""A new call is an entry in the spec: everything that callers see in any language follows from it, and compiles."""

from __future__ import annotations

import ast
import pathlib
import shutil
import subprocess
import sys

import pytest
from languages import Missing, objc_options, skip_or_fail, tool
from spec_copy import ROOT, SpecCopy

from codegen.render import render, render_pages
from codegen.spec.check import load
from codegen.write import write, write_pages

pytestmark = pytest.mark.thorough

CALL = """
  - name: checkpoint_rename_parameter
    table: extension
    slot: FREE
    since: 2
    group: listing
    summary: Gives a parameter another name.
    details: The order of the parameters stays.
    parameters:
      - {name: checkpoint_state, type: checkpoint_state, mutable: true, doc: The state.}
      - {name: old_names, type: string, length: count, doc: Their present names.}
      - {name: values, type: value, length: count, doc: Values for each.}
      - {name: count, type: size, unit: names, doc: How many.}
      - {name: path, type: path, nullable: true, doc: A file that lists more.}
      - {name: ratio, type: float, doc: A number.}
      - {name: allocator, type: allocator, doc: Allocates the memory for the name.}
      - {name: out, type: string, direction: out, owner: allocator, doc: The last of the former names.}
      - {name: renamed, type: size, direction: out, unit: parameters, doc: How many were found.}
    errors:
      - {code: invalid_argument, when: the name is taken}
    core: body
"""

METHOD = """
      - name: rename_all
        pattern: direct
        call: checkpoint_is_nominal
        summary: Says whether the state is nominal.
        returns: {type: bool, doc: "@true when it is."}
"""

HAND_WRITTEN = (
    "spec",
    "core/src",
    "bindings/python/src",
    "bindings/csharp/src",
    "bindings/objc",
    "bindings/swift",
)
"""What the rendered files belong to; only the spec is changed."""


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A checkout with the files generated from an extended spec, and the hand-written sources."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in HAND_WRITTEN:
        shutil.copytree(ROOT / folder, root / folder)
    copy = SpecCopy(root / "spec")
    free = next(t["slots"] for t in load(copy.folder).tables if t["name"] == "extension")
    table = "  - name: extension\n    slots: "
    copy.replace("library.yaml", f"{table}{free}", f"{table}{free + 1}")
    copy.append("extensions.yaml", CALL.replace("FREE", str(free)))
    first = "      - name: add_property\n"
    copy.replace("classes.yaml", first, METHOD.lstrip("\n") + first)
    copy.replace(
        "languages/python.yaml", "        properties:\n", "        properties:\n        rename_all:\n"
    )
    spec = load(copy.folder)
    write(render(spec), root)
    write_pages(render_pages(spec), root / "docs/reference/api")
    return root


def compiled(*command: str | pathlib.Path) -> None:
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def compile_only(root: pathlib.Path, source: str, *options: str) -> None:
    includes = [f"-I{root}/core/include", f"-I{root}/core/src"]
    compiled("g++", "-std=c++20", "-Wall", "-Wextra", "-fsyntax-only", *includes, *options, root / source)


def test_the_header_declares_it_and_documents_it(rendered: pathlib.Path) -> None:
    text = (rendered / "core/include/ortrain_c_api.h").read_text()
    assert (
        "OrtStatus*(ORT_API_CALL* CheckpointRenameParameter)(OrtCheckpointState* checkpoint_state, "
        "const char* const* old_names, const OrtValue* const* values, size_t count, const ORTCHAR_T* path, "
        "float ratio, OrtAllocator* allocator, char** out, size_t* renamed) NO_EXCEPTION;" in text
    )
    assert "Gives a parameter another name." in text
    compile_only(rendered, "core/include/ortrain_c_api.h")
    compile_only(rendered, "core/include/ortrain_c_api.h", "-x", "c", "-std=c11")


def test_the_table_guards_it(rendered: pathlib.Path) -> None:
    text = (rendered / "core/src/capi/generated/ortrain_api.cpp").read_text()
    assert 'check_elements(old_names, count, "old_names", "count");' in text
    assert 'check_pointer(path, "path");' not in text
    assert ".CheckpointRenameParameter = entry::CheckpointRenameParameter" in text
    compile_only(rendered, "core/src/capi/generated/ortrain_api.cpp")


def test_the_python_extension_has_it(rendered: pathlib.Path) -> None:
    pybind = pytest.importorskip("pybind11", reason="the extension is compiled against pybind11")
    includes = [f"-I{pybind.get_include()}", f"-I{__import__('sysconfig').get_paths()['include']}"]
    compile_only(rendered, "bindings/python/src/generated/module.cpp", *includes)
    stub = (rendered / "bindings/python/ortrain/_ortrain.pyi").read_text()
    tree = ast.parse(stub)
    function = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "checkpoint_rename_parameter"
    )
    assert [a.arg for a in function.args.args] == ["checkpoint_state", "old_names", "values", "path", "ratio"]
    assert ast.unparse(function.returns or ast.Constant(None)) == "tuple[str, int]"


def test_a_method_that_stands_on_a_call_is_rendered_by_its_pattern(rendered: pathlib.Path) -> None:
    text = (rendered / "bindings/python/ortrain/api/generated/checkpoint_state.py").read_text()
    tree = ast.parse(text)
    cls = next(n for n in tree.body if isinstance(n, ast.ClassDef))
    method = next(n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == "rename_all")
    assert ast.unparse(method.body[-1]) == "return _ortrain.checkpoint_is_nominal(self._handle)"


CPP_CALLER = """
#include "onnxruntime_training_cxx_api.h"
int main() {
  auto state = Ort::CheckpointState::LoadCheckpoint("checkpoint");
  std::vector<Ort::Value> values;
  const std::tuple<std::string, size_t> result = state.RenameParameter({"a", "b"}, values, std::nullopt, 0.5f);
  return static_cast<int>(std::get<1>(result));
}
"""


def test_a_cpp_program_calls_it(rendered: pathlib.Path) -> None:
    (rendered / "caller.cpp").write_text(CPP_CALLER)
    compile_only(rendered, "caller.cpp", "-std=c++17")


CSHARP_CALLER = """
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime;

public static class Caller
{
    public static long Call(CheckpointState state, IReadOnlyCollection<OrtValue> values)
    {
        (string last, long renamed) = state.RenameParameter(new[] { "a", "b" }, values, null, 0.5f);
        return last.Length + renamed;
    }
}
"""


def test_a_csharp_program_calls_it(rendered: pathlib.Path) -> None:
    try:
        compiler = tool("mcs", "mono-mcs")
    except Missing as why:
        skip_or_fail("csharp", why)
    (rendered / "Caller.cs").write_text(CSHARP_CALLER)
    sources = sorted((rendered / "bindings/csharp/src").rglob("*.cs"))
    library = rendered / "Microsoft.ML.OnnxRuntime.dll"
    options = ["-nologo", "-target:library", "-langversion:7.2", "-warnaserror"]
    compiled(compiler, *options, "-unsafe", f"-out:{library}", *sources)
    compiled(compiler, *options, f"-r:{library}", f"-out:{rendered / 'Caller.dll'}", rendered / "Caller.cs")


OBJC_CALLER = """
#import "onnxruntime_training.h"

NSUInteger renamed(ORTCheckpoint *checkpoint, NSArray<ORTValue *> *values, NSError **error);
NSUInteger renamed(ORTCheckpoint *checkpoint, NSArray<ORTValue *> *values, NSError **error) {
  NSString *last = nil;
  NSUInteger count = 0;
  BOOL done = [checkpoint renameParameterWithOldNames:@[ @"a", @"b" ]
                                               values:values
                                                 path:nil
                                                ratio:0.5f
                                                  out:&last
                                              renamed:&count
                                                error:error];
  return done ? count : 0;
}
"""


def test_an_objective_c_program_calls_it(rendered: pathlib.Path) -> None:
    try:
        compiler, options = tool("clang", "clang"), objc_options()
    except Missing as why:
        skip_or_fail("objc", why)
    binding = rendered / "bindings/objc"
    (rendered / "caller.m").write_text(OBJC_CALLER)
    folders = (binding / "include", binding / "include/generated", binding / "src", rendered / "core/include")
    includes = [f"-I{folder}" for folder in folders]
    for source in (*sorted((binding / "src").rglob("*.m")), rendered / "caller.m"):
        compiled(compiler, "-fsyntax-only", "-Wall", "-Wextra", "-Werror", *options, *includes, source)


SWIFT_CALLER = """
func renamed(_ checkpoint: ORTCheckpoint, _ values: [ORTValue]) throws -> UInt {
  let result = try checkpoint.renameParameter(withOldNames: ["a", "b"], values: values, path: nil, ratio: 0.5)
  let last: String = result.out
  return result.renamed + UInt(last.count)
}
"""


def test_a_swift_program_calls_it(rendered: pathlib.Path) -> None:
    try:
        compiler = tool("swiftc", "swiftlang")
    except Missing as why:
        skip_or_fail("swift", why)
    binding = rendered / "bindings/swift/Sources"
    (rendered / "caller.swift").write_text(SWIFT_CALLER)
    sources = sorted((binding / "onnxruntime_training_objc").rglob("*.swift"))
    options = ["-swift-version", "6", "-warnings-as-errors", "-I", binding / "COrtrain"]
    options += ["-Xcc", f"-I{rendered / 'core/include'}"]
    compiled(compiler, "-typecheck", *options, *sources, rendered / "caller.swift")


@pytest.mark.parametrize("page", ["api/c", "api/cpp", "api/csharp", "api/objc", "api/swift", "languages"])
def test_the_reference_pages_have_it(rendered: pathlib.Path, page: str) -> None:
    text = (rendered / f"docs/reference/{page}.md").read_text()
    assert "RenameParameter" in text or "renameParameter" in text
    if page == "api/c":
        assert "#### CheckpointRenameParameter" in text
        assert "Since version 2." in text


def test_generated_python_parses(rendered: pathlib.Path) -> None:
    for path in (rendered / "bindings/python").rglob("*.py*"):
        if path.suffix in (".py", ".pyi"):
            compile(path.read_text(), str(path), "exec", dont_inherit=True)
    assert sys.version_info >= (3, 10)
