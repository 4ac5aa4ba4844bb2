"""What differs between operating systems is behind runtime/system.h: no other source of the core asks for a system."""

from __future__ import annotations

import pathlib
import re

import pytest

SOURCES = pathlib.Path(__file__).parents[2] / "core" / "src"
ONLY = re.compile(r"runtime/system_(posix|windows|wasi|descriptors)\.cpp$")

# Macros by which compilers name systems and the C libraries of systems.
SYSTEMS = re.compile(
    r"^\s*#\s*(?:if|ifdef|ifndef|elif|elifdef)\b.*\b("
    r"_WIN32|_WIN64|__linux__|__gnu_linux__|__APPLE__|__ANDROID__|__wasi__|__wasm__|__EMSCRIPTEN__|__unix__|"
    r"__MINGW32__|__MINGW64__|__CYGWIN__|__FreeBSD__|__GLIBC__|_MSC_VER|HWY_OS_\w+)\b",
    re.MULTILINE,
)
# Headers that are neither part of C++ nor of C.
STANDARD_C = {"float.h", "limits.h", "math.h", "stddef.h", "stdint.h", "string.h"}
PROCESSOR = {"immintrin.h", "xmmintrin.h", "cpuid.h"}
HEADERS = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.MULTILINE)
LIBRARIES = ("flatbuffers/", "hwy/", "sanitizer/")


def sources() -> list[pathlib.Path]:
    found = [path for path in SOURCES.rglob("*") if path.suffix in {".cpp", ".h"}]
    assert len(found) > 400
    return [path for path in found if not ONLY.search(path.as_posix())]


def findings(text: str) -> list[str]:
    """Return the headers of systems that a source includes, and the macros of systems that it tests for."""
    headers = [
        name
        for name in HEADERS.findall(text)
        if "." in name and name not in STANDARD_C | PROCESSOR and not name.startswith(LIBRARIES)
    ]
    return headers + SYSTEMS.findall(text)


def test_no_source_asks_for_a_system() -> None:
    found = {
        str(path.relative_to(SOURCES)): what for path in sources() if (what := findings(path.read_text()))
    }
    assert not found, "move these behind runtime/system.h"


def test_paths_become_text_in_utf8() -> None:
    """path::string() is in the code page of the user on Windows; texts of the core are UTF-8 (runtime/path.h)."""
    found = [str(path.relative_to(SOURCES)) for path in sources() if ".string()" in path.read_text()]
    assert not found, "use to_utf8(path)"


def test_numbers_become_text_on_older_systems_of_apple() -> None:
    """std::to_chars of floating-point numbers is in Apple's C++ library since macOS 13.3, and std::from_chars since macOS 26."""
    found = [
        str(path.relative_to(SOURCES))
        for path in sources()
        if re.search(r"\bchars_format\b", path.read_text())
    ]
    assert not found, "use snprintf, as runtime/error.cpp does, or strtod"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("#include <unistd.h>", ["unistd.h"]),
        ("  #include <sys/mman.h>", ["sys/mman.h"]),
        ("#include <dlfcn.h>", ["dlfcn.h"]),
        ("#if defined(__linux__) && !defined(X)", ["__linux__"]),
        ("#ifdef _WIN32", ["_WIN32"]),
        ("#include <vector>", []),
        ("#if defined(__SSE2__)", []),
    ],
)
def test_what_counts_as_a_system(line: str, what: list[str]) -> None:
    assert findings(line) == what


def test_each_system_implements_every_function() -> None:
    """A function that a system lacks would be found only when that system is built."""
    declared = set(
        re.findall(
            r"^(?!using|enum|struct|class|namespace|//|#)[\w:<>*& ]+?[ *&](\w+)\([^)]*\);$",
            (SOURCES / "runtime" / "system.h").read_text(),
            re.MULTILINE,
        )
    )
    assert {"reason", "info", "unmap", "processors", "local_time", "allocate_aligned"} <= declared
    shared = (SOURCES / "runtime" / "system_descriptors.cpp").read_text()
    for system, others in (("posix", shared), ("wasi", shared), ("windows", "")):
        text = (SOURCES / "runtime" / f"system_{system}.cpp").read_text() + others
        missing = {name for name in declared if not re.search(rf"\b{name}\(", text)}
        assert not missing, system
