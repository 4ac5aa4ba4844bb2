"""Systems for which no program can be built are refused when the build is configured, with the reason."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from configured import configure

# Compiling one file without headers and linking nothing is what CMake needs to know the size of a pointer and the order of bytes.
UNTESTED = ("-DCMAKE_TRY_COMPILE_TARGET_TYPE=STATIC_LIBRARY", "-DCMAKE_CXX_COMPILER=clang++")


@pytest.mark.skipif(not shutil.which("clang++"), reason="gcc compiles for one processor alone")
@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("armv7a-linux-gnueabihf", "needs a 64-bit system: models and training state do not fit"),
        ("i686-linux-gnu", "needs a 64-bit system: models and training state do not fit"),
        (
            "s390x-linux-gnu",
            "needs a little-endian system: models and checkpoints are used as they are stored",
        ),
        ("powerpc64-linux-gnu", "needs a little-endian system: models and checkpoints are used as they"),
    ],
)
def test_other_systems_are_refused_with_the_reason(target: str, reason: str, tmp_path: pathlib.Path) -> None:
    result = configure(tmp_path, *UNTESTED, f"-DCMAKE_CXX_COMPILER_TARGET={target}")
    assert result.returncode != 0
    assert reason in " ".join(result.stderr.split())
