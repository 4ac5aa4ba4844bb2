"""What a test needs of the system. Tests are skipped where that is missing, with a reason that names it."""

from __future__ import annotations

import importlib
import os
import pathlib
import signal
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn

import pytest


class Absent:
    """A module, or a part of a module, that is not available: a test that calls, iterates or indexes it is skipped.

    Attributes can be read without skipping, because modules of tests read them while pytest imports the tests.
    """

    def __init__(self, module: str) -> None:
        self.__dict__["_module"] = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(self._module)

    def _skip(self, *_: object, **__: object) -> NoReturn:
        pytest.skip(f"needs {self._module}")

    __call__ = __iter__ = __getitem__ = __instancecheck__ = __dir__ = __enter__ = _skip


def module_or_absent(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return Absent(name)


# os.kill with this signal ends a process at once, and the process has this exit status. Windows has no SIGKILL: there, os.kill
# ends the process with any signal, and the exit status is the number of the signal.
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
KILLED = int(KILL) if os.name == "nt" else -KILL

# Windows has neither module.
fcntl = module_or_absent("fcntl")
resource = module_or_absent("resource")


def limits_files(size: int) -> Callable[[], None]:
    """Return a ``preexec_fn`` for a process that can write no file of more bytes; skip the test on other systems."""
    resource.getrlimit(resource.RLIMIT_FSIZE)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def _links() -> bool:
    """Whether this process may create symbolic links: on Windows, that depends on the user; Wine 8 has none."""
    with tempfile.TemporaryDirectory() as folder:
        link = pathlib.Path(folder, "link")
        try:
            link.symlink_to("target")
        except OSError:
            return False
        return link.is_symlink()


def _replaces_open_files() -> bool:
    """Whether a file can be replaced while it is open: on Windows, it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        old, new = pathlib.Path(folder, "old"), pathlib.Path(folder, "new")
        old.touch()
        new.touch()
        with old.open():
            try:
                new.replace(old)
            except PermissionError:
                return False
    return True


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
needs_proc = pytest.mark.skipif(not pathlib.Path("/proc/self/statm").exists(), reason="needs /proc")
needs_devices = pytest.mark.skipif(os.name == "nt", reason="needs /dev")
needs_scripts = pytest.mark.skipif(os.name == "nt", reason="needs scripts that are programs")
needs_signals = pytest.mark.skipif(os.name == "nt", reason="needs signals to other processes")
needs_umask = pytest.mark.skipif(os.name == "nt", reason="needs the permissions of files")
needs_size_limits = pytest.mark.skipif(
    not hasattr(signal, "SIGXFSZ"), reason="needs a limit on the size of files (SIGXFSZ)"
)
needs_named_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
needs_links = pytest.mark.skipif(not _links(), reason="needs symbolic links")
needs_replacing_open_files = pytest.mark.skipif(
    not _replaces_open_files(), reason="needs a system that replaces open files"
)
