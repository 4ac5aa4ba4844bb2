"""Create the files from which Swift's package manager gets the C library, and release a version of the package.

    python scripts/swift_package.py headers FOLDER
    python scripts/swift_package.py bundle LIBRARY TRIPLE BUNDLE
    python scripts/swift_package.py zip BUNDLE ARCHIVE
    python scripts/swift_package.py release (apple|linux) ARCHIVE ADDRESS

`headers` writes the C headers with a module map into a folder, for `xcodebuild -create-xcframework`. `bundle` writes
an artifact bundle of a static library for one system, or adds the system to a bundle. `zip` packs an artifact bundle or an
xcframework. `release` writes the address at which an archive will be published, and the checksum of the archive, into
Package.swift; the commit with this change gets the version tag.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import re
import shutil
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODULE = "COrtrain"
# A fixed time, so that the same files give the same archive and checksum.
TIME = (1980, 1, 1, 0, 0, 0)


def version() -> str:
    """Return the version of the project, as CMake knows it."""
    found = re.search(r"project\(ortrain VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found[1]


def write_headers(folder: pathlib.Path) -> None:
    """Write the C headers and a module map that does not name a library, since the package manager passes its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for header in sorted((ROOT / "core/include").glob("*_c_api.h")):
        shutil.copy(header, folder)
    module = ROOT / "bindings/swift/Sources" / MODULE
    shutil.copy(module / "shim.h", folder)
    lines = (module / "module.modulemap").read_text().splitlines(keepends=True)
    (folder / "module.modulemap").write_text("".join(line for line in lines if "link " not in line))


def write_bundle(library: pathlib.Path, triple: str, bundle: pathlib.Path) -> None:
    """Add a static library for a system to an artifact bundle (SE-0482), which is made if it does not exist."""
    if not library.is_file():
        sys.exit(
            f"swift_package: {library} does not exist; `make native` with the CMake target `static` builds it"
        )
    write_headers(bundle / "include")
    shutil.copytree(ROOT / "licenses", bundle / "licenses", dirs_exist_ok=True)
    shutil.copy(ROOT / "LICENSE", bundle)
    (bundle / triple).mkdir(exist_ok=True)
    shutil.copy(library, bundle / triple / library.name)
    systems = sorted(path.parent.name for path in bundle.glob(f"*/{library.name}"))
    metadata = {"headerPaths": ["include"], "moduleMapPath": "include/module.modulemap"}
    variants = [
        {"path": f"{name}/{library.name}", "supportedTriples": [name], "staticLibraryMetadata": metadata}
        for name in systems
    ]
    artifact = {"type": "staticLibrary", "version": version(), "variants": variants}
    info = {"schemaVersion": "1.0", "artifacts": {MODULE: artifact}}
    (bundle / "info.json").write_text(json.dumps(info, indent=2) + "\n")


def write_zip(bundle: pathlib.Path, archive: pathlib.Path) -> None:
    """Pack a folder under its name."""
    files = sorted(path for path in bundle.rglob("*") if path.is_file())
    if not files:
        sys.exit(f"swift_package: {bundle} has no files to pack")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for file in files:
            entry = zipfile.ZipInfo((bundle.name / file.relative_to(bundle)).as_posix(), TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            packed.writestr(entry, file.read_bytes())


def write_release(system: str, archive: pathlib.Path, address: str, manifest: pathlib.Path) -> None:
    """Write the address and the checksum of an archive into the manifest of the package."""
    if not address.startswith("https://"):
        sys.exit(f"swift_package: Swift accepts only archives at https:// addresses, found {address}")
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    line = f'let {system}Archive: Archive? = ("{address}", "{checksum}")'
    text, count = re.subn(
        rf"^let {system}Archive: Archive\? = .*$", line, manifest.read_text(), flags=re.MULTILINE
    )
    if count != 1:
        sys.exit(
            f"swift_package: {manifest} should have one line that begins `let {system}Archive`, found {count}"
        )
    manifest.write_text(text)


def main(arguments: list[str]) -> None:
    """Do what the first argument names."""
    match arguments:
        case ["headers", folder]:
            write_headers(pathlib.Path(folder))
        case ["bundle", library, triple, bundle]:
            write_bundle(pathlib.Path(library), triple, pathlib.Path(bundle))
        case ["zip", bundle, archive]:
            write_zip(pathlib.Path(bundle), pathlib.Path(archive))
        case ["release", ("apple" | "linux") as system, archive, address]:
            write_release(system, pathlib.Path(archive), address, pathlib.Path("Package.swift"))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
