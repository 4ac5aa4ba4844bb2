"""Programs linked with libonnxruntime find libortrain under its name, symbol versions included."""

from __future__ import annotations

import os
import subprocess
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
        assert {str(tmp_path / name) for name in alias.NAMES} <= set(said)
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


def test_the_library_exports_the_functions_of_c_alone(aliases: Path) -> None:
    found = subprocess.run(
        [tool("objdump", "binutils"), "-T", aliases / "libonnxruntime.so.1"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [
        line.split() for line in found.stdout.splitlines() if "*UND*" not in line and len(line.split()) > 5
    ]
    names = {row[-1] for row in rows if "*ABS*" not in row}
    assert names == {"OrtGetApiBase", "OrtSessionOptionsAppendExecutionProvider_CPU", "OrtrainGetApi"}
