"""The manifest of the Swift package, its binary packages, and the script for a Mac, as far as they can be tested elsewhere."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/swift_package.py"
TRIPLE = "x86_64-unknown-linux-gnu"


def run(*arguments: object, cwd: pathlib.Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)], cwd=cwd, capture_output=True, text=True
    )


@pytest.fixture
def bundle(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a bundle of a library for two systems."""
    (tmp_path / "libortrain.a").write_bytes(b"!<arch>\n")
    folder = tmp_path / "ortrain.artifactbundle"
    for triple in (TRIPLE, "aarch64-unknown-linux-gnu"):
        run("bundle", tmp_path / "libortrain.a", triple, folder).check_returncode()
    return folder


def dump(folder: pathlib.Path) -> dict[str, Any]:
    """Return the manifest in a folder as Swift's package manager understands it."""
    command = [
        "swift",
        "package",
        "--package-path",
        folder,
        "--scratch-path",
        folder / "scratch",
        "dump-package",
    ]
    manifest: dict[str, Any] = json.loads(subprocess.check_output(command, stderr=subprocess.DEVNULL))
    return manifest


def core_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the target with the C library."""
    (core,) = (target for target in manifest["targets"] if target["name"] == "COrtrain")
    return core


def test_a_bundle_describes_the_library_of_each_system(bundle: pathlib.Path) -> None:
    info = json.loads((bundle / "info.json").read_text())
    artifact = info["artifacts"]["COrtrain"]
    assert artifact["type"] == "staticLibrary"
    assert [variant["supportedTriples"] for variant in artifact["variants"]] == [
        ["aarch64-unknown-linux-gnu"],
        [TRIPLE],
    ]
    for variant in artifact["variants"]:
        assert (bundle / variant["path"]).is_file()
        metadata = variant["staticLibraryMetadata"]
        assert all((bundle / folder).is_dir() for folder in metadata["headerPaths"])
        module_map = bundle / metadata["moduleMapPath"]
        assert "link " not in module_map.read_text()
        for header in re.findall(r'header "(.+)"', module_map.read_text()):
            included = re.findall(r'#include "(.+)"', (module_map.parent / header).read_text())
            assert included
            assert all((module_map.parent / name).is_file() for name in included)


def test_a_bundle_has_every_licence(bundle: pathlib.Path) -> None:
    assert {path.name for path in (bundle / "licenses").iterdir()} == {
        path.name for path in (ROOT / "licenses").iterdir()
    }
    assert (bundle / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_same_files_give_the_same_archive(bundle: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for name in ("a.zip", "b.zip"):
        os.utime(bundle / "info.json", (1, hash(name) % 10**9))
        run("zip", bundle, tmp_path / name).check_returncode()
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert f"ortrain.artifactbundle/{TRIPLE}/libortrain.a" in archive.namelist()


def test_a_missing_library_is_named(tmp_path: pathlib.Path) -> None:
    result = run("bundle", tmp_path / "libortrain.a", TRIPLE, tmp_path / "ortrain.artifactbundle")
    assert result.returncode != 0
    assert f"{tmp_path}/libortrain.a does not exist" in result.stderr


def test_a_release_has_the_addresses_and_checksums_of_its_archives(tmp_path: pathlib.Path) -> None:
    shutil.copy(ROOT / "Package.swift", tmp_path)
    for system in ("apple", "linux"):
        (tmp_path / f"{system}.zip").write_bytes(system.encode())
        address = f"https://example.org/{system}.zip"
        run("release", system, f"{system}.zip", address, cwd=tmp_path).check_returncode()
        checksum = hashlib.sha256(system.encode()).hexdigest()
        line = f'let {system}Archive: Archive? = ("{address}", "{checksum}")'
        assert line in (tmp_path / "Package.swift").read_text().splitlines()
    result = run("release", "linux", "linux.zip", "http://example.org/linux.zip", cwd=tmp_path)
    assert "only archives at https:// addresses, found http://example.org/linux.zip" in result.stderr


@pytest.mark.skipif(not shutil.which("swift") or sys.platform != "linux", reason="needs Swift for Linux")
def test_swift_takes_the_library_from_pkg_config_in_a_checkout_and_from_an_archive_in_a_release(
    tmp_path: pathlib.Path,
) -> None:
    shutil.copy(ROOT / "Package.swift", tmp_path)
    manifest = dump(tmp_path)
    core = core_of(manifest)
    assert (core["type"], core["pkgConfig"]) == ("system", "ortrain")
    (classes,) = (t for t in manifest["targets"] if t["name"] == "onnxruntime_training_objc")
    (setting,) = classes["settings"]
    assert setting["condition"]["platformNames"] == ["ios", "macos"]
    assert setting["kind"] == {"linkedLibrary": {"_0": "c++"}}
    (tmp_path / "linux.zip").write_bytes(b"linux")
    address = "https://example.org/linux.zip"
    run("release", "linux", "linux.zip", address, cwd=tmp_path).check_returncode()
    core = core_of(dump(tmp_path))
    assert (core["type"], core["url"]) == ("binary", address)
    assert core["checksum"] == hashlib.sha256(b"linux").hexdigest()


def test_the_manifest_the_pod_and_the_script_name_the_same_oldest_systems() -> None:
    manifest = (ROOT / "Package.swift").read_text()
    pod = (ROOT / "bindings/objc/ortrain-training-objc.podspec").read_text()
    script = (ROOT / "scripts/xcframework.sh").read_text()
    (ios, macos) = re.findall(r"\.(?:iOS|macOS)\(\.v(\d+)\)", manifest)
    assert re.findall(r"deployment_target = '(\d+)\.0'", pod) == [ios, macos]
    assert f"macos={macos}.0 ios={ios}.0" in script


def stand_in(folder: pathlib.Path, name: str, body: str = "") -> None:
    """Write a program that records its arguments and then runs `body`."""
    path = folder / name
    path.write_text(f'#!/usr/bin/env bash\necho "{name} $*" >>"$RECORD"\n{body}\n')
    path.chmod(0o755)


def test_an_xcframework_is_made_of_a_library_for_each_system_of_apple(tmp_path: pathlib.Path) -> None:
    """The commands for Xcode, which here are recorded instead of run."""
    tools, build = tmp_path / "tools", tmp_path / "build"
    tools.mkdir()
    for name in ("ninja", "xcrun", "flatc"):
        stand_in(tools, name)
    stand_in(tools, "brew", 'echo "/opt/homebrew/opt/$2"')
    stand_in(tools, "cmake", 'if [ "$1" = --build ]; then mkdir -p "$2"; echo library >"$2/libortrain.a"; fi')
    stand_in(tools, "xcodebuild", 'for last; do :; done; mkdir -p "$last"')
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(tmp_path / "record")}
    subprocess.run([ROOT / "scripts/xcframework.sh", build], check=True, env=environment)
    record = (tmp_path / "record").read_text().splitlines()
    configured = [line.split() for line in record if line.startswith("cmake -S")]
    systems = [
        (
            options["CMAKE_OSX_SYSROOT"],
            options["CMAKE_SYSTEM_NAME"],
            options["CMAKE_OSX_DEPLOYMENT_TARGET"],
            options["CMAKE_OSX_ARCHITECTURES"],
        )
        for options in (dict(word[2:].split("=", 1) for word in line if "=" in word) for line in configured)
    ]
    assert systems == [
        ("macosx", "Darwin", "12.0", "arm64"),
        ("iphoneos", "iOS", "15.0", "arm64"),
        ("iphonesimulator", "iOS", "15.0", "arm64"),
    ]
    (command,) = (line.split() for line in record if line.startswith("xcodebuild"))
    libraries = [pathlib.Path(command[i + 1]) for i, word in enumerate(command) if word == "-library"]
    folders = {pathlib.Path(command[i + 1]) for i, word in enumerate(command) if word == "-headers"}
    assert [library.parent.name for library in libraries] == ["macosx", "iphoneos", "iphonesimulator"]
    assert all(library.read_text() == "library\n" for library in libraries)
    (headers,) = folders
    assert {"module.modulemap", "shim.h", "onnxruntime_training_c_api.h"} <= {
        path.name for path in (headers / "COrtrain").iterdir()
    }
    assert command[-2:] == ["-output", str(build / "ortrain.xcframework")]
    assert (build / "ortrain.xcframework/licenses/third-party.txt").is_file()


def test_a_machine_without_xcode_is_told_what_is_missing(tmp_path: pathlib.Path) -> None:
    if shutil.which("xcodebuild"):
        pytest.skip("this machine has Xcode")
    result = subprocess.run([ROOT / "scripts/xcframework.sh", tmp_path], capture_output=True, text=True)
    assert result.returncode != 0
    assert re.search(r"xcframework: \w+ is not installed; this script needs a Mac with Xcode", result.stderr)
