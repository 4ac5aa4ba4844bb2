"""Reading the log of a run while it grows."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ortrain.trainer.json_log import FORMAT

# Events that are read again when they are shown.
DETAILS = ("model", "layers", "profile", "samples", "confusion")

_PLACE = ("event", "step", "epoch", "elapsed")
_CHUNK = 1 << 20
_LONGEST_LINE = 32 << 20
_SEARCHED = 1 << 20  # bytes of a file in which a run has to begin
_REMEMBERED = 1024  # bytes before the end of what was read, by which a file is recognized
_MOST_SERIES = 1000
_MOST_PROBLEMS = 20
_SECONDS_WITHOUT_LINES = 60.0  # after which a run without an end has probably been killed


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

    def add(self, step: float, elapsed: float, value: float) -> None:
        """Add a point; one of the same step takes the place of the last."""
        if self.step and step <= self.step[-1]:
            if step < self.step[-1]:
                return  # lines that were copied twice
            self.elapsed[-1], self.value[-1] = elapsed, value
            return
        self.step.append(step)
        self.elapsed.append(elapsed)
        self.value.append(value)


@dataclass(frozen=True)
class Place:
    """Where a detail is in the file."""

    step: int
    epoch: int
    offset: int
    length: int


class Log:
    """The log of a run, of which `refresh` reads what was appended.

    A last line without its end is left until it is complete. Lines that make no sense are counted and named in ``problems``.

    Parameters
    ----------
    path : Path
        The file.

    Attributes
    ----------
    begin, end : dict
        The last line of this kind; ``end`` is empty while the run goes on.
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
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self.begin: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.series: dict[str, Series] = {}
        self.details: dict[str, list[Place]] = {kind: [] for kind in DETAILS}
        self.problems: list[tuple[int, str]] = []
        self.bad_lines = 0
        self.lines = 0
        self.read = self.size = 0  # bytes: of complete lines, and of the file
        self.changed = 0.0
        self.step = self.epoch = 0
        self.elapsed = 0.0
        self._last_bytes = b""
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
            if self.read and not self._is_continued(file, status.st_size):
                self._forget()
            unchanged = (self.size, self.changed) == (status.st_size, status.st_mtime) and self.lines
            self.size, self.changed = status.st_size, status.st_mtime
            self._at_end = True
            if (unchanged and self.read == self.size) or (not self.begin and self.read > _SEARCHED):
                return False
            file.seek(self.read)
            before = self.lines
            self._read_lines(file, deadline)
        return self.lines != before

    def _is_continued(self, file: BinaryIO, size: int) -> bool:
        """Whether the file still has what was read of it; a resumed or copied run replaces it."""
        if size < self.read:
            return False
        file.seek(self.read - len(self._last_bytes))
        return file.read(len(self._last_bytes)) == self._last_bytes

    def _read_lines(self, file: BinaryIO, deadline: float) -> None:
        rest = b""
        while chunk := file.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._take(line)
            if lines:
                self._last_bytes = (self._last_bytes + b"\n".join(lines) + b"\n")[-_REMEMBERED:]
            if len(rest) > _LONGEST_LINE:  # no line of a log; what follows up to its end is not read either
                self.read += len(rest)
                self._last_bytes = rest[-_REMEMBERED:]
                rest, self._skipping = b"", True
            if time.monotonic() > deadline or (not self.begin and self.read > _SEARCHED):
                self._at_end = len(chunk) < _CHUNK
                return

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
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            self._complain("it is not JSON")
            return
        if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
            self._complain("it is no object with an event")
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
            self.details[event].append(Place(step, epoch, offset, len(line)))
            if event == "layers":
                self._add(event, step, {key: value for key, value in entry.items() if key.endswith("_norm")})
        # Other events are those of a later version.

    def _take_begin(self, entry: dict[str, Any]) -> None:
        version = entry.get("format")
        if version != FORMAT:
            self._complain(f"its format is {version!r:.40}; this version of ortrain knows {FORMAT}")
        self.begin, self.end = entry, {}

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
            self.series[key].add(step, self.elapsed, value)

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
        return sorted(
            {(place.step, place.epoch) for kind in ("samples", "confusion") for place in self.details[kind]}
        )

    def detail(self, place: Place) -> dict[str, Any]:
        """Read a detail again; an empty one if the file has changed since."""
        try:
            with open_file(self.path) as file:
                file.seek(place.offset)
                entry = json.loads(file.read(place.length))
        except (OSError, ValueError, RecursionError):
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
        raise OSError(f"{path} is no file")
    return os.fdopen(handle, "rb")


def number(value: Any) -> float | None:
    """Return a value of a line as a number: NaN for null and what is not finite, None for what is no number."""
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
