"""Signals that ask a program to end, and how one process sends them to another, on each system."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

# ENDING: Ctrl-C, the signal of service managers and containers, and Ctrl-Break on Windows.
# GROUP: arguments of subprocess.Popen. Ctrl-C in the terminal then does not reach the new process.
if sys.platform == "win32":
    ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
    GROUP: dict[str, Any] = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    _INTERRUPT = signal.CTRL_BREAK_EVENT  # a new process group ignores Ctrl-C
else:
    ENDING = (signal.SIGINT, signal.SIGTERM)
    GROUP: dict[str, Any] = {"start_new_session": True}
    _INTERRUPT = signal.SIGINT

__all__ = ["ENDING", "GROUP", "interrupt"]


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Ask a process that was started with `GROUP` to end, as Ctrl-C does.

    A program without a console, such as a service, cannot do so on Windows: the process then ends at once.
    """
    try:
        process.send_signal(_INTERRUPT)
    except (OSError, SystemError):  # os.kill of CPython raises SystemError where there is no console
        if sys.platform != "win32":
            raise
        process.terminate()
