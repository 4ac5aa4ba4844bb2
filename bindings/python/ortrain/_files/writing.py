"""Writing files: each is replaced atomically, so that a failure leaves the earlier file, or none.

The core writes checkpoints and models in the same way (``core/src/runtime/file.h``), with the same names of temporary files.
All code of this package that writes files uses this module, except for logs that grow line by line.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ortrain._files.system import system
from ortrain.errors import FileError, OrtrainError

_MOST_BYTES = 200  # of a file's name, inside the name of its temporary file
_TEMPORARY = ".tmp-"  # between the name of a file and the process ID in the name of its temporary file
_counter = itertools.count()


def write_file(path: str | os.PathLike[str], what: str, content: bytes | str) -> None:
    """Replace a file.

    Parameters
    ----------
    path : str or os.PathLike
        The file. A link stays a link: the file that it leads to is replaced.
    what : str
        What the file is, in messages, such as "log".
    content : bytes or str
        The whole content; text is encoded as UTF-8.

    Raises
    ------
    FileError
        When it cannot be written. The file that was there is unchanged, and nothing else is left.
        Also when the path is a folder, a device or a pipe.
    """
    with replaced_file(path, what) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_files(contents: Mapping[Path, bytes], what: str) -> None:
    """Replace several files; the first one is replaced only after all new contents are on the disk.

    Parameters
    ----------
    contents : mapping of Path to bytes
        The content of each.
    what : str
        What the files are, in messages.

    Raises
    ------
    FileError
        When one of them cannot be written. All files are then unchanged, unless a rename failed.
        Also when one of the paths is a folder, a device or a pipe.
    """
    with contextlib.ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(replaced_file(path, what))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def replaced_file(path: str | os.PathLike[str], what: str) -> Iterator[BinaryIO]:
    """Yield a file to write to, which replaces the file at the path once all its content is on the disk.

    The new file has the mode of the old one, or the mode that the umask allows if there was none. If the caller raises, nothing
    changes.

    Parameters
    ----------
    path, what
        As for `write_file`.

    Yields
    ------
    file
        A binary file that can seek.

    Raises
    ------
    FileError
        When it cannot be written. The file that was there is unchanged, and nothing else is left.
        Also when the path is a folder, a device or a pipe.
    """
    target, mode = _target_of(Path(path), what)
    try:
        _remove_abandoned(target)
        temporary, handle = _open_temporary(target)
    except OSError as error:
        raise _folder_error(error, what, Path(path)) from error
    try:
        # Open for reading too: then an error of NumPy's write has the reason of the system.
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if mode is not None:
                system.set_mode(file.fileno(), mode)
            os.fsync(file.fileno())
            system.replace(temporary, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise FileError(
                f"cannot write the {what} '{path}': {_reason(error)}; "
                + ("no file is left" if mode is None else "the existing file is unchanged"),
                error.errno,
            ) from error
        raise
    system.sync_folder(target.parent)


def _folder_error(error: OSError, what: str, path: Path) -> FileError:
    """Return the error of a folder in which no file can be created, in the words of the core."""
    folder = path.parent
    if os.path.isdir(folder):
        why = f"cannot create a file in the folder '{folder}': {_reason(error)}"
    elif os.path.exists(folder):
        why = f"'{folder}' is not a folder"
    elif isinstance(error, FileNotFoundError):
        why = f"there is no folder '{folder}'"
    else:
        why = _reason(error)
    return FileError(f"cannot write the {what} '{path}': {why}", error.errno)


def make_folder(path: str | os.PathLike[str], what: str, exist_ok: bool = True) -> None:
    """Create a folder, and those above it.

    Parameters
    ----------
    path : str or os.PathLike
        The folder.
    what : str
        What the folder is for, in messages, such as "artifacts".
    exist_ok : bool, default True
        Whether the folder may exist already.

    Raises
    ------
    FileExistsError
        When the folder exists and must not.
    FileError
        When the system refuses to create the folder.
    """
    try:
        Path(path).mkdir(parents=True, exist_ok=exist_ok)
    except OSError as error:
        reason = error
        if isinstance(error, FileExistsError):
            if Path(error.filename) != Path(path):  # on Windows: a file has the name of a folder above
                reason = NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            elif not exist_ok:
                raise
        raise FileError(
            f"cannot create the folder '{path}' for the {what}: {_reason(reason)}", reason.errno
        ) from error


@contextlib.contextmanager
def folder_beside(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """Yield a temporary folder in the folder of a file, for what is needed to write the file.

    The folder for temporary files may be in memory, or too small.

    Raises
    ------
    FileError
        When the folder cannot be created, or a file in it cannot be written.
    """
    target = Path(path)
    try:
        made = tempfile.TemporaryDirectory(prefix=".ortrain-", dir=target.absolute().parent)
    except OSError as error:
        raise _folder_error(error, what, target) from error
    with made as name:
        try:
            yield Path(name)
        except OrtrainError as error:
            if name not in str(error):
                raise
            number = error.errno if isinstance(error, FileError) else None
            raise FileError(f"cannot write the {what} '{path}': {error}", number) from error


@contextlib.contextmanager
def appending(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Turn the error of a write to a growing file into an error that names the file.

    Raises
    ------
    FileError
        When the system refuses the write.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"cannot write the {what} '{path}': {_reason(error)}", error.errno) from error


def link_file(source: str | os.PathLike[str], path: str | os.PathLike[str], what: str) -> None:
    """Give a file a second name, and replace a file of that name. If the file system has no links, the file is copied.

    Programs replace files instead of changing them: a write under one of the two names leaves the file under the other name
    unchanged.

    Parameters
    ----------
    source : str or os.PathLike
        The file.
    path : str or os.PathLike
        Its other name.
    what : str
        What the file is, in messages.

    Raises
    ------
    FileError
        When that is not possible. A file that already had the second name is then unchanged.
    """
    target, _ = _target_of(Path(path), what)
    source = os.path.realpath(source)
    with contextlib.suppress(OSError):
        if os.path.samefile(source, target):
            return
    temporary = str(target.with_name(f"{_prefix(target)}{os.getpid()}-{next(_counter)}"))
    try:
        _remove_abandoned(target)
        os.link(source, temporary)
        system.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        copy_file(source, path, what)
        return
    system.sync_folder(target.parent)


def move_file(path: Path, target: Path, what: str) -> None:
    """Give a file another name, which may be in another folder of the same file system.

    Parameters
    ----------
    path : Path
        The file.
    target : Path
        The new name, which no file has.
    what : str
        What the file is, in messages.

    Raises
    ------
    FileError
        When the system refuses that.
    """
    try:
        os.rename(path, target)
    except OSError as error:
        raise FileError(
            f"cannot move the {what} '{path}' to '{target}': {_reason(error)}", error.errno
        ) from error


def copy_file(source: str | os.PathLike[str], path: str | os.PathLike[str], what: str) -> None:
    """Replace a file by a copy of another.

    Parameters
    ----------
    source : str or os.PathLike
        The file that is copied.
    path, what
        As for `write_file`.

    Raises
    ------
    FileError
        When it cannot be written. The file that was there is unchanged.
    """
    with open(source, "rb") as given, replaced_file(path, what) as file:
        shutil.copyfileobj(given, file)


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _target_of(path: Path, what: str) -> tuple[Path, int | None]:
    """Return the file to replace or create, and its mode if it exists."""
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target, None
    except OSError as error:
        raise _folder_error(error, what, path) from error
    if not stat.S_ISREG(mode):
        found, number = ("a folder", errno.EISDIR) if stat.S_ISDIR(mode) else ("a special file", errno.EINVAL)
        raise FileError(f"cannot write the {what} '{path}': expected a file name, found {found}", number)
    return target, stat.S_IMODE(mode)


def _prefix(target: Path) -> str:
    """Return the beginning of the names of a file's temporary files. The process ID and a number follow."""
    name = os.fsencode(target.name)
    if len(name) > _MOST_BYTES:
        digest = hashlib.sha256(name).hexdigest()[:16].encode()
        name = os.fsencode(name[: _MOST_BYTES - 17].decode(errors="ignore")) + b"-" + digest
    return os.fsdecode(name) + _TEMPORARY


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of this file whose processes were killed while they wrote."""
    remove_abandoned(target.parent, re.escape(_prefix(target).removesuffix(_TEMPORARY)))


def remove_abandoned(folder: Path, names: str) -> None:
    """Remove temporary files whose processes were killed while they wrote. The file of a running process is locked.

    Parameters
    ----------
    folder : Path
        The folder.
    names : str
        A regular expression for the names of the files that the processes wrote, of at most 200 bytes.

    Raises
    ------
    OSError
        When the system refuses to list the folder, unless the process lacks the permission to read it.
    """
    pattern = re.compile(f"(?:{names}){re.escape(_TEMPORARY)}[0-9]+-[0-9]+")
    try:
        with os.scandir(folder) as entries:
            found = [entry.path for entry in entries if pattern.fullmatch(entry.name)]
    except PermissionError:
        return  # the process may write to this folder, but not read it
    for name in found:
        with contextlib.suppress(OSError):  # another process has locked the file, or has just removed it
            system.remove_unlocked(name)


def _open_temporary(target: Path) -> tuple[str, int]:
    """Create a file that is locked until it is closed: other processes remove unlocked files as abandoned."""
    while True:
        name = str(target.with_name(f"{_prefix(target)}{os.getpid()}-{next(_counter)}"))
        with contextlib.suppress(FileExistsError):
            file = system.create_locked(name)
            if file is not None:
                return name, file
