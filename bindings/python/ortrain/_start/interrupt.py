"""While the ``ortrain`` program imports its modules, Ctrl-C ends it without a traceback; after that, `main` handles Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from itertools import pairwise
from pathlib import PurePath

_INTERRUPTED = 130


def _is_program() -> bool:
    """Return whether the process runs ``ortrain`` or ``python -m ortrain``, during whose imports argv[0] is ``-m``."""
    if sys.argv[0] == "-m":
        options = pairwise(sys.orig_argv)
        return any(
            option.startswith("-") and option.endswith("m") and name == "ortrain" for option, name in options
        )
    return PurePath(sys.argv[0]).name in ("ortrain", "ortrain.exe")


def _end(number: int, frame: object) -> None:
    os._exit(_INTERRUPTED)


def is_over() -> None:
    """Restore the handler with which Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if _is_program() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)
