"""The commands of ortrain that a page starts in a folder. A job consists of several commands; jobs run one after another."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortrain._support.signals import GROUP, interrupt

_MOST_LINES = 400
_MOST_WAITING = 20


@dataclass
class Command:
    """A command, and what it wrote so far."""

    arguments: list[str]
    status: int | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The command as a user types it."""
        return shlex.join(["ortrain", *self.arguments])


class Work:
    """Runs commands in a folder. A job waits until those before it have ended; a command that fails ends its job.

    Parameters
    ----------
    folder : Path
        The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._commands: list[Command] = []
        self._waiting: deque[list[Command]] = deque()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False

    def start(self, commands: Sequence[Sequence[str]]) -> bool:
        """Begin a job, or let it wait for others; return False if as many as allowed are waiting."""
        with self._lock:
            if len(self._waiting) >= _MOST_WAITING:
                return False
            self._waiting.append([Command(list(arguments)) for arguments in commands])
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ortrain-studio", daemon=True)
                self._thread.start()
        return True

    def is_result(self, name: str) -> bool:
        """Whether a command that is running or waits writes a file of this name."""
        with self._lock:
            return any({name, f"--out={name}"} & {*command.arguments} for command in self._ahead())

    def _ahead(self) -> list[Command]:
        """Return the commands that have not ended."""
        return [
            command
            for job in (self._commands, *self._waiting)
            for command in job
            if command.status is None and self._thread is not None
        ]

    def stop(self) -> None:
        """End the job after the step that is running, as Ctrl-C does, and forget those that wait."""
        with self._lock:
            self._stopped = True
            self._waiting.clear()
            if self._process is not None:
                interrupt(self._process)

    def close(self) -> None:
        """End the job and wait for it."""
        self.stop()
        thread = self._thread
        if thread is not None:
            thread.join(timeout=30)

    def describe(self) -> dict[str, Any]:
        """Return the commands of the job with their output, as values for JSON."""
        with self._lock:
            return {
                "running": self._thread is not None,
                "commands": [
                    {"text": each.text, "status": each.status, "output": "\n".join(each.lines)}
                    for each in (*self._commands, *(command for job in self._waiting for command in job))
                ],
            }

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                self._stopped = False  # all waiting jobs were added after the stop
                self._commands = self._waiting.popleft()
            self._run_job()

    def _run_job(self) -> None:
        for command in self._commands:
            with self._lock:
                if self._stopped:
                    return
                self._process = process = _begin(command.arguments, self._folder)
            assert process.stdout is not None
            for line in process.stdout:
                with self._lock:
                    command.lines.append(line.rstrip("\n"))
                    del command.lines[:-_MOST_LINES]
            status = process.wait()
            process.stdout.close()
            with self._lock:
                command.status, self._process = status, None
            if status:
                return


def _environment() -> dict[str, str]:
    # By default, a pipe on Windows has the encoding of a language.
    return {**os.environ, "PYTHONIOENCODING": "utf-8"}


def answer_of(arguments: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """Run a command that takes a moment; return its status, what it printed, and its messages."""
    done = subprocess.run(
        [sys.executable, "-m", "ortrain", *arguments],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=_environment(),
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _begin(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ortrain", *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**_environment(), "PYTHONUNBUFFERED": "1"},
        **GROUP,  # Ctrl-C in the terminal must reach the command only through `stop`
    )
