"""What the library that users link needs from the system, and how it is laid out."""

from __future__ import annotations

import os
import pathlib
import platform
import struct
import sys

import ortrain
import pytest
from elf import LOAD, Elf
from ortrain import _ortrain

LIBRARY = pathlib.Path(ortrain.__file__).parent / "lib" / "libortrain.so"
ALIAS = LIBRARY.parent / "alias" / "libonnxruntime.so.1"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library is an ELF file on Linux alone")

# Of the C and the C++ runtime.
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"}


def test_the_library_needs_the_c_and_cpp_runtime_alone() -> None:
    needed = {name for name in Elf(LIBRARY).needed() if not name.startswith("ld-linux")}
    assert {"libc.so.6", "libstdc++.so.6"} <= needed
    assert needed <= SYSTEM


def test_the_package_carries_no_other_library_than_the_alias() -> None:
    """Programs with the folder of the library in their path must not find the alias there."""
    assert {path.name for path in LIBRARY.parent.iterdir()} == {LIBRARY.name, ALIAS.parent.name}
    assert [path.name for path in ALIAS.parent.iterdir()] == [ALIAS.name]


def test_the_alias_needs_the_library_alone() -> None:
    assert Elf(ALIAS).needed() == {LIBRARY.name}
    assert ALIAS.stat().st_size <= 40_000


@pytest.mark.parametrize(
    "file", [LIBRARY, ALIAS, pathlib.Path(_ortrain.__file__)], ids=["library", "alias", "extension"]
)
def test_segments_suit_pages_of_16_kilobytes(file: pathlib.Path) -> None:
    alignments = {segment[7] for segment in Elf(file).segments if segment[0] == LOAD}
    assert alignments
    assert all(alignment % 16384 == 0 for alignment in alignments)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only files for x86-64 name levels of processors")
def test_the_loader_refuses_processors_without_sse_4_2() -> None:
    needed_processor, level_2 = 0xC0008002, 1 << 1  # GNU_PROPERTY_X86_ISA_1_NEEDED, GNU_PROPERTY_X86_ISA_1_V2
    (levels,) = struct.unpack("<I", Elf(LIBRARY).properties()[needed_processor])
    assert levels == level_2


@pytest.mark.skipif(
    os.environ.get("BUILD_TYPE") != "Release", reason="make test-all checks the size, of a release build"
)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the limit is for x86-64")
def test_a_release_keeps_its_limit_of_size() -> None:
    # `make size` checks the limit of wheels, whose library is smaller: it is optimized when it is linked, which takes minutes.
    size, limit = LIBRARY.stat().st_size, 7_000_000
    assert size <= limit, f"{LIBRARY} has {size:,} bytes; see where they come from with `make size`"
