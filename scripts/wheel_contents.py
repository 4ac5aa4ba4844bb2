"""Write a page of the documentation with the contents of a wheel and with what auditwheel says about it.

Usage: scripts/wheel_contents.py WHEEL PAGE
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from subprocess import run

LISTED = (".so", ".dll", ".pyd", ".1")
"""Files with these endings have their own rows, like metadata and licences. Other files are counted by folder."""

TEXT = """\
<!-- Written by `make test-manylinux`. -->
# Contents of a wheel

{name} has {size} kilobytes and {count} files, which
take {unpacked} kilobytes when they are installed. Sizes are in kilobytes (1,000 bytes). clang compiled this library;
gcc makes a smaller one ([Size of the library](size.md)), which wheels of cibuildwheel contain.

| file or folder | files | installed |
| --- | ---: | ---: |
{rows}

`auditwheel show` prints:

```text
{audit}
```
"""


def row_of(path: str) -> str:
    """Return the row that counts a file: the file itself, or its folder in the package."""
    parts = path.split("/")
    if path.endswith(LISTED) or ".dist-info" in parts[0]:
        return path
    return "/".join(parts[:2]) + "/" if len(parts) > 2 else f"{parts[0]}/*{Path(path).suffix}"


def kilobytes(size: int) -> str:
    """Return a size in kilobytes; files that are not empty have at least one."""
    return f"{max(round(size / 1000), min(size, 1)):,}"


def page(wheel: Path, audit: str) -> str:
    """Return the text of the page."""
    with zipfile.ZipFile(wheel) as archive:
        files = [info for info in archive.infolist() if not info.is_dir()]
    sizes: dict[str, list[int]] = {}
    for info in files:
        sizes.setdefault(row_of(info.filename), []).append(info.file_size)
    rows = [
        f"| `{row}` | {len(sizes[row])} | {kilobytes(sum(sizes[row]))} |"
        for row in sorted(sizes, key=lambda row: (".dist-info" in row, row))
    ]
    return TEXT.format(
        name=f"`{wheel.name}`",
        size=kilobytes(wheel.stat().st_size),
        count=len(files),
        unpacked=kilobytes(sum(info.file_size for info in files)),
        rows="\n".join(rows),
        audit=audit.strip(),
    )


def main() -> None:
    """Write the page."""
    wheel, target = map(Path, sys.argv[1:])
    environment = {**os.environ, "PYTHONHASHSEED": "0"}  # sets of versions are printed in the same order
    shown = run(
        ["auditwheel", "show", wheel], check=True, capture_output=True, encoding="utf-8", env=environment
    )
    target.write_text(page(wheel, shown.stdout), encoding="utf-8")


if __name__ == "__main__":
    main()
