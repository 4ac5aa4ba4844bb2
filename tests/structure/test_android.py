"""The core asks for nothing that Android's C library lacks, and is built for Android as its apps need it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import ortrain
import pytest
from configured import configure, link_command

ROOT = pathlib.Path(__file__).parents[2]
LIBRARY = pathlib.Path(ortrain.__file__).parent / "lib" / "libortrain.so"
OLDEST = 24  # ANDROID_PLATFORM of `make android`

# What only code of gcc or for glibc has: bionic's headers and the NDK's compiler put other names in their place.
HERE_ALONE = {
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "__errno_location",  # __errno
    "__gmon_start__",
    "__libc_single_threaded",  # of libstdc++
    "malloc_trim",  # where __GLIBC__ is defined
    "__tls_get_addr",  # the NDK emulates thread-local variables below API level 29
}


def bionic() -> dict[str, int]:
    """Return the API level in which bionic got each function."""
    lines = (ROOT / "tests/data/bionic.txt").read_text().splitlines()
    return {name: int(level) for name, level in (line.split() for line in lines if not line.startswith("#"))}


def needed_of_the_c_library(symbols: str) -> set[str]:
    """Return the undefined symbols that nm lists, without those of the C++ runtime and the compiler."""
    names = [line.split()[-1] for line in symbols.splitlines()]
    return {
        name.partition("@")[0]
        for name in names
        if not any(version in name for version in ("@GLIBCXX", "@CXXABI", "@GCC"))
    } - HERE_ALONE


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("nm"), reason="reads an ELF file with nm")
def test_bionic_has_every_function_that_the_library_needs() -> None:
    listed = subprocess.check_output(["nm", "-D", "--undefined-only", LIBRARY], text=True)
    needed = needed_of_the_c_library(listed)
    assert {"pread", "mmap", "towlower_l"} <= needed
    levels = bionic()
    unknown = sorted(needed - levels.keys())
    assert not unknown, "look these up in bionic's libc.map.txt, and record them in tests/data/bionic.txt"
    assert not {name: levels[name] for name in needed if levels[name] > OLDEST}


def test_a_function_that_bionic_lacks_is_noticed() -> None:
    listed = "  U aligned_alloc@GLIBC_2.16\n  U _Znwm@GLIBCXX_3.4\n  U __gmon_start__\n"
    (name,) = needed_of_the_c_library(listed)
    assert bionic()[name] > OLDEST


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "is not a folder"),
        ({}, "with build/cmake/android.toolchain.cmake"),
        ({"build/cmake/android.toolchain.cmake": ""}, "expected the version of the NDK"),
        (
            {"build/cmake/android.toolchain.cmake": "", "source.properties": "Pkg.Revision = 25.2.9519653\n"},
            "needs an NDK of version 26 or newer",
        ),
    ],
)
def test_a_folder_that_is_no_ndk_is_rejected(
    files: dict[str, str] | None, message: str, tmp_path: pathlib.Path
) -> None:
    ndk = tmp_path / "ndk"
    for name, text in (files or {}).items():
        (ndk / name).parent.mkdir(parents=True, exist_ok=True)
        (ndk / name).write_text(text)
    if files is not None:
        ndk.mkdir(exist_ok=True)
    result = subprocess.run(
        ["make", "android", f"ANDROID_NDK={ndk}"], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode != 0
    assert message in result.stderr
    assert str(ndk) in result.stderr


def test_an_ndk_is_found(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "build/cmake/android.toolchain.cmake"
    file.parent.mkdir(parents=True)
    file.write_text("")
    (tmp_path / "source.properties").write_text("Pkg.Desc = Android NDK\nPkg.Revision = 28.2.13676358\n")
    found = subprocess.check_output([ROOT / "scripts/android_ndk.sh", tmp_path], text=True)
    assert found.strip() == str(file.resolve())


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("g++"), reason="g++ takes the place of the NDK's compiler")
def test_the_library_for_android_has_pages_of_16_kilobytes_and_a_name_without_version(
    tmp_path: pathlib.Path,
) -> None:
    toolchain = tmp_path / "android.toolchain.cmake"
    toolchain.write_text(
        "set(CMAKE_SYSTEM_NAME Android)\nset(CMAKE_SYSTEM_VERSION 1)\n"  # 1: CMake does not look for an NDK
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)\nset(CMAKE_CXX_COMPILER g++)\n"
    )
    build = tmp_path / "build"
    configure(build, f"-DCMAKE_TOOLCHAIN_FILE={toolchain}", "-DORTRAIN_OPERATORS=Relu").check_returncode()
    options = link_command(build).split()
    assert "-Wl,-z,max-page-size=16384" in options
    assert "-Wl,--no-undefined" in options
    assert "-Wl,-soname,libortrain.so" in options
