"""ELF files, as Linux and Android have them."""

from __future__ import annotations

import pathlib
import struct

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
