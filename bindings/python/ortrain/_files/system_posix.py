"""Files on Linux, macOS and other POSIX systems (see ``system.py``)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import sys
from pathlib import Path

assert sys.platform != "win32"

CAN_REPLACE_MAPPED_FILES = True


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file of any kind for reading."""
    # Without O_NONBLOCK, opening a pipe would wait until another process writes to it.
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def create_locked(path: str) -> int | None:
    """Create a file and lock it until it is closed; None if another process is about to remove the file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked = True
    except OSError as error:
        locked = error.errno not in (
            errno.EWOULDBLOCK,
            errno.EINTR,
        )  # any other error: no locks in this file system
    if locked and os.fstat(file).st_nlink:
        return file
    os.close(file)
    return None


def remove_unlocked(path: str) -> None:
    """Remove a regular file unless a process has locked it."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        opened, named = os.fstat(file), os.lstat(path)
        if stat.S_ISREG(named.st_mode) and opened.st_ino == named.st_ino:
            os.unlink(path)
    finally:
        os.close(file)


def set_mode(file: int, mode: int) -> None:
    """Give a file its permissions."""
    os.fchmod(file, mode)


def replace(path: str, target: Path) -> None:
    """Give a file another name in the same folder, and replace a file of that name."""
    os.replace(path, target)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def processor_features() -> set[str]:
    """Return the instruction sets of the processor, with Linux' names; none if the system does not say."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return set(value.split())
    return set()


def use_utf8_in_pipes() -> None:
    """Write to standard output in the encoding of the user's language, which is UTF-8 on most systems."""


def memory_in_use() -> int | None:
    """Return the bytes of memory that the process has; None if the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
