"""Write a page of the documentation that shows the size of builds of the library, by kind, folder and source.

python scripts/library_size.py PAGE ARM64=FILE=LIMIT NAME=FOLDER[=LIMIT] ...
python scripts/library_size.py --check NAME=FILE=LIMIT

FILE is a stripped library for another processor, of which only the size is read. In each FOLDER, CMake has built a release of
the library with the linker option -Wl,-Map=libortrain.map (`make size`). The size of a library is the size of its stripped
file. The script fails if a library has more than LIMIT kilobytes. The sizes of kinds come from the sections of that file, the
sizes of folders and sources from the map of the linker. If sources are compiled together (cmake/compile_together.py), their
namespaces distinguish them. The map of a library with link-time optimization does not name the sources of functions; the
script finds them in the objects of the first library.
"""

from __future__ import annotations

import bisect
import collections
import pathlib
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass

KINDS = {
    "code": r"\.(text|init|fini|plt.*)$",
    "constants": r"\.(rodata|note).*",
    "unwind tables": r"\.(eh_frame.*|gcc_except_table|ARM\..*)",
    "relocations": r"\.rela?\..*|\.relr\..*",
    "names of symbols": r"\.(dynsym|dynstr|hash|gnu\.hash|gnu\.version.*)$",
    "data": r"\.(t?data.*|got.*|dynamic|init_array|fini_array|ctors|dtors)$",
}
"""Names of the kinds of sections in a stripped library, with patterns of the names of these sections."""

MEMORY_MAP = "Linker script and memory map"
INPUT = re.compile(
    r"^ (?P<section>\.\S+|COMMON)?\s+0x(?P<address>[0-9a-f]+)\s+0x(?P<size>[0-9a-f]+) (?P<object>\S.*)$"
)
OUTPUT = re.compile(r"^(?P<section>\.\S+|/DISCARD/)")
NAMED = re.compile(
    r"^(?P<address>[0-9a-f]+) (?P<size>[0-9a-f]+) [tTwWrRdDvV] .*?\bsource_(?P<stem>\w+)::", re.MULTILINE
)
SYMBOL = re.compile(r"^\.(?:text|rodata|data|tdata)[\w.]*?\.(_Z\w+)")
"""The name of a section that contains a single function or object."""
FOR_LOADER = re.compile(r"\.(eh_frame_hdr|rela?\..*|relr\..*|dynsym|dynstr|dynamic|hash|gnu\..*|got.*|plt.*)")
"""Sections that the linker writes; the map assigns them to arbitrary objects."""
ENCLOSED = re.compile(r"enclosed_\d+\.cpp$")
LINKER = "the linker"
OTHERS = "the C++ runtime"
SHARED = "templates shared by several sources"
UNNAMED = "unwind tables and constants of all sources"
"""The row for these sections of a library with link-time optimization, whose map does not name their sources."""
MOST_SOURCES = 40


@dataclass
class Stripped:
    """A stripped file."""

    name: str
    size: int
    """Bytes of the file."""
    limit: int | None
    """The most kilobytes that the file may have."""


@dataclass
class Library(Stripped):
    """One build."""

    kinds: dict[str, int]
    folders: dict[str, int]
    sources: dict[str, int]


def run(*command: str) -> str:
    """Run a program and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kinds_of(stripped: pathlib.Path) -> dict[str, int]:
    """Return the bytes of each kind of section in a file; `rest` is all bytes outside these sections."""
    found = dict.fromkeys(KINDS, 0)
    for line in run("readelf", "--section-headers", "--wide", str(stripped)).splitlines():
        cells = re.sub(r"^\s*\[\s*\d+\]\s*", "", line).split()
        if len(cells) < 5 or cells[1] == "NOBITS" or not cells[0].startswith("."):
            continue
        for kind, pattern in KINDS.items():
            if re.fullmatch(pattern, cells[0]):
                found[kind] += int(cells[4], 16)
                break
    return {**found, "rest": stripped.stat().st_size - sum(found.values())}


@dataclass(frozen=True)
class Part:
    """A section of an object, at the address that the linker chose."""

    address: int
    size: int
    object: str
    symbol: str = ""
    """The mangled name of the function or object, if the section contains nothing else."""


def parts_of(text: str) -> list[Part]:
    """Return the parts of the file that a linker's map lists, by address."""
    parts = []
    in_file, section = False, ""
    # After a long section name, the linker starts a new line.
    listed = re.sub(r"^ (\.\S+)\n\s+(?=0x)", r" \1 ", text.partition(MEMORY_MAP)[2], flags=re.MULTILINE)
    for line in listed.splitlines():
        if head := OUTPUT.match(line):
            section = head["section"]
            in_file = section not in (".bss", ".tbss", ".comment", "/DISCARD/") and not section.startswith(
                ".debug"
            )
        elif in_file and (part := INPUT.match(line)) and int(part["size"], 16):
            symbol = SYMBOL.match(part["section"] or "")
            owner = LINKER if FOR_LOADER.fullmatch(section) else part["object"]
            name = symbol[1] if symbol else ""
            parts.append(Part(int(part["address"], 16), int(part["size"], 16), owner, name))
    return sorted(parts, key=lambda part: part.address)


