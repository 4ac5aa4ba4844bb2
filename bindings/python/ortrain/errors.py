"""Exceptions, each with the code and the message of the call that failed."""

from __future__ import annotations

import errno
import os
import re

from ortrain._support.generated.enums import OrtErrorCode

__all__ = [
    "FileError",
    "InvalidArgumentError",
    "InvalidModelError",
    "NoSuchFileError",
    "NotImplementedInOrtrainError",
    "OrtErrorCode",
    "OrtrainError",
    "error_from_status",
]


class OrtrainError(RuntimeError):
    """A call of the library failed.

    Attributes
    ----------
    code : OrtErrorCode
        The error code.
    message : str
        What was being done, what was expected and what was found.
    """

    _code = OrtErrorCode.ORT_FAIL
    """The code of an exception that is created without one."""

    def __init__(self, message: str, code: OrtErrorCode | None = None) -> None:
        super().__init__(message)
        self.code = self._code if code is None else code
        self.message = message

    def __str__(self) -> str:
        return self.message


class InvalidArgumentError(OrtrainError, ValueError):
    """An argument is invalid."""

    _code = OrtErrorCode.ORT_INVALID_ARGUMENT


class InvalidModelError(OrtrainError, ValueError):
    """A file or buffer is not a valid ONNX model."""


class NoSuchFileError(OrtrainError, FileNotFoundError):
    """A file does not exist."""

    _code = OrtErrorCode.ORT_NO_SUCHFILE


class FileError(OrtrainError, OSError):
    """A file cannot be read or written; ``errno`` is the number of the system's reason, None without one."""

    def __init__(self, message: str, number: int | None = None) -> None:
        super().__init__(message)
        self.errno = number


class NotImplementedInOrtrainError(OrtrainError, NotImplementedError):
    """A call, an operator or a type is not implemented."""


_CLASSES: dict[OrtErrorCode, type[OrtrainError]] = {
    OrtErrorCode.ORT_INVALID_ARGUMENT: InvalidArgumentError,
    OrtErrorCode.ORT_INVALID_PROTOBUF: InvalidModelError,
    OrtErrorCode.ORT_INVALID_GRAPH: InvalidModelError,
    OrtErrorCode.ORT_NO_SUCHFILE: NoSuchFileError,
    OrtErrorCode.ORT_NOT_IMPLEMENTED: NotImplementedInOrtrainError,
}


_OF_FILE = re.compile(
    r"(?:\w+: )*cannot (?:open|examine|read|map|write|sync|put in place) the [^']*'.*?': (.*)", re.DOTALL
)
"""How the core describes the failure of a file (``core/src/runtime/file.cpp``), with the reason of the system."""


def _number_of(reason: str) -> int | None:
    """Return the number of the system's reason in the message of a failure; None if the message has no such reason."""
    if reason.startswith("there is no folder "):
        return errno.ENOENT
    if reason.endswith("' is not a folder"):
        return errno.ENOTDIR
    numbers = (number for number in errno.errorcode if os.strerror(number) in reason)
    return max(numbers, key=lambda number: len(os.strerror(number)), default=None)


def error_from_status(code: int, message: str) -> OrtrainError:
    """Return the exception for a failed call; the extension raises what this returns."""
    known = OrtErrorCode(code) if code in OrtErrorCode.__members__.values() else OrtErrorCode.ORT_FAIL
    of_file = _OF_FILE.match(message) if known is OrtErrorCode.ORT_FAIL else None
    number = None if of_file is None else _number_of(of_file[1])
    if number is not None:
        return FileError(message, number)
    return _CLASSES.get(known, OrtrainError)(message, known)
