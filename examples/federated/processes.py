"""Processes that belong together: each writes a log, all are watched, and each ends with its children."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

MARK = (
    "ORTRAIN_PROCESSES"  # the environment variable by which all of them are found, whoever their parents are
)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failure(Exception):
    """A failure, with the end of the log that shows the reason."""


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def listens(port: int) -> bool:
    """Return whether a process accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn the signals that end a program into SystemExit, so that everything is tidied up first."""

    def handler(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _end_with_parent() -> None:
    """Let the kernel kill this process if its parent dies without having ended it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Processes:
    """Processes by name. Use it in a ``with`` statement: at its end, all have ended."""

    def __init__(self, logs: Path, environment: dict[str, str], limit: float) -> None:
        if not Path("/proc/self/environ").exists():
            raise Failure("processes are found in /proc, which this system does not have")
        self.logs = logs
        self.mark = uuid.uuid4().hex
        self.environment = {**environment, MARK: self.mark}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.limit = limit
        self.ends = time.monotonic() + limit

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def start(self, name: str, *command: str) -> None:
        """Start a process in a new session, so that Ctrl-C of the terminal does not reach it."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command,
                env={**self.environment, f"{MARK}_NAME": name},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def log(self, name: str) -> str:
        """Return what a process has written."""
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def failure(self, what: str, *names: str) -> Failure:
        """Return an exception with the ends of logs."""
        parts = [what]
        for name in names:
            lines = self.log(name).splitlines()[-15:]
            parts.append(f"--- the end of {self.logs / name}.log\n" + "\n".join(lines))
        return Failure("\n".join(parts))

    def check(self, *may_end: str) -> None:
        """Raise if a process has ended by itself, or if the time is up."""
        for name, process in self.running.items():
            status = process.poll()
            if status is not None and not (name in may_end and status == 0):
                raise self.failure(f"{name} ended with status {status} before the training did", name)
        if time.monotonic() > self.ends:
            raise self.failure(f"not done after {self.limit:.0f} s", *self.running)

    def wait(self, what: str, done: Callable[[], bool], *may_end: str) -> None:
        """Wait until something is so."""
        while not done():
            try:
                self.check(*may_end)
            except Failure as failure:
                raise Failure(f"waiting for {what}: {failure}") from None
            time.sleep(0.1)

    def alive(self, name: str | None = None) -> list[int]:
        """Return all processes that are there, or one with those that it has started."""
        wanted = f"{MARK}={self.mark}".encode()
        named = None if name is None else f"{MARK}_NAME={name}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # it has just ended, or is another user's
                    variables = (entry / "environ").read_bytes().split(b"\0")
                    if wanted in variables and (named is None or named in variables):
                        found.append(int(entry.name))
        return found

    def kill(self, name: str | None = None) -> None:
        """Kill a process and those that it has started, or all."""
        names = list(self.running) if name is None else [name]
        last = time.monotonic() + 30
        while (pids := self.alive(name)) and time.monotonic() < last:
            for pid in pids:  # again and again, as one may start another meanwhile
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for each in names:
                self.running[each].poll()  # so that it does not stay as a zombie
            time.sleep(0.05)
        for each in names:
            process = self.running.pop(each)
            process.kill()  # if it is still there after all
            process.wait()

    def end(self) -> None:
        """Kill everything; no signal stops this half-way."""
        before = {number: signal.signal(number, signal.SIG_IGN) for number in SIGNALS}
        try:
            self.kill()
        finally:
            for number, action in before.items():
                signal.signal(number, action)