def path_of(object_: str) -> str | None:
    """Return the source of an object, below core/src; None if the object is not part of the core."""
    found = re.search(
        r"(?:together/(?P<kind>\w+)/)?core/src/(?P<folder>[^/]+)/(?P<rest>.*)\.(?:o|obj)$", object_
    )
    if not found:
        return None
    group = f"{found['kind']}/" if found["kind"] else ""
    return f"{found['folder']}/{group}{found['rest'].removesuffix('.cpp')}.cpp"


def sources_by_symbol(parts: list[Part], folder: pathlib.Path) -> dict[str, str]:
    """Return the source of each symbol that the objects of a library define.

    The source of a template that several sources contain is SHARED. Local functions with equal names in several sources are
    left out.
    """
    found: dict[str, str] = {}
    ambiguous = set()
    for object_ in sorted({part.object for part in parts}):
        source = path_of(object_)
        if source is None or not (folder / object_).is_file():
            continue
        for line in run("nm", "--defined-only", str(folder / object_)).splitlines():
            _, kind, name = line.split(maxsplit=2)
            symbol = name.partition(".")[0]
            if found.setdefault(symbol, source) == source:
                continue
            if kind in "WVu":
                found[symbol] = SHARED
            else:
                ambiguous.add(symbol)
    return {symbol: source for symbol, source in found.items() if symbol and symbol not in ambiguous}


def source_of(part: Part, known: dict[str, str]) -> str:
    """Return the source of a part, below core/src, or the name of another row. `known`: sources by symbol."""
    if part.object == LINKER:
        return LINKER
    if ".ltrans" in part.object:
        return known.get(part.symbol, UNNAMED)
    if known.get(part.symbol) == SHARED:
        return SHARED
    return path_of(part.object) or OTHERS


def sources_of(
    parts: list[Part], known: dict[str, str], library: pathlib.Path, root: pathlib.Path
) -> dict[str, int]:
    """Return the bytes of each source. The namespaces of symbols separate sources that are compiled together."""
    paths = {}
    for path in root.rglob("*.cpp"):
        paths[path.relative_to(root).parts[0], path.stem] = str(path.relative_to(root))
    sizes: collections.Counter[str] = collections.Counter()
    for part in parts:
        if not ENCLOSED.search(source := source_of(part, known)):
            sizes[source] += part.size
    addresses = [part.address for part in parts]
    symbols = run("nm", "--print-size", "--demangle", "--defined-only", str(library))
    for address, symbol in {symbol["address"]: symbol for symbol in NAMED.finditer(symbols)}.items():
        source = source_of(parts[bisect.bisect_right(addresses, int(address, 16)) - 1], known)
        if ENCLOSED.search(source):
            sizes[paths[source.split("/")[0], symbol["stem"]]] += int(symbol["size"], 16)
    return dict(sizes)


def read(
    name: str,
    folder: pathlib.Path,
    root: pathlib.Path,
    known: dict[str, str] | None = None,
    limit: int | None = None,
) -> Library:
    """Read one build. `known`: sources by symbol of another build; by default, those of this build."""
    library, link_map = folder / "libortrain.so", folder / "libortrain.map"
    for needed in (library, link_map):
        if not needed.is_file():
            sys.exit(
                f"library_size.py: {needed} is missing; `make size` builds the library and writes its map"
            )
    with tempfile.TemporaryDirectory() as scratch:
        stripped = pathlib.Path(scratch) / "libortrain.so"
        run("strip", "--strip-unneeded", "-o", str(stripped), str(library))
        kinds, size = kinds_of(stripped), stripped.stat().st_size
    parts = parts_of(link_map.read_text())
    if not parts:
        sys.exit(f"library_size.py: {link_map} lists no object; expected a map of GNU ld")
    if known is None:
        known = sources_by_symbol(parts, folder)
    folders: collections.Counter[str] = collections.Counter()
    for part in parts:
        source = source_of(part, known)
        folders[source.split("/")[0] if "/" in source else source] += part.size
    sources = sources_of(parts, known, library, root / "core" / "src")
    return Library(name, size, limit, kinds, dict(folders), sources)


