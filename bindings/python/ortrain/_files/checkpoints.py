"""Checkpoints as files: a state above 2 GB has a second file, which is copied, moved and removed with the first one.

docs/checkpoint-format.md describes both files. As in the core (``core/src/state/checkpoint_io.h``), a crash at any moment leaves
a checkpoint that can be loaded: until both files are replaced, the data file of the old checkpoint has the ending ``.data.old``.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path

from ortrain._files.writing import copy_file, link_file, move_file

StrPath = str | os.PathLike[str]
_DATA, _OLD_DATA = ".data", ".data.old"
_DIGEST = b"ortrain data id "  # begins the digest at the end of a data file, except in files of onnxruntime
_DIGEST_BYTES = 32
_MODULE_STATE, _HAS_EXTERNAL_DATA = 1, 3  # the ids of fields in core/src/state/checkpoint.fbs


def link_checkpoint(source: StrPath, path: StrPath) -> None:
    """Give a checkpoint a second name, and replace a checkpoint of that name.

    Parameters
    ----------
    source : str or os.PathLike
        The checkpoint.
    path : str or os.PathLike
        Its other name.

    Raises
    ------
    FileError
        When that is not possible. A checkpoint that already had the second name can still be loaded.
    """
    _place(link_file, Path(source), Path(path))


def copy_checkpoint(source: StrPath, path: StrPath) -> None:
    """Replace a checkpoint by a copy of another.

    Parameters
    ----------
    source, path : str or os.PathLike
        The checkpoint that is copied, and the copy.

    Raises
    ------
    FileError
        When the copy cannot be written. A checkpoint that was there can still be loaded.
    """
    _place(copy_file, Path(source), Path(path))


def move_checkpoint(path: Path, target: Path) -> None:
    """Rename a checkpoint, in one file system.

    Parameters
    ----------
    path : Path
        The checkpoint.
    target : Path
        The new path, where no file is.

    Raises
    ------
    FileError
        When the system refuses that.
    """
    data = data_file_of(path)
    if data is not None:
        link_file(data, _with_ending(target, _DATA), "checkpoint's data file")
    move_file(path, target, "checkpoint")
    if data is not None:
        _remove_data(path)


def remove_checkpoint(path: StrPath) -> None:
    """Remove a checkpoint, if it exists.

    Parameters
    ----------
    path : str or os.PathLike
        The checkpoint.
    """
    path = Path(path)
    data = data_file_of(path)
    path.unlink(missing_ok=True)
    if data is not None:
        _remove_data(path)


def data_file_of(path: Path) -> Path | None:
    """Return the second file of a checkpoint. None if it has one file, or if the path is not a checkpoint.

    Parameters
    ----------
    path : Path
        The checkpoint.

    Returns
    -------
    Path or None
        The file that contains the elements of the tensors. If a process was killed while it replaced the checkpoint, this may
        be the file with the ending ``.data.old``.
    """
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if not _has_external_data(content):
                return None
            files = (_with_ending(path, ending) for ending in (_DATA, _OLD_DATA))
            return next((file for file in files if _belongs_to(file, content)), None)
    except (
        FileNotFoundError,
        ValueError,
        struct.error,
    ):  # no file, an empty file, or no tables of a checkpoint
        return None


def _with_ending(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _has_external_data(content: mmap.mmap) -> bool:
    """Read ``has_external_data`` of the module state from the FlatBuffer of a checkpoint."""

    def number(kind: str, position: int) -> int:
        found: int = struct.unpack_from(f"<{kind}", content, position)[0]
        return found

    def field(table: int, index: int) -> int:
        """Return the position of a field of a table; 0 if the field has its default."""
        offsets = table - number("i", table)
        slot = 4 + 2 * index
        offset = number("H", offsets + slot) if slot < number("H", offsets) else 0
        return table + offset if offset else 0

    if content[4:8] != b"ODTC":
        return False
    state = field(number("I", 0), _MODULE_STATE)
    flag = field(state + number("I", state), _HAS_EXTERNAL_DATA) if state else 0
    return flag != 0 and number("B", flag) != 0


def _belongs_to(data: Path, checkpoint: mmap.mmap) -> bool:
    """Whether a data file exists and its digest is in the tables of a checkpoint."""
    try:
        with data.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _DIGEST_BYTES))
            digest = file.read()
    except FileNotFoundError:
        return False
    return not digest.startswith(_DIGEST) or checkpoint.find(digest) >= 0


def _remove_data(path: Path) -> None:
    for ending in (_DATA, _OLD_DATA):
        _with_ending(path, ending).unlink(missing_ok=True)


def _place(put: Callable[[Path, Path, str], None], source: Path, path: Path) -> None:
    """Link or copy a checkpoint to a path, with its data file."""
    data, replaced = data_file_of(source), data_file_of(path)
    target, old = _with_ending(path, _DATA), _with_ending(path, _OLD_DATA)
    if data is not None:
        if replaced == target:
            link_file(target, old, "checkpoint's data file")
        put(data, target, "checkpoint's data file")
    put(source, path, "checkpoint")
    if data is not None:
        old.unlink(missing_ok=True)
    elif replaced is not None:
        _remove_data(path)
