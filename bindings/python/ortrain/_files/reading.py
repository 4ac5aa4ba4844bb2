"""Reading data files: only regular files, with errors that name the file and the reason."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ortrain._files.system import system
from ortrain.errors import FileError, InvalidArgumentError, NoSuchFileError

Array = npt.NDArray[Any]
StrPath = str | os.PathLike[str]


def open_file(path: StrPath, what: str) -> BinaryIO:
    """Open a regular file for reading.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    what : str
        What the file is, in messages, such as "--data".

    Raises
    ------
    NoSuchFileError
        When there is no such file.
    FileError
        When the system refuses to open the file.
    InvalidArgumentError
        When the path leads to a folder, a pipe or a device.
    """
    try:
        handle = system.open_to_read(path)
    except FileNotFoundError as error:
        raise NoSuchFileError(f"{what}: there is no file {path}") from error
    except IsADirectoryError as error:  # some systems do not open folders
        raise InvalidArgumentError(f"{what}: expected a file, found the folder {path}") from error
    except OSError as error:
        raise FileError(f"{what}: cannot open {path}: {error.strerror}", error.errno) from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise InvalidArgumentError(f"{what}: expected a file, found the folder {path}")
        found = "a pipe" if stat.S_ISFIFO(mode) else "a special file"
        raise InvalidArgumentError(
            f"{what}: expected a file, found {found}, {path}; save the data to a file first"
        )
    return os.fdopen(handle, "rb")


def check_file(path: StrPath, what: str) -> None:
    """Raise the errors of `open_file` for a file that another package opens by its path."""
    open_file(path, what).close()


@contextmanager
def explained(path: StrPath, what: str, expected: str) -> Iterator[None]:
    """Turn any exception of another package about a file into an error that names the file.

    Parameters
    ----------
    path, what
        As for `open_file`.
    expected : str
        What the file should be, such as "an image".

    Raises
    ------
    InvalidArgumentError
        When the contents are not as expected.
    FileError
        When the system refuses to read them, or memory runs out.
    """
    try:
        yield
    except (InvalidArgumentError, FileError, NoSuchFileError):
        raise
    except MemoryError as error:
        raise FileError(f"{what}: {path} does not fit into memory: {_first_line(error)}") from error
    except OSError as error:
        if error.errno is not None:
            raise FileError(f"{what}: cannot read {path}: {error.strerror}", error.errno) from error
        raise InvalidArgumentError(
            f"{what}: expected {expected}, found {path}: {_first_line(error)}"
        ) from error
    except Exception as error:  # packages raise their own exceptions, without a common base
        raise InvalidArgumentError(
            f"{what}: expected {expected}, found {path}: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{lines[0][:300]}" if lines else type(error).__name__


def read_npy(path: StrPath, what: str) -> Array:
    """Read an NPY file.

    Parameters
    ----------
    path, what
        As for `open_file`.

    Raises
    ------
    InvalidArgumentError
        When it is not an NPY file of numbers or text.
    FileError
        When it cannot be read, or does not fit into memory.
    """
    expected = "an NPY file as written by numpy.save"
    with open_file(path, what) as file, explained(path, what, expected):
        if file.read(6) != b"\x93NUMPY":
            raise ValueError("it does not begin like an NPY file")
        file.seek(0)
        array: Array = np.load(file, allow_pickle=False)
        return array


def read_npz(path: StrPath, what: str) -> dict[str, Array]:
    """Read the arrays of an NPZ file by name.

    Parameters
    ----------
    path, what
        As for `open_file`.

    Raises
    ------
    InvalidArgumentError
        When it is not an NPZ file of numbers or text, or an array is damaged.
    FileError
        When it cannot be read, or does not fit into memory.
    """
    expected = "an NPZ file as written by numpy.savez"
    arrays: dict[str, Array] = {}
    with open_file(path, what) as file:
        if not zipfile.is_zipfile(file):
            raise InvalidArgumentError(f"{what}: expected {expected}, found {path}")
        file.seek(0)
        with explained(path, what, expected), np.load(file, allow_pickle=False) as stored:
            for name in stored.files:
                with explained(f"array {name!r} of {path}", what, "an array of numbers or text"):
                    array = stored[name]
                    if not isinstance(
                        array, np.ndarray
                    ):  # NumPy gives the bytes of a member that is not an NPY file
                        raise ValueError("it is not an array")
                    arrays[name] = array
    return arrays


def read_lines(path: StrPath, what: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file of UTF-8 with their numbers, from 1 on.

    Raises
    ------
    InvalidArgumentError
        When a line is not UTF-8.
    """
    with open_file(path, what) as file, explained(path, what, "text"):
        for number, line in enumerate(file, start=1):
            try:
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise InvalidArgumentError(
                    f"{what}: {path} line {number}: expected UTF-8, found byte {line[error.start]:#04x} at column "
                    f"{error.start + 1}; save the file as UTF-8, which spreadsheets call CSV UTF-8"
                ) from error


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises
    ------
    ValueError
        When it is invalid, or lists are nested too deep.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deep") from error
