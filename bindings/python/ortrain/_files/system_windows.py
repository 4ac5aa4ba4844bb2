"""Files on Windows, as in ``core/src/runtime/system_windows.cpp`` (see ``system.py``)."""

from __future__ import annotations

import ctypes
import errno
import io
import msvcrt
import os
import stat
import sys
import time
from ctypes import wintypes
from pathlib import Path

assert sys.platform == "win32"

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateFileW.restype = wintypes.HANDLE
_kernel.CreateFileW.argtypes = [
    wintypes.LPCWSTR,
    wintypes.DWORD,
    wintypes.DWORD,
    ctypes.c_void_p,
    wintypes.DWORD,
    wintypes.DWORD,
    wintypes.HANDLE,
]


class _Overlapped(ctypes.Structure):
    _fields_ = (
        ("internal", ctypes.c_void_p * 2),
        ("offset", wintypes.DWORD),
        ("offset_high", wintypes.DWORD),
        ("event", wintypes.HANDLE),
    )


_kernel.LockFileEx.argtypes = [
    wintypes.HANDLE,
    wintypes.DWORD,
    wintypes.DWORD,
    wintypes.DWORD,
    wintypes.DWORD,
    ctypes.POINTER(_Overlapped),
]


class _MemoryCounters(ctypes.Structure):
    _fields_ = (
        ("size", wintypes.DWORD),
        ("page_faults", wintypes.DWORD),
        ("peak_working_set", ctypes.c_size_t),
        ("working_set", ctypes.c_size_t),
        ("others", ctypes.c_size_t * 6),
    )


_kernel.GetCurrentProcess.restype = wintypes.HANDLE
_kernel.K32GetProcessMemoryInfo.argtypes = [
    wintypes.HANDLE,
    ctypes.POINTER(_MemoryCounters),
    wintypes.DWORD,
]

CAN_REPLACE_MAPPED_FILES = False

_READ, _WRITE, _DELETE = 0x80000000, 0x40000000, 0x00010000  # rights of CreateFileW
_SHARED = 1 | 2 | 4  # other processes may read, write and delete the file while it is open here
_CREATE_NEW, _OPEN_EXISTING = 1, 3
_NOT_THROUGH_LINKS = 0x00200000
_INVALID = ctypes.c_void_p(-1).value
_EXCLUSIVE, _AT_ONCE = 2, 1  # flags of LockFileEx
# Far behind the end of any file: a lock on contents would keep others from reading them.
_LOCKED_BYTE_HIGH = 0x40000000
_LOCK_VIOLATION = 33
# Errors for files that another process uses: access denied, sharing violation, lock violation, mapped.
_IN_USE = (5, 32, _LOCK_VIOLATION, 1224)
_FEATURES = {38: "sse4_2", 39: "avx", 40: "avx2", 41: "avx512f"}  # numbers of IsProcessorFeaturePresent
_LONGEST_WAIT = 1.024  # seconds; about two seconds in all


def _open_handle(path: str, rights: int, how: int, flags: int = 0) -> int:
    handle = _kernel.CreateFileW(path, rights, _SHARED, None, how, flags, None)
    if handle == _INVALID:
        raise ctypes.WinError(ctypes.get_last_error())
    return msvcrt.open_osfhandle(handle, os.O_RDWR | os.O_BINARY | os.O_NOINHERIT)


def _lock(file: int) -> bool:
    """Lock a file until it is closed; return False if another process has locked it. Not all file systems have locks."""
    position = _Overlapped(offset_high=_LOCKED_BYTE_HIGH)
    handle = msvcrt.get_osfhandle(file)
    if _kernel.LockFileEx(handle, _EXCLUSIVE | _AT_ONCE, 0, 1, 0, ctypes.byref(position)):
        return True
    return ctypes.get_last_error() != _LOCK_VIOLATION


def open_to_read(path: str | os.PathLike[str]) -> int:
    """Open a file of any kind for reading."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    return _open_handle(os.fspath(path), _READ, _OPEN_EXISTING)


def create_locked(path: str) -> int | None:
    """Create a file and lock it until it is closed; None if another process is about to remove the file."""
    file = _open_handle(path, _READ | _WRITE | _DELETE, _CREATE_NEW)
    if _lock(file):
        return file
    os.close(file)
    return None


def remove_unlocked(path: str) -> None:
    """Remove a regular file unless a process has locked it."""
    file = _open_handle(path, _READ | _DELETE, _OPEN_EXISTING, _NOT_THROUGH_LINKS)
    try:
        if stat.S_ISREG(os.fstat(file).st_mode) and _lock(file):
            os.unlink(path)
    finally:
        os.close(file)


def set_mode(file: int, mode: int) -> None:
    """Give a file its permissions; on Windows, a file gets those of its folder."""


def replace(path: str, target: Path) -> None:
    """Give a file another name in the same folder, and replace a file of that name.

    Windows refuses that while another process uses that file. The call then waits up to two seconds for this process.
    """
    wait = 0.001
    while True:
        try:
            os.replace(path, target)
            return
        except OSError as error:
            if getattr(error, "winerror", 0) not in _IN_USE or wait > _LONGEST_WAIT:
                raise
        time.sleep(wait)
        wait *= 2


def sync_folder(folder: Path) -> None:
    """Make new names in a folder durable; Windows does that itself."""


def processor_features() -> set[str]:
    """Return the instruction sets of the processor that Windows can tell, with Linux' names."""
    return {name for number, name in _FEATURES.items() if _kernel.IsProcessorFeaturePresent(number)}


def use_utf8_in_pipes() -> None:
    """Write UTF-8 to files and pipes as standard output, which have the encoding of a language by default."""
    for stream in (sys.stdout, sys.stderr):
        if (
            isinstance(stream, io.TextIOWrapper)
            and not stream.isatty()
            and "PYTHONIOENCODING" not in os.environ
        ):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)


def memory_in_use() -> int | None:
    """Return the bytes of memory that the process has; None if the system does not say."""
    counters = _MemoryCounters(size=ctypes.sizeof(_MemoryCounters))
    found = _kernel.K32GetProcessMemoryInfo(
        _kernel.GetCurrentProcess(), ctypes.byref(counters), counters.size
    )
    return int(counters.working_set) if found else None
