"""Writing rendered files to the checkout, or the differences between them and the files there."""

from __future__ import annotations

import difflib
from pathlib import Path

from codegen import languages


def stale_files(rendered: dict[str, str], root: Path) -> list[str]:
    """Return the files in generated folders that the generator no longer writes."""
    found = []
    for folder in (f for name in languages.names() for f in languages.language_class(name).folders):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and "__pycache__" not in name and name not in rendered:
                found.append(name)
    return found


def write(rendered: dict[str, str], root: Path) -> list[str]:
    """Write what changed and delete what is stale; return the names of the files touched."""
    return _write(rendered, root, stale_files(rendered, root))


def write_pages(rendered: dict[str, str], folder: Path) -> list[str]:
    """Write the pages of the languages, and delete stale ones, in a folder that has no other pages."""
    there = sorted(path.name for path in folder.glob("*.md"))
    return _write(rendered, folder, [name for name in there if name not in rendered])


def _write(rendered: dict[str, str], root: Path, stale: list[str]) -> list[str]:
    touched = []
    for name, text in rendered.items():
        path = root / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        touched.append(name)
    for name in stale:
        (root / name).unlink()
        touched.append(name)
    return touched


def difference(rendered: dict[str, str], root: Path) -> str:
    """Return a unified diff from the files in the checkout to the rendered ones; empty if they are equal."""
    parts: list[str] = []
    for name in [*rendered, *stale_files(rendered, root)]:
        path = root / name
        there = path.read_text(encoding="utf-8") if path.exists() else ""
        given = rendered.get(name, "")
        if there != given:
            lines = difflib.unified_diff(
                there.splitlines(keepends=True),
                given.splitlines(keepends=True),
                fromfile=f"committed/{name}",
                tofile=f"rendered/{name}",
            )
            parts.extend(lines)
    return "".join(parts)
