"""What `cmake --install` and the archive of the C library contain, and how programs find it there."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys

import ortrain
import pytest
from configured import ROOT, configure, link_command

LIBRARY = pathlib.Path(ortrain.__file__).parent / "lib" / "libortrain.so"
VERSION = importlib.metadata.version("ortrain")
PROGRAM = """
#include <stdio.h>
#include <ortrain_c_api.h>
int main(void) { printf("%s", OrtGetApiBase()->GetVersionString()); }
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has these names of libraries")


def put_library(folder: pathlib.Path) -> None:
    """Put the library of the installed package into a configured build, instead of one that was compiled again."""
    shutil.copy(LIBRARY, folder / f"libortrain.so.{VERSION}")
    (folder / "libortrain.so.0").symlink_to(f"libortrain.so.{VERSION}")
    (folder / "libortrain.so").symlink_to("libortrain.so.0")


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return a configured build with a library."""
    folder = tmp_path_factory.mktemp("native")
    configure(folder, "-DORTRAIN_OPERATORS=Relu").check_returncode()
    put_library(folder)
    return folder


@pytest.fixture(scope="module")
def installed(build: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return an installation that was moved after it was made."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        ["cmake", "--install", build, "--prefix", folder / "made"], check=True, stdout=subprocess.DEVNULL
    )
    (folder / "made").rename(folder / "moved")
    return folder / "moved"


def test_programs_record_the_major_version(build: pathlib.Path) -> None:
    options = link_command(build).split()
    assert "-Wl,-soname,libortrain.so.0" in options
    assert options[options.index("-o") + 1] == f"libortrain.so.{VERSION}"


def test_the_cpp_library_can_be_a_part_of_the_library(tmp_path: pathlib.Path) -> None:
    """The linker then keeps its functions out of the exports."""
    configure(tmp_path, "-DORTRAIN_OPERATORS=Relu", "-DORTRAIN_STATIC_CXX=ON").check_returncode()
    needed = {"-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"}
    assert needed <= set(link_command(tmp_path).split())


def test_the_static_library_exports_what_the_headers_declare(build: pathlib.Path) -> None:
    declared = {
        name
        for header in (ROOT / "core/include").glob("*.h")
        for name in re.findall(r"^ORT_EXPORT\b.*ORT_API_CALL (\w+)\(", header.read_text(), re.MULTILINE)
    }
    assert {"OrtGetApiBase", "OrtrainGetApi"} <= declared
    assert set((build / "exported_functions.txt").read_text().split()) == declared


def test_every_licence_is_installed(installed: pathlib.Path) -> None:
    files = {path.name for path in (installed / "share/licenses/ortrain").iterdir()}
    assert files == {"LICENSE", *(path.name for path in (ROOT / "licenses").iterdir())}
    assert {"Apache-2.0.txt", "third-party.txt"} <= files


def test_an_archive_has_the_name_of_the_system(build: pathlib.Path) -> None:
    settings = (build / "CPackConfig.cmake").read_text()
    assert 'set(CPACK_GENERATOR "TGZ")' in settings
    assert f'set(CPACK_PACKAGE_FILE_NAME "ortrain-{VERSION}-linux-{os.uname().machine}")' in settings


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="there is no pkg-config")
def test_pkg_config_finds_a_moved_installation(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "PKG_CONFIG_PATH": str(installed / "lib/pkgconfig")}
    query = ["pkg-config", "--cflags", "--libs", "ortrain"]
    options = subprocess.check_output(query, env=environment, text=True).split()
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run(
        ["gcc", "program.c", *options, f"-Wl,-rpath,{installed}/lib", "-o", "program"],
        cwd=tmp_path,
        check=True,
    )
    assert subprocess.check_output([tmp_path / "program"], text=True) == ortrain.get_version_string()


def test_cmake_finds_a_moved_installation(installed: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(program LANGUAGES C)\n"
        "find_package(ortrain 0.1 CONFIG REQUIRED)\nadd_executable(program program.c)\n"
        "target_link_libraries(program PRIVATE ortrain::ortrain)\n"
    )
    build = ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={installed}"]
    subprocess.run(build, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build"], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    printed = subprocess.check_output([tmp_path / "build/program"], text=True)
    assert printed == ortrain.get_version_string()
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(program LANGUAGES C)\nfind_package(ortrain 1.0 CONFIG REQUIRED)\n"
    )
    assert subprocess.run(build, cwd=tmp_path, capture_output=True).returncode != 0


def test_the_library_with_the_name_of_onnxruntime_is_installed_by_option(
    build: pathlib.Path, installed: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert not list(installed.glob("lib/libonnxruntime*"))
    folder, prefix = tmp_path / "build", tmp_path / "installed"
    configure(folder, "-DORTRAIN_OPERATORS=Relu", "-DORTRAIN_ALIAS=ON").check_returncode()
    put_library(folder)
    commands = subprocess.check_output(["ninja", "-C", folder, "-t", "commands", "alias"], text=True)
    for command in (line for line in commands.splitlines() if "/alias.dir/" in line):
        subprocess.run(command, shell=True, cwd=folder, check=True)
    subprocess.run(["cmake", "--install", folder, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "program.c").write_text(PROGRAM)
    link = [f"-I{prefix}/include/ortrain", f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lonnxruntime"]
    subprocess.run(["gcc", "program.c", *link, "-o", "program"], cwd=tmp_path, check=True)
    assert subprocess.check_output([tmp_path / "program"], text=True) == ortrain.get_version_string()
    opened = f"import ctypes; ctypes.CDLL('{prefix}/lib/libonnxruntime.so.1').OrtGetApiBase"
    subprocess.run([sys.executable, "-c", opened], check=True)
