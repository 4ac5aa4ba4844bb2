"""Report which lines of the core the tests run, and which cases of a test run no code that its other cases do not run.

python scripts/core_coverage.py RECORD [--without LIST] [--redundant] [--costs]

RECORD is the file that `pytest -p coverage_by_test --record-coverage=RECORD` wrote with a coverage build of the library
(`make coverage`). A line counts if the debugger's line table, which llvm-dwarfdump prints, has a statement for it. A line is
covered if a basic block with such a statement has run.

--without LIST  also report the coverage without the tests in the file LIST, which has one test per line
--redundant     for each parametrized test, list the cases whose blocks the other cases run too. If several sets of cases run
                the same blocks, the script keeps a set that takes little time. Cases that run the same blocks may check
                different values, so decide yourself which cases to remove.
--costs         list the files and the test functions that take the most processor time
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import posixpath
import re
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.uint8]

CORE = "/core/src/"
FOLDER = re.compile(r'^include_directories\[ *\d+\] = "(.*)"$')
NAME = re.compile(r'^ +name: "(.*)"$')
OF_FOLDER = re.compile(r"^ +dir_index: (\d+)$")
ROW = re.compile(r"^0x([0-9a-f]+) +(\d+) +\d+ +(\d+) .* is_stmt\b(?!.*end_sequence)")
MOST_SHOWN = 40
COLUMNS = 2048  # of a table, that are computed with at a time
VARYING = ("runtime/thread_pool",)
"""Sources whose blocks depend on how threads take turns: they make no case needed."""


@dataclass
class Test:
    """The record of a test."""

    name: str
    processor: float
    """Seconds of processor time, of this process and of those that it started."""
    blocks: bytes

    @property
    def function(self) -> str:
        """The name without parameters."""
        return self.name.partition("[")[0]

    def bits(self) -> Bits:
        """Return the blocks that it ran, eight to a byte."""
        return np.frombuffer(zlib.decompress(self.blocks), np.uint8)


@dataclass
class Lines:
    """Statements of the core: row i is of line `lines[of_row[i]]` and of block `block_of_row[i]`."""

    lines: list[tuple[str, int]]
    """Source below core/src, and line."""
    of_row: NDArray[np.int64]
    block_of_row: NDArray[np.int64]

    def covered(self, bits: Bits) -> NDArray[np.bool_]:
        """Return for each line whether one of its blocks ran."""
        ran = np.unpackbits(bits, bitorder="little").astype(np.bool_)
        covered = np.zeros(len(self.lines), np.bool_)
        covered[self.of_row[ran[self.block_of_row]]] = True
        return covered

    def blocks_of(self, sources: Iterable[str], count: int) -> Bits:
        """Return the blocks whose lines are all of sources with such a beginning, eight to a byte."""
        inside = np.array([name.startswith(tuple(sources)) for name, _ in self.lines])[self.of_row]
        chosen, others = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        chosen[self.block_of_row[inside]] = True
        others[self.block_of_row[~inside]] = True
        return np.packbits(chosen & ~others, bitorder="little")


def read(path: str) -> tuple[list[Test], str, NDArray[np.uint64]]:
    """Return the tests of a record, the library, and where its blocks begin."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    rows = database.execute("SELECT name, processor, blocks FROM tests").fetchall()
    library = database.execute("SELECT path, addresses FROM library").fetchone()
    if library is None or not rows:
        raise SystemExit(f"{path}: expected a record with blocks, found none; record with a coverage build")
    return [Test(*row) for row in rows], library[0], np.frombuffer(library[1], np.uint64)


def lines_of(library: str, addresses: NDArray[np.uint64]) -> Lines:
    """Read the debugger's table of lines, and find the block of each statement."""
    command = ["llvm-dwarfdump", "--debug-line", library]
    numbers: dict[tuple[str, int], int] = {}
    of_row, places = [], []
    folders: list[str] = []
    sources: list[str | None] = []
    name = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8") as printed:
        assert printed.stdout is not None
        for line in printed.stdout:
            if match := ROW.match(line):
                address, number, source = int(match[1], 16), int(match[2]), sources[int(match[3])]
                if (
                    address and number and source is not None
                ):  # the linker gives functions that it drops the address 0
                    of_row.append(numbers.setdefault((source, number), len(numbers)))
                    places.append(address)
            elif line.startswith("debug_line["):
                folders, sources = [], []
            elif match := FOLDER.match(line):
                folders.append(match[1])
            elif match := NAME.match(line):
                name = match[1]
            elif match := OF_FOLDER.match(line):
                sources.append(source_in_core(posixpath.join(folders[0], folders[int(match[1])], name)))
    if printed.returncode:
        raise SystemExit(f"llvm-dwarfdump cannot read {library}")
    order = np.argsort(addresses)
    at = np.searchsorted(addresses[order], np.array(places, np.uint64), side="right") - 1
    return Lines(list(numbers), np.array(of_row)[at >= 0], order[at[at >= 0]])


def source_in_core(path: str) -> str | None:
    """Return a path below core/src, or None if it is elsewhere."""
    return posixpath.normpath(path).partition(CORE)[2] or None


def union(tests: Iterable[Test], size: int) -> Bits:
    """Return the blocks that tests ran."""
    found = np.zeros(size, np.uint8)
    for test in tests:
        found |= test.bits()
    return found


