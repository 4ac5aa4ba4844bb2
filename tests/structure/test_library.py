"""What the library that users link needs from the system, and how it is laid out."""

from __future__ import annotations

import pathlib
import platform
import struct
import sys

import ortrain
import pytest

LIBRARY = pathlib.Path(ortrain.__file__).parent / "lib" / "libortrain.so"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library is an ELF file on Linux alone")

# Of the C and the C++ runtime.
SYSTEM = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"}
LOAD, DYNAMIC, PROPERTIES = 1, 2, 0x6474E553
NEEDED, STRING_TABLE = 1, 5


class Elf:
    """The program headers and needed libraries of a 64-bit, little-endian ELF file."""

    def __init__(self, path: pathlib.Path) -> None:
        self.data = path.read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01"
        start = struct.unpack_from("<Q", self.data, 32)[0]
        size, count = struct.unpack_from("<HH", self.data, 54)
        # type, flags, offset, address, physical address, size in the file, size in memory, alignment
        self.segments = [struct.unpack_from("<IIQQQQQQ", self.data, start + i * size) for i in range(count)]

    def properties(self) -> dict[int, bytes]:
        """Return the GNU properties of the file by their types."""
        (note,) = [segment for segment in self.segments if segment[0] == PROPERTIES]
        at, end = note[2] + 16, note[2] + note[5]  # behind the note's header and its name, GNU
        found = {}
        while at < end:
            kind, size = struct.unpack_from("<II", self.data, at)
            found[kind] = self.data[at + 8 : at + 8 + size]
            at += 8 + -(-size // 8) * 8
        return found

    def needed(self) -> set[str]:
        """Return the names of the libraries that the loader has to find."""
        dynamic = next(segment for segment in self.segments if segment[0] == DYNAMIC)
        entries = list(struct.iter_unpack("<QQ", self.data[dynamic[2] : dynamic[2] + dynamic[5]]))
        address = next(value for tag, value in entries if tag == STRING_TABLE)
        texts = next(
            address - s[3] + s[2] for s in self.segments if s[0] == LOAD and s[3] <= address < s[3] + s[5]
        )
        names = [texts + value for tag, value in entries if tag == NEEDED]
        return {self.data[at : self.data.index(b"\0", at)].decode() for at in names}


def test_the_library_needs_the_c_and_cpp_runtime_alone() -> None:
    needed = {name for name in Elf(LIBRARY).needed() if not name.startswith("ld-linux")}
    assert {"libc.so.6", "libstdc++.so.6"} <= needed
    assert needed <= SYSTEM


def test_the_package_carries_no_other_library() -> None:
    assert [path.name for path in LIBRARY.parent.iterdir()] == [LIBRARY.name]


def test_segments_suit_pages_of_16_kilobytes() -> None:
    alignments = {segment[7] for segment in Elf(LIBRARY).segments if segment[0] == LOAD}
    assert alignments
    assert all(alignment % 16384 == 0 for alignment in alignments)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only files for x86-64 name levels of processors")
def test_the_loader_refuses_processors_without_sse_4_2() -> None:
    needed_processor, level_2 = 0xC0008002, 1 << 1  # GNU_PROPERTY_X86_ISA_1_NEEDED, GNU_PROPERTY_X86_ISA_1_V2
    (levels,) = struct.unpack("<I", Elf(LIBRARY).properties()[needed_processor])
    assert levels == level_2
