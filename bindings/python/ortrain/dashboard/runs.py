"""The runs in a folder."""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ortrain._files.writing import write_file
from ortrain.dashboard.logs import Log, open_file
from ortrain.trainer.json_log import is_set_aside

_MOST_FILES = 5000
_SECONDS_BETWEEN_SEARCHES = 2.0
_SECONDS_OF_READING = 2.0  # in each refresh
_SECONDS_OF_ONE_LOG = 0.5
_MOST_SETTINGS, _MOST_CHARACTERS = 200, 1000
_LONGEST_NAME = 60
_NAME_FILE = ".name"  # suffix that replaces .jsonl
_DEEPEST = 4  # levels of a nested setting that are shown


class Runs:
    """Finds the logs of runs below a folder and reads lines as they are appended.

    Folders whose name begins with a dot are left out, and so are links that lead out of the folder. Threads may ask at the same
    time: one of them reads, the others get what has been read. Whatever is wrong with a file, the others are shown.

    Parameters
    ----------
    folder : Path
        The folder.

    Attributes
    ----------
    folder : Path
        The folder, without links.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._logs: dict[str, Log] = {}
        self._reading = threading.Lock()
        self._next_search = 0.0
        self._next_log = ""  # the log with which the next refresh begins, if the last one ran out of time
        self._refused: list[str] = []
        self._problems: dict[str, str] = {}

    def refresh(self) -> None:
        """Look for new files, every few seconds at most, and read what was appended to the known ones.

        It returns after some seconds, also if there is more to read or another thread is reading.
        """
        if not self._reading.acquire(timeout=_SECONDS_OF_READING):
            return
        try:
            began = time.monotonic()
            if began >= self._next_search:
                self._search()
                took = time.monotonic() - began
                self._next_search = began + max(_SECONDS_BETWEEN_SEARCHES, 20 * took)
            self._read()
        finally:
            self._reading.release()

    def _read(self) -> None:
        """Read the logs in turn until the time is over, beginning with the log at which the last refresh stopped."""
        end = time.monotonic() + _SECONDS_OF_READING
        names = sorted(self._logs)
        later = [name for name in names if name >= self._next_log]
        self._next_log = ""
        for name in [*later, *names[: len(names) - len(later)]]:
            left = end - time.monotonic()
            if left <= 0:
                self._next_log = name
                return
            self._read_one(name, min(_SECONDS_OF_ONE_LOG, left))

    def _read_one(self, name: str, seconds: float) -> None:
        log = self._logs[name]
        self._problems.pop(name, None)
        try:
            self._real(log.path)
            log.refresh(seconds)
        except OSError as error:
            self._leave_out(name, error.strerror or str(error))
        except Exception as error:  # an error in this file must not hide the others
            self._leave_out(name, f"{type(error).__name__}: {error}"[:200])
        else:
            if log.is_other:
                self._problems[name] = "no run begins in it"

    def _leave_out(self, name: str, why: str) -> None:
        """List a file among the problems instead of the runs, until the next search finds it again."""
        self._logs = {other: log for other, log in self._logs.items() if other != name}
        self._problems[name] = why

    def _real(self, path: Path) -> Path:
        """Return a path without links.

        Raises
        ------
        OSError
            When a link leads out of the folder, or links form a cycle.
        """
        try:
            real = path.resolve()
        except RuntimeError as error:  # Python before 3.13 raises RuntimeError for a cycle of links
            raise OSError("a link that leads to itself") from error
        if not real.is_relative_to(self.folder):
            raise OSError("a link that leads out of the folder")
        return real

    def _search(self) -> None:
        found: dict[str, Log] = {}
        self._refused = []
        for path in self._files():
            name = path.relative_to(self.folder).as_posix()
            try:
                found[name] = self._logs.get(name) or Log(self._real(path))
            except OSError as error:
                self._refused.append(f"{name}: {error.strerror or error}")
                continue
            if len(found) == _MOST_FILES:
                self._refused.append(f"more than {_MOST_FILES} files; the others are left out")
                break
        self._logs = found
        self._problems = {name: why for name, why in self._problems.items() if name in found}

    def _files(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.folder):
            folders[:] = sorted(
                name for name in folders if not name.startswith(".") and not is_set_aside(name)
            )
            for name in sorted(files):
                if name.endswith(".jsonl"):
                    yield Path(folder) / name

    def all(self) -> dict[str, tuple[str, Log]]:
        """Return the name and the log of each run, by its key."""
        return {key_of(name): (name, log) for name, log in sorted(self._logs.items()) if log.is_run}

    @property
    def others(self) -> list[str]:
        """Files that could be logs by their name and are not shown, with the reason."""
        return [*self._refused, *(f"{name}: {why}" for name, why in sorted(list(self._problems.items())))]

    def describe(self) -> list[dict[str, Any]]:
        """Return the entries of the list of runs. Files that cannot be shown are in `others`."""
        shown = []
        for key, (name, log) in self.all().items():
            try:
                with log.lock:
                    shown.append(self._describe(key, name, log))
            except Exception as error:  # an error in one log must not hide the other runs
                self._problems[name] = f"{type(error).__name__}: {error}"[:200]
        return shown

    def _describe(self, key: str, name: str, log: Log) -> dict[str, Any]:
        return {
            "key": key,
            "file": name,
            "name": _given_name(log) or _name(log.begin.get("name")) or self._title(name),
            "state": log.state,
            "error": _text(log.end.get("error")) if log.state == "failed" else "",
            "version": f"{log.read}-{log.size}",
            "read": log.read / log.size if not log.complete and log.size else 1.0,
            "began": _time(log.begin.get("time")),
            "ended": _time(log.end.get("time")),
            "elapsed": log.elapsed,
            "step": log.step,
            "epoch": log.epoch,
            "parameters": log.begin.get("parameters")
            if isinstance(log.begin.get("parameters"), int)
            else None,
            "settings": _settings(log.begin.get("settings")),
            "series": sorted(log.series),
            "latest": {name: _finite(value) for name, value in log.latest.items()},
            "details": {kind: len(places) for kind, places in log.details.items()}
            | {"validations": len(log.validations)},
            "bad_lines": log.bad_lines,
            "problems": [f"line {line}: {problem}" for line, problem in log.problems],
        }

    def rename(self, key: str, name: str) -> None:
        """Give a run a name, which is in a file beside the log; an empty one takes it away.

        Raises
        ------
        OSError, FileError
            When the file cannot be written.
        """
        log = self.all()[key][1]
        path = log.path.with_suffix(_NAME_FILE)
        if path.is_symlink():
            raise OSError(f"{path.name} is a link")
        name = _name(" ".join(name.split()))
        if name:
            write_file(path, "name of a run", f"{name}\n")
        else:
            path.unlink(missing_ok=True)

    def _title(self, name: str) -> str:
        title = name.removesuffix(".jsonl")
        if title == "log":
            return self.folder.name or name
        return title.removesuffix("/log")


def key_of(name: str) -> str:
    """Return the key of a run: it never changes, and a link with it shows no path."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def _name(value: Any) -> str:
    """Return the name of a run; empty if it has none."""
    return value.strip()[:_LONGEST_NAME] if isinstance(value, str) else ""


def _given_name(log: Log) -> str:
    """Return the name that a user gave a run in the dashboard; empty if there is none."""
    path = log.path.with_suffix(_NAME_FILE)
    if not path.exists():
        return ""
    try:
        with open_file(path) as file:
            return _name(file.read(_MOST_CHARACTERS).decode("utf-8", errors="replace"))
    except OSError:
        return ""


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e11 else None


def _settings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {key[:_MOST_CHARACTERS]: _text(entry) for key, entry in islice(value.items(), _MOST_SETTINGS)}


def _text(value: Any, depth: int = 0) -> str:
    """Return a setting as text for a page: a limited number of entries and of levels."""
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, str):
        return value[:_MOST_CHARACTERS]
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(entry, depth + 1) for entry in value[:50]) or "none"
    if isinstance(value, dict):
        return (
            ", ".join(f"{key}={_text(entry, depth + 1)}" for key, entry in list(value.items())[:50]) or "none"
        )
    return repr(value)[:_MOST_CHARACTERS]
