"""The native library under the names by which programs built for onnxruntime look for it."""

from __future__ import annotations

from pathlib import Path

from ortrain.errors import OrtrainError

NAMES = ("libonnxruntime.so", "libonnxruntime.so.1")
"""The name that linkers look for, and the name that linked programs look for."""


def library_folder() -> Path:
    """Return the folder of the package with the native libraries."""
    return Path(__file__).resolve().parent / "lib"


def make_alias(folder: Path) -> list[Path]:
    """Fill a folder with links to the native library and to all that it needs.

    With the folder on the library path, programs that were linked with ``libonnxruntime`` of any release find
    ``libortrain`` in its place. The library looks for the libraries that it needs next to the path from which it was
    loaded, so these get links too.

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
        When a file other than a link has that name, or the package has no library that can be linked to: none, or one
        that was built with some of the operators and without ``ORTRAIN_ALIAS``.
    OSError
        When the folder cannot be written to.
    """
    libraries = library_folder()
    if not (libraries / "libortrain.so").is_file():
        raise OrtrainError(f"alias: expected libortrain.so in {libraries}, found none")
    # Its table of symbol versions; a library with some of the operators has one only with that option.
    if b"VERS_1.19.2\0" not in (libraries / "libortrain.so").read_bytes():
        raise OrtrainError(
            f"alias: {libraries / 'libortrain.so'} has no symbols of onnxruntime's releases, which programs linked with "
            "libonnxruntime look for; build it with -DORTRAIN_ALIAS=ON"
        )
    targets = {name: libraries / "libortrain.so" for name in NAMES}
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
