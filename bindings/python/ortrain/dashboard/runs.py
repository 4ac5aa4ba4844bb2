"""The runs in a folder."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ortrain.dashboard.logs import Log

_MOST_FILES = 5000
_SECONDS_BETWEEN_SEARCHES = 2.0


class Runs:
    """Finds the logs of runs below a folder and reads what is appended to them.

    Folders whose name begins with a dot are left out, and so are links that lead out of the folder.

    Parameters
    ----------
    folder : Path
        The folder.

    Attributes
    ----------
    folder : Path
        The folder, without links.
    others : list of str
        Files that could be logs by their name and are not shown, with the reason.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.others: list[str] = []
        self._logs: dict[str, Log] = {}
        self._next_search = 0.0
        self._refused: list[str] = []

    def refresh(self) -> None:
        """Look for new files, every few seconds at most, and read what was appended to the known ones."""
        began = time.monotonic()
        if began >= self._next_search:
            self._search()
            took = time.monotonic() - began
            self._next_search = began + max(_SECONDS_BETWEEN_SEARCHES, 20 * took)
        self.others = list(self._refused)
        budget = time.monotonic() + 2.0
        for name, log in sorted(self._logs.items()):
            try:
                self._inside(log.path)
                log.refresh(max(0.05, min(0.5, budget - time.monotonic())))
            except OSError as error:
                self._logs.pop(name)
                self.others.append(f"{name}: {error.strerror or error}")
                continue
            if log.is_other:
                self.others.append(f"{name}: no run begins in it")

    def _inside(self, path: Path) -> None:
        real = path.resolve()
        if not real.is_relative_to(self.folder):
            raise OSError("a link that leads out of the folder")

    def _search(self) -> None:
        found: dict[str, Log] = {}
        self._refused = []
        for path in self._files():
            name = path.relative_to(self.folder).as_posix()
            real = path.resolve()
            if not real.is_relative_to(self.folder):
                self._refused.append(f"{name}: a link that leads out of the folder")
                continue
            found[name] = self._logs.get(name) or Log(real)
            if len(found) == _MOST_FILES:
                self._refused.append(f"more than {_MOST_FILES} files; the others are left out")
                break
        self._logs = found

    def _files(self) -> Iterator[Path]:
        for folder, folders, files in os.walk(self.folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                if name.endswith(".jsonl"):
                    yield Path(folder) / name

    def all(self) -> dict[str, tuple[str, Log]]:
        """Return the name and the log of each run, by its key."""
        return {key_of(name): (name, log) for name, log in sorted(self._logs.items()) if log.is_run}

    def describe(self) -> list[dict[str, Any]]:
        """Return what the list of runs shows of each."""
        return [self._describe(key, name, log) for key, (name, log) in self.all().items()]

    def _describe(self, key: str, name: str, log: Log) -> dict[str, Any]:
        settings = log.begin.get("settings")
        return {
            "key": key,
            "file": name,
            "name": self._title(name),
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
            "settings": {str(k): _text(v) for k, v in settings.items()} if isinstance(settings, dict) else {},
            "series": sorted(log.series),
            "latest": {name: _finite(value) for name, value in log.latest.items()},
            "details": {kind: len(places) for kind, places in log.details.items()}
            | {"validations": len(log.validations)},
            "bad_lines": log.bad_lines,
            "problems": [f"line {line}: {problem}" for line, problem in log.problems],
        }

    def _title(self, name: str) -> str:
        title = name.removesuffix(".jsonl")
        if title == "log":
            return self.folder.name or name
        return title.removesuffix("/log")


def key_of(name: str) -> str:
    """Return the key of a run: it stays the same, and says nothing of paths to whoever reads a link."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _time(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e11 else None


def _text(value: Any) -> str:
    """Return a setting as it is shown."""
    if isinstance(value, str):
        return value[:1000]
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(entry) for entry in value[:50]) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(entry)}" for key, entry in list(value.items())[:50]) or "none"
    return repr(value)[:1000]