def table(
    head: str, libraries: list[Library], rows: list[dict[str, int]], most: int | None = None
) -> list[str]:
    """Return a table of kilobytes with a line for each key, sorted by the size in the first library."""
    totals = {key: [row.get(key, 0) for row in rows] for row in rows for key in row}
    order = sorted(totals, key=lambda key: totals[key], reverse=True)[:most]
    lines = [
        f"| {head} | {' | '.join(each.name for each in libraries)} |",
        "| --- |" + " ---: |" * len(libraries),
    ]
    return lines + [
        f"| {key} | {' | '.join(f'{size / 1000:,.0f}' for size in totals[key])} |" for key in order
    ]


def page(libraries: list[Library], arm64: Stripped) -> str:
    """Return the text of the page."""
    machine = run("uname", "-m").strip()
    compiler = run("c++", "--version").splitlines()[0]
    sizes = [{"stripped file": each.size} for each in libraries]
    limits = ["" if each.limit is None else f"{each.limit:,}" for each in libraries]
    return "\n".join(
        [
            "<!-- Written by `make size`. -->",
            "# Size of the library",
            "",
            f"Sizes in kilobytes (1,000 bytes) of the stripped `libortrain.so` for {machine}, compiled by {compiler}.",
            "[A smaller library](performance.md#a-smaller-library) explains how to leave out parts that a program does not need.",
            "The first column is the library with all operators. The second column is this library optimized at link time, which",
            "wheels for Linux contain. The other columns are libraries without optional parts and with only the operators of a",
            "model: `mlp_adamw` is a perceptron, `lenet_adamw` a convolutional network, and the last one trains a new head of a",
            "MobileNetV2.",
            "",
            *table("build", libraries, sizes),
            f"| limit | {' | '.join(limits)} |",
            "",
            f"For arm64, the library with all operators, optimized at link time, has {arm64.size / 1000:,.0f} kilobytes; its",
            f"limit is {arm64.limit:,}. `make size-arm64` builds this library.",
            "",
            "`make size` and `make size-arm64` fail if a stripped file is larger than its limit.",
            "",
            "## By kind",
            "",
            *table("kind", libraries, [each.kinds for each in libraries]),
            "",
            "Data are the sections that the loader or the program writes to. The rest is headers and padding between segments.",
            "",
            "## By folder of core/src",
            "",
            *table("folder", libraries, [each.folders for each in libraries]),
            "",
            "The sizes are those of the sections of object files in the linked library. The linker itself writes relocations,",
            "tables of names and the index of unwind tables. Libraries with few operators are optimized at link time; the map",
            "of the linker then does not name the sources of unwind tables and constants.",
            "",
            "## By source",
            "",
            f"The {MOST_SOURCES} largest sources and other parts. Files named `open_N` are groups of sources compiled together.",
            "Templates that several sources use have a separate row and do not count for these sources.",
            "",
            *table("source", libraries, [each.sources for each in libraries], MOST_SOURCES),
            "",
        ]
    )


def above_limits(libraries: list[Stripped]) -> list[str]:
    """Return a sentence for each library that is larger than its limit."""
    return [
        f"library_size.py: {each.name}: the stripped file has {each.size:,} bytes, which is more than its limit of "
        f"{each.limit:,} kilobytes"
        for each in libraries
        if each.limit is not None and each.size > 1000 * each.limit
    ]


def stripped_file(build: str) -> Stripped:
    """Return the size of a file, and its limit, from NAME=FILE=LIMIT."""
    name, file, limit = build.split("=")
    return Stripped(name, pathlib.Path(file).stat().st_size, int(limit))


def main() -> None:
    """Write the page, or check the size of a file alone."""
    target, file, *builds = sys.argv[1:]
    arm64 = stripped_file(file)
    print(
        f"{arm64.name}: the stripped file has {arm64.size / 1000:,.0f} kilobytes; its limit is {arm64.limit:,}"
    )
    libraries: list[Library] = []
    if target != "--check":
        parts = [each.split("=") for each in builds]
        if not parts or not all(len(each) in (2, 3) for each in parts):
            sys.exit("usage: library_size.py PAGE ARM64=FILE=LIMIT NAME=FOLDER[=LIMIT] ...")
        root = pathlib.Path(__file__).resolve().parents[1]
        first = pathlib.Path(parts[0][1])
        link_map = first / "libortrain.map"
        known = sources_by_symbol(parts_of(link_map.read_text()), first) if link_map.is_file() else None
        libraries = [
            read(name, pathlib.Path(folder), root, known, *map(int, limit)) for name, folder, *limit in parts
        ]
        pathlib.Path(target).write_text(page(libraries, arm64), encoding="utf-8")
    if problems := above_limits([arm64, *libraries]):
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
