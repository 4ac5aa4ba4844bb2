"""`pytest -p coverage_by_test --record-coverage=FILE`: what each test costs, and which basic blocks of the core it runs.

Costs are recorded with any build of the library, blocks with a coverage build alone (`make coverage`). A test may load the
library in other processes: their blocks count, unless they are killed. Blocks that run before the first test belong to the
record named "". Fixtures belong to the test that makes them. A later run into the same file replaces the records of its tests.

`scripts/core_coverage.py` reads the file, an SQLite database.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import resource
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterator

import numpy as np
import ortrain
import pytest

LIBRARY = pathlib.Path(ortrain.__file__).parent / "lib/libortrain.so"
SECONDS_OF_A_COMMIT = 5.0  # what is lost if the run is killed
FOLDER = "ORTRAIN_COVERAGE_FOLDER"
TABLES = """
CREATE TABLE IF NOT EXISTS library (path TEXT, addresses BLOB);
CREATE TABLE IF NOT EXISTS tests (name TEXT PRIMARY KEY, seconds REAL, processor REAL, outcome TEXT, blocks BLOB);
"""


def processor_time() -> float:
    """Return the seconds that this process, and those that it waited for, kept a processor busy."""
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + others.ru_utime + others.ru_stime


class Blocks:
    """The flags of the basic blocks of a library from a coverage build."""

    def __init__(self, library: ctypes.CDLL, folder: str) -> None:
        flags, rows, loaded_at = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
        give = library.ortrain_coverage_blocks
        give.restype = ctypes.c_size_t
        count = give(ctypes.byref(flags), ctypes.byref(rows), ctypes.byref(loaded_at))
        assert flags.value
        assert rows.value
        self._flags = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(flags.value))
        table = np.ctypeslib.as_array((ctypes.c_uint64 * (2 * count)).from_address(rows.value))
        self.addresses = table[::2] - np.uint64(loaded_at.value)
        """Where the blocks begin in the library's file."""
        self._folder = pathlib.Path(folder)

    def take(self) -> bytes:
        """Return the blocks that have run since the last call, as compressed bits."""
        found = self._flags.copy()
        self._flags[:] = 0
        for file in self._folder.iterdir():
            if file.suffix != ".unfinished":
                found |= np.frombuffer(file.read_bytes(), np.uint8)
                file.unlink()
        return zlib.compress(np.packbits(found, bitorder="little").tobytes(), 1)


class Recorder:
    """Writes what each test costs and runs."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path)
        self._database.executescript(TABLES)
        self._folder = tempfile.TemporaryDirectory()
        self._blocks: Blocks | None = None
        self._outcome = ""
        self._committed = time.perf_counter()
        library = ctypes.CDLL(str(LIBRARY))
        if hasattr(library, "ortrain_coverage_blocks"):
            self._blocks = Blocks(library, self._folder.name)
            os.environ[FOLDER] = self._folder.name
            self._check_library(self._blocks.addresses.tobytes())

    def _check_library(self, addresses: bytes) -> None:
        known = self._database.execute("SELECT addresses FROM library").fetchall()
        if not known:
            self._database.execute("INSERT INTO library VALUES (?, ?)", (str(LIBRARY), addresses))
        elif known != [(addresses,)]:
            raise pytest.UsageError("--record-coverage: the file has records of another build of the library")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtestloop(self) -> Iterator[None]:
        self._write("", 0, 0)
        yield
        self._database.commit()
        os.environ.pop(FOLDER, None)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        begun, processor = time.perf_counter(), processor_time()
        self._outcome = "passed"
        yield
        self._write(item.nodeid, time.perf_counter() - begun, processor_time() - processor)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self._outcome = report.outcome

    def _write(self, name: str, seconds: float, processor: float) -> None:
        blocks = self._blocks.take() if self._blocks else None
        self._database.execute(
            "INSERT OR REPLACE INTO tests VALUES (?, ?, ?, ?, ?)",
            (name, seconds, processor, self._outcome, blocks),
        )
        if time.perf_counter() > self._committed + SECONDS_OF_A_COMMIT:
            self._database.commit()
            self._committed = time.perf_counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-coverage",
        metavar="FILE",
        help="record costs and blocks of the core, by test, in an SQLite database",
    )


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("record_coverage")
    if path:
        config.pluginmanager.register(Recorder(path), "coverage_recorder")
