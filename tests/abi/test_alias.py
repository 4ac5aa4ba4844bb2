"""Programs linked with libonnxruntime run with a library of its name and symbol versions, which calls libortrain."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clients import check_client, compile_client
from languages import Program, call_compiler, tool

alias = pytest.importorskip("ortrain.alias", reason="the package is not installed; make install")


@pytest.fixture(scope="module")
def aliases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the command has filled, outside the package."""
    from ortrain.__main__ import main

    folder = tmp_path_factory.mktemp("alias") / "new" / "folder"
    assert main(["alias", str(folder)]) == 0
    return folder


def fake_release(folder: Path, version: str) -> Path:
    """A library with the name, symbol and symbol version of a released libonnxruntime, but no implementation."""
    (folder / "fake.map").write_text(f"VERS_{version} {{ global: OrtGetApiBase; local: *; }};\n")
    (folder / "fake.c").write_text("const void* OrtGetApiBase(void) { return 0; }\n")
    library = folder / "libonnxruntime.so.1"
    options = ["-shared", "-fPIC", "-Wl,-soname,libonnxruntime.so.1"]
    script = f"-Wl,--version-script={folder / 'fake.map'}"
    compiler = tool(os.environ.get("CC", "cc"), "gcc")
    call_compiler([compiler, *options, script, folder / "fake.c", "-o", library])
    return library


@pytest.mark.parametrize(
    "version", ["1.19.0", "1.19.2", "1.20.1", "1.23.2", "1.27.0", "1.30.1", "1.32.0", "1.32.1"]
)
def test_a_program_linked_with_a_release_trains(version: str, aliases: Path, tmp_path: Path) -> None:
    release = 19 if version < "1.23" else 23 if version < "1.30" else 30 if version < "1.32" else 32
    program = compile_client(tmp_path, release, [str(fake_release(tmp_path, version))])
    symbols = subprocess.run(
        [tool("objdump", "binutils"), "-T", program.command[0]], capture_output=True, text=True
    )
    assert f"VERS_{version}" in symbols.stdout
    check_client(Program(program.command, {"LD_LIBRARY_PATH": str(aliases)}), tmp_path)


@pytest.mark.parametrize("folder", ["of the command", "of the package"])
def test_the_alias_finds_the_library_itself(folder: str, aliases: Path, tmp_path: Path) -> None:
    """The path in a program is not searched for the libraries that another library needs."""
    path = aliases if folder == "of the command" else alias.library_folder() / "alias"
    link = [str(fake_release(tmp_path, "1.32.0")), f"-Wl,-rpath,{path}"]
    check_client(compile_client(tmp_path, 32, link), tmp_path)


def test_programs_can_be_linked_with_a_library_that_needs_a_release(aliases: Path, tmp_path: Path) -> None:
    (tmp_path / "other.c").write_text(
        "const void* OrtGetApiBase(void);\nint has_onnxruntime(void) { return OrtGetApiBase() != 0; }\n"
    )
    (tmp_path / "program.c").write_text(
        "int has_onnxruntime(void);\nint main(void) { return has_onnxruntime() ? 0 : 1; }\n"
    )
    compiler = tool(os.environ.get("CC", "cc"), "gcc")
    other, program = tmp_path / "libother.so", tmp_path / "program"
    release = fake_release(tmp_path, "1.19.2")
    call_compiler([compiler, "-shared", "-fPIC", tmp_path / "other.c", release, "-o", other])
    release.unlink()
    paths = [f"-Wl,-rpath-link,{aliases}", f"-Wl,-rpath,{tmp_path}"]
    call_compiler([compiler, tmp_path / "program.c", other, *paths, "-o", program])
    subprocess.run([program], env={"LD_LIBRARY_PATH": str(aliases)}, check=True)


@pytest.mark.parametrize("name", alias.LIBRARIES)
def test_programs_that_open_the_alias_find_the_function_by_its_name(name: str, aliases: Path) -> None:
    program = (
        f"import ctypes; function = ctypes.CDLL({str(aliases / name)!r}).OrtGetApiBase; "
        "function.restype = ctypes.c_void_p; assert function()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("found_by", ["the program's own path", "the environment"])
def test_a_program_linked_with_the_alias_trains(found_by: str, aliases: Path, tmp_path: Path) -> None:
    link = [f"-L{aliases}", "-lonnxruntime", f"-Wl,-rpath-link,{aliases}"]
    if found_by == "the program's own path":
        program = compile_client(tmp_path, 32, [*link, f"-Wl,-rpath,{aliases}"])
    else:
        program = Program(compile_client(tmp_path, 32, link).command, {"LD_LIBRARY_PATH": str(aliases)})
    check_client(program, tmp_path)


def test_the_command_says_what_it_links_and_replaces_its_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortrain.__main__ import main

    for _ in range(2):
        assert main(["alias", str(tmp_path)]) == 0
        said = capsys.readouterr().out.splitlines()
        assert {str(tmp_path / name) for name in alias.LIBRARIES} <= set(said)
        assert sorted(said) == sorted(str(path) for path in tmp_path.iterdir())
        assert all(Path(path).resolve().is_file() for path in said)


def test_a_file_that_is_no_link_stays_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortrain.__main__ import main

    (tmp_path / "libonnxruntime.so.1").write_text("something else")
    assert main(["alias", str(tmp_path)]) == 1
    assert "libonnxruntime.so.1" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["libonnxruntime.so.1"]
    assert (tmp_path / "libonnxruntime.so.1").read_text() == "something else"


def exported(library: Path) -> dict[str, set[str]]:
    """Return the versions of each function that a library exports; a function without a version has that of the library."""
    command = [tool("readelf", "binutils"), "--dyn-syms", "-W", library]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines() if " FUNC " in line and " UND " not in line]
    found: dict[str, set[str]] = {}
    for name, _, version in (row[7].partition("@") for row in rows):
        found.setdefault(name, set()).add(version)
    return found


def test_the_library_exports_the_functions_of_c_alone_and_without_versions(aliases: Path) -> None:
    functions = ("OrtGetApiBase", "OrtSessionOptionsAppendExecutionProvider_CPU", "OrtrainGetApi")
    assert exported(aliases / "libortrain.so") == {name: {""} for name in functions}
    assert b"VERS_1" not in (aliases / "libortrain.so").read_bytes()


def test_the_alias_exports_the_functions_of_onnxruntime_with_the_versions_of_its_releases(
    aliases: Path,
) -> None:
    versions = {f"VERS_1.{minor}.{patch}" for minor in range(1, 33) for patch in range(6)}
    functions = ("OrtGetApiBase", "OrtSessionOptionsAppendExecutionProvider_CPU")
    assert exported(aliases / "libonnxruntime.so.1") == {name: versions for name in functions}
