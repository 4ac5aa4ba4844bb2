"""Raises ImportError in a subinterpreter, where loading the extension module would wait for the main interpreter forever."""

from __future__ import annotations

import ctypes


def _in_main_interpreter() -> bool:
    current, main = ctypes.pythonapi.PyInterpreterState_Get, ctypes.pythonapi.PyInterpreterState_Main
    current.restype = main.restype = ctypes.c_void_p
    return bool(current() == main())


if not _in_main_interpreter():
    raise ImportError("ortrain can be imported by the main interpreter only, not by a subinterpreter")
