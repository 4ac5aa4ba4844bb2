"""The native library under the names by which programs linked with onnxruntime look for it."""

from __future__ import annotations

from pathlib import Path

from ortrain.errors import OrtrainError

LIBRARIES = {"libonnxruntime.so": "libortrain.so", "libonnxruntime.so.1": "alias/libonnxruntime.so.1"}
"""The library for linkers, which is the native library, and the library for linked programs, which calls it."""


def library_folder() -> Path:
    """Return the folder of the package with the native libraries."""
    return Path(__file__).resolve().parent / "lib"


def make_alias(folder: Path) -> list[Path]:
    """Fill a folder with links to the native library, to all that it needs, and to the library with onnxruntime's name.

    With the folder on the library path, programs that were linked with ``libonnxruntime`` of any release run with
    ``libortrain`` in its place. A library looks for those that it needs next to the path from which it was loaded, so
    these get links too.

    Parameters
    ----------
    folder : Path
        The folder for the links; it is created if it does not exist. Existing links are replaced.

    Returns
    -------
    list of Path
        The links.

    Raises
    ------
    OrtrainError
        When a file other than a link has that name, or the package lacks one of the libraries, as on systems other than
        Linux.
    OSError
        When the folder cannot be written to.
    """
    libraries = library_folder()
    targets = {name: libraries / file for name, file in LIBRARIES.items()}
    missing = [str(target) for target in targets.values() if not target.is_file()]
    if missing:
        raise OrtrainError(
            f"alias: expected the libraries {', '.join(missing)}, found none; they are built for Linux"
        )
    targets |= {file.name: file for file in libraries.glob("lib*.so*")}
    folder.mkdir(parents=True, exist_ok=True)
    links = {folder / name: target for name, target in sorted(targets.items())}
    in_the_way = [str(link) for link in links if link.exists() and not link.is_symlink()]
    if in_the_way:
        raise OrtrainError(
            f"alias: expected a folder without these files, found {', '.join(in_the_way)}; nothing was changed"
        )
    for link, target in links.items():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    return list(links)
