"""Loads the extension with its own libraries, also in a process that has other versions of them.

TensorFlow makes the symbols of its protobuf known to the whole process. If TensorFlow is imported first, the core would
call functions of that protobuf, of another version, and the process would end. This module is imported before any other
that needs the extension.
"""

from __future__ import annotations

import ctypes
import os
import sys

#: A function of protobuf that the core calls: ``google::protobuf::MessageLite::ParseFromArray``.
_FUNCTION = "_ZN6google8protobuf11MessageLite14ParseFromArrayEPKvi"


def _load() -> None:
    own_first = getattr(os, "RTLD_DEEPBIND", 0)  # a flag of glibc
    if own_first and hasattr(ctypes.CDLL(None), _FUNCTION):
        flags = sys.getdlopenflags()
        sys.setdlopenflags(flags | own_first)
        try:
            from ortrain import _ortrain  # noqa: F401
        finally:
            sys.setdlopenflags(flags)


_load()
