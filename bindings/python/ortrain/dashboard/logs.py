"""Reading the log of a run while it grows."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ortrain.trainer.json_log import FORMAT

# Events of which only the place in the file is kept. They are read again when a page shows them.
DETAILS = ("model", "layers", "profile", "samples", "confusion", "regression", "projection")

_OF_VALIDATIONS = ("samples", "confusion", "regression", "projection")
_PLACE = ("event", "step", "epoch", "elapsed")
_CHUNK = 1 << 20
_LONGEST_LINE = 16 << 20
_MOST_OBJECTS = 500_000  # lists and objects of a line; ten million of them take half a minute to parse
_SEARCHED = 1 << 20  # bytes; a file without the beginning of a run in these is not a log
_REMEMBERED = 1024  # the last bytes that were read; they show whether the file was replaced
_MOST_SERIES = 1000
_MOST_VALUES = 1 << 23  # in all series together: 200 MB
_MOST_PLACES = 5000  # for each kind of detail
_MOST_PROBLEMS = 20
_LINES_AT_ONCE = 500  # lines that are parsed while the log is locked: 5 ms
_SECONDS_WITHOUT_LINES = 60.0  # a run that writes no line for longer has probably been killed


@dataclass
class Series:
    """One value over a run.

    Attributes
    ----------
    step, elapsed, value : array of float
        Optimizer step, seconds since the beginning and the value of each point; NaN for a value that is not finite.
    """

    step: array[float] = field(default_factory=lambda: array("d"))
    elapsed: array[float] = field(default_factory=lambda: array("d"))
    value: array[float] = field(default_factory=lambda: array("d"))

    def add(self, step: float, elapsed: float, value: float) -> bool:
        """Add a point; one of the same step replaces the last. Return whether there is one more."""
        if self.step and step <= self.step[-1]:
            if step == self.step[-1]:  # lower steps are in lines that were copied twice
                self.elapsed[-1], self.value[-1] = elapsed, value
            return False
        self.step.append(step)
        self.elapsed.append(elapsed)
        self.value.append(value)
        return True

    def thin(self) -> None:
        """Remove every second point, but not the last."""
        for values in (self.step, self.elapsed, self.value):
            del values[-2::-2]

    def copy(self) -> Series:
        """Return the points of this moment."""
        return Series(self.step[:], self.elapsed[:], self.value[:])


@dataclass(frozen=True)
class Place:
    """Where a detail is in the file."""

    step: int
    epoch: int
    offset: int
    length: int


class Log:
    """The log of a run; `refresh` reads the lines that were appended.

    A last line without its end is left until it is complete. Invalid lines are counted and named in ``problems``. One
    thread reads; others that look at the log hold ``lock``, which reading holds for some milliseconds at a time.

    Memory is bounded: beyond 8 million values, or 5,000 details of one kind, every second one is dropped.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    begin, end : dict
        The last line of this kind; ``end`` is empty while the run continues.
    series : dict of str to Series
        By ``<event>.<name>``, such as ``step.loss`` and ``epoch.val_loss``.
    details : dict of str to list of Place
        Where lines are that are too large to keep, by event.
    latest : dict of str to float
        The last value of each series.
    problems : list of (int, str)
        The first lines that could not be read, with what is wrong.
    bad_lines : int
        How many there are.
    lock : threading.Lock
        Held while any of these changes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.begin: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.series: dict[str, Series] = {}
        self._values = 0  # in all series together
        self.details: dict[str, list[Place]] = {kind: [] for kind in DETAILS}
        self.problems: list[tuple[int, str]] = []
        self.bad_lines = 0
        self.lines = 0
        self.read = self.size = 0  # bytes of the complete lines that were read, and of the file
        self.changed = 0.0
        self.step = self.epoch = 0
        self.elapsed = 0.0
        self._last_bytes = b""
        self._validations: list[tuple[int, int]] | None = []
        self._skipping = False
        self._at_end = True

    @property
    def is_run(self) -> bool:
        """Whether a run begins in the file."""
        return bool(self.begin)

    @property
    def is_other(self) -> bool:
        """Whether the file is something else."""
        return not self.begin and (self.read > _SEARCHED or (self.read == self.size and self.lines > 0))

    @property
    def complete(self) -> bool:
        """Whether everything has been read that the file had when it was looked at, except for a last line without end."""
        return self._at_end

    @property
    def state(self) -> str:
        """One of "running", "complete", "stopped", "failed" and "lost": without an end, and not written for a minute."""
        status = self.end.get("status")
        if isinstance(status, str) and status in ("complete", "stopped", "failed"):
            return status
        if self.end:
            return "complete"
        return "running" if time.time() - self.changed < _SECONDS_WITHOUT_LINES else "lost"

    def refresh(self, seconds: float = 0.5) -> bool:
        """Read what was appended, for some time at most; return whether there was anything.

        Raises
        ------
        OSError
            When the file cannot be read.
        """
        deadline = time.monotonic() + seconds
        with open_file(self.path) as file:
            status = os.fstat(file.fileno())
            continued = not self.read or self._is_continued(file, status.st_size)
            with self.lock:
                if not continued:
                    self._forget()
                unchanged = self._at_end and (self.size, self.changed) == (status.st_size, status.st_mtime)
                self.size, self.changed = status.st_size, status.st_mtime
                self._at_end = True
            if unchanged or (not self.begin and self.read > _SEARCHED):
                return False
            file.seek(self.read)
            before = self.lines
            self._read_lines(file, deadline)
        return self.lines != before

    def _is_continued(self, file: BinaryIO, size: int) -> bool:
        """Whether the part of the file that was read is unchanged. A resumed or copied run replaces the file."""
        if size < self.read:
            return False
        file.seek(self.read - len(self._last_bytes))
        return file.read(len(self._last_bytes)) == self._last_bytes

    def _read_lines(self, file: BinaryIO, deadline: float) -> None:
        begun: list[bytes] = []  # parts of a line whose end has not been read
        length = 0  # bytes of these parts
        first = self.read
        while chunk := file.read(_CHUNK):
            *lines, rest = chunk.split(b"\n")
            if lines:
                lines[0] = b"".join([*begun, lines[0]])
                begun, length = [], 0
                self._take_all(lines)
                self._remember(b"\n".join(lines) + b"\n")
            begun.append(rest)
            length += len(rest)
            if (
                self._skipping or length > _LONGEST_LINE
            ):  # too long for a log: the rest of the line is skipped
                self._remember(b"".join(begun))
                self.read += length
                begun, length, self._skipping = [], 0, True
            late = (
                time.monotonic() > deadline and self.read > first
            )  # at least one line is completed, however long it takes
            if late or (not self.begin and self.read > _SEARCHED):
                self._at_end = len(chunk) < _CHUNK
                return

    def _remember(self, data: bytes) -> None:
        self._last_bytes = (self._last_bytes + data)[-_REMEMBERED:]

    def _take_all(self, lines: list[bytes]) -> None:
        for start in range(0, len(lines), _LINES_AT_ONCE):
            with self.lock:
                for line in lines[start : start + _LINES_AT_ONCE]:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        offset = self.read
        self.read += len(line) + 1
        self.lines += 1
        if self._skipping:
            self._skipping = False
            self._complain(f"it has more than {_LONGEST_LINE >> 20} MB")
            return
        if not line.strip():
            return
        if line.count(b"[") + line.count(b"{") > _MOST_OBJECTS:
            self._complain(f"it has more than {_MOST_OBJECTS} lists and objects")
            return
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError, MemoryError):
            self._complain("it is not JSON")
            return
        try:
            self._take_entry(entry, offset, len(line))
        except Exception as error:  # a damaged line must not hide the other lines
            self._complain(f"it cannot be read: {type(error).__name__}: {error}"[:200])

    def _take_entry(self, entry: Any, offset: int, length: int) -> None:
        if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
            self._complain("it is not an object with an event")
            return
        event = entry["event"]
        if event == "begin":
            self._take_begin(entry)
            return
        if not self.begin:
            self._complain("it comes before the beginning of a run")
            return
        step, epoch = _count(entry.get("step")), _count(entry.get("epoch"))
        if step is None or epoch is None:
            self._complain("step and epoch have to be whole numbers from 0 on")
            return
        elapsed = number(entry.get("elapsed"))
        if elapsed is not None and math.isfinite(elapsed):
            self.elapsed = max(self.elapsed, elapsed)
        self.step, self.epoch = max(self.step, step), max(self.epoch, epoch)
        if event == "end":
            self.end = entry
        elif event in ("step", "epoch"):
            self._add(event, step, {key: value for key, value in entry.items() if key not in _PLACE})
        elif event in self.details:
            self._keep(event, Place(step, epoch, offset, length))
            if event == "layers":
                self._add(event, step, {key: value for key, value in entry.items() if key.endswith("_norm")})
        # A later version may write other events, which are ignored.

    def _take_begin(self, entry: dict[str, Any]) -> None:
        version = entry.get("format")
        if version != FORMAT:
            self._complain(f"its format is {version!r:.40}; this version of ortrain knows {FORMAT}")
        self.begin, self.end = entry, {}

    def _keep(self, kind: str, place: Place) -> None:
        places = self.details[kind]
        places.append(place)
        if len(places) > _MOST_PLACES:
            self.details[kind] = places[::-2][::-1]  # every second place, with the last one
        self._validations = None

    def _add(self, event: str, step: int, values: dict[str, Any]) -> None:
        for name, given in values.items():
            value = number(given)
            if value is None:
                continue
            key = f"{event}.{name}"
            if key not in self.series:
                if len(self.series) >= _MOST_SERIES:
                    continue
                self.series[key] = Series()
            self._values += self.series[key].add(step, self.elapsed, value)
        if self._values > _MOST_VALUES:
            for series in self.series.values():
                series.thin()
            self._values = sum(len(series.step) for series in self.series.values())

    def _complain(self, problem: str) -> None:
        self.bad_lines += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append((self.lines, problem))

    @property
    def latest(self) -> dict[str, float]:
        """The last value of each series."""
        return {name: series.value[-1] for name, series in self.series.items()}

    @property
    def validations(self) -> list[tuple[int, int]]:
        """Step and epoch of each validation that something is known of besides its numbers."""
        if self._validations is None:
            places = [place for kind in _OF_VALIDATIONS for place in self.details[kind]]
            self._validations = sorted({(place.step, place.epoch) for place in places})
        return self._validations

    def detail(self, place: Place) -> dict[str, Any]:
        """Read a detail again; an empty one if the file has changed since."""
        try:
            with open_file(self.path) as file:
                file.seek(place.offset)
                entry = json.loads(file.read(place.length))
        except (OSError, ValueError, RecursionError, MemoryError):
            return {}
        return entry if isinstance(entry, dict) else {}


def open_file(path: Path) -> BinaryIO:
    """Open a file to read, if it is one; a link is followed no further.

    Raises
    ------
    OSError
        When there is no such file, or it is a link, a pipe or a device.
    """
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a regular file")
    return os.fdopen(handle, "rb")


def number(value: Any) -> float | None:
    """Return a value of a line as a number: NaN for null and for numbers that are not finite, None for other values."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return math.nan
    return found if math.isfinite(found) else math.nan


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        return None
    return value