def kept(tests: list[Test], ignored: Bits) -> list[Test]:
    """Return tests that together run what all of them run, without ignored blocks, in little time.

    One after the other those are chosen that run the most blocks for their time which no chosen one runs; then those that later
    ones made needless are taken out again.
    """
    bits = np.stack([test.bits() for test in tests])
    bits &= ~ignored
    ran, weights = distinct_blocks(bits)
    costs = np.array([max(test.processor, 1e-4) for test in tests])
    if not ran.any():
        return [tests[int(costs.argmin())]]
    left, chosen = ran.any(0), []
    gains = gained(ran, weights)
    while left.any():
        best = int((gains / costs).argmax())
        chosen.append(best)
        found = np.flatnonzero(left & ran[best])
        gains -= gained(ran[:, found], weights[found])
        left[found] = False
    for number in sorted(chosen, key=lambda i: -costs[i]):
        others = [i for i in chosen if i != number]
        if others and not (ran[number] & ~ran[others].any(0)).any():
            chosen = others
    return [tests[i] for i in sorted(chosen)]


def gained(ran: NDArray[np.bool_], weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how many blocks of the groups each test ran."""
    found = np.zeros(len(ran))
    for first in range(0, len(weights), COLUMNS):
        found += ran[:, first : first + COLUMNS].astype(np.float64) @ weights[first : first + COLUMNS]
    return found


def distinct_blocks(bits: Bits) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which tests ran which groups of blocks, and how many blocks are in each group.

    The same tests ran all blocks of a group. Blocks that all tests ran, or none, are left out.
    """
    bits = bits[:, np.bitwise_or.reduce(bits) != np.bitwise_and.reduce(bits)]
    groups: collections.Counter[bytes] = collections.Counter()
    for first in range(0, bits.shape[1], COLUMNS):
        flags = np.unpackbits(bits[:, first : first + COLUMNS], axis=1)
        groups.update(row.tobytes() for row in np.packbits(flags.T, axis=1))
    columns = np.frombuffer(b"".join(groups), np.uint8).reshape(-1, -(-len(bits) // 8))
    ran = np.unpackbits(columns, axis=1, count=len(bits)).T.astype(np.bool_)
    varying = ran.any(0) & ~ran.all(0)
    return ran[:, varying], np.array(list(groups.values()), np.int64)[varying]


def show_coverage(tests: list[Test], lines: Lines, size: int, what: str) -> NDArray[np.bool_]:
    """Print how many lines of each folder are covered; return which are."""
    covered = lines.covered(union(tests, size))
    of_folder: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for (source, _), ran in zip(lines.lines, covered, strict=True):
        folder = of_folder[source.partition("/")[0]]
        folder[0] += int(ran)
        folder[1] += 1
    print(f"{what}: {covered.sum()} of {len(covered)} lines, {covered.mean():.2%}")
    for folder, (ran, count) in sorted(of_folder.items()):
        print(f"  {folder:12} {ran:6} of {count:6}  {ran / count:.1%}")
    return covered


def show_costs(tests: list[Test]) -> None:
    """Print which files and test functions take the most processor time."""
    for what, key in (("file", lambda t: t.name.partition("::")[0]), ("test", lambda t: t.function)):
        groups: dict[str, list[float]] = collections.defaultdict(list)
        for test in tests:
            groups[key(test)].append(test.processor)
        print(f"{sum(map(sum, groups.values())):.0f} seconds by {what}")
        for name, costs in sorted(groups.items(), key=lambda item: -sum(item[1]))[:MOST_SHOWN]:
            print(f"  {sum(costs):7.1f}  {len(costs):5}  {name}")


def show_redundant(tests: list[Test], ignored: Bits) -> None:
    """Print the cases of each test that run nothing which the others do not, most processor time first."""
    functions: dict[str, list[Test]] = collections.defaultdict(list)
    for test in tests:
        if "[" in test.name:
            functions[test.function].append(test)
    found = []
    for function, cases in functions.items():
        needed = {test.name for test in kept(cases, ignored)}
        redundant = [test for test in cases if test.name not in needed]
        if redundant:
            found.append((sum(test.processor for test in redundant), function, len(cases), redundant))
    for seconds, function, count, redundant in sorted(found, key=lambda item: -item[0]):
        print(f"{seconds:7.2f} s in {len(redundant)} of {count} cases: {function}")
        for test in redundant:
            print(f"  {test.processor:.3f}  [{test.name.partition('[')[2]}")


def main() -> int:
    """Print what the options ask for."""
    parser = argparse.ArgumentParser(description="Report which lines of the core the tests run.")
    parser.add_argument("record")
    parser.add_argument("--without", type=pathlib.Path)
    parser.add_argument("--redundant", action="store_true")
    parser.add_argument("--costs", action="store_true")
    options = parser.parse_args()
    tests, library, addresses = read(options.record)
    size = (len(addresses) + 7) // 8
    lines = lines_of(library, addresses)
    covered = show_coverage(tests, lines, size, f"{len(tests)} tests")
    if options.without:
        dropped = set(options.without.read_text("utf-8").splitlines())
        left = [test for test in tests if test.name not in dropped]
        fewer = show_coverage(left, lines, size, f"{len(left)} tests, without those of {options.without}")
        for number in np.flatnonzero(covered & ~fewer):
            print("no longer covered: {}:{}".format(*lines.lines[number]))
    if options.costs:
        show_costs(tests)
    if options.redundant:
        show_redundant(tests, lines.blocks_of(VARYING, len(addresses)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
