"""The bill of materials in a wheel names the projects that it is compiled from."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]
NOTICES = ROOT / "licenses/third-party.txt"


def bill_of_materials() -> dict[str, Any]:
    """Return the bill that the installed wheel carries where PEP 770 places it."""
    files = importlib.metadata.files("ortrain") or []
    found = [file for file in files if file.match("ortrain-*.dist-info/sboms/ortrain.cdx.json")]
    assert len(found) == 1, "the wheel has no dist-info/sboms/ortrain.cdx.json"
    bill: dict[str, Any] = json.loads(found[0].read_text())
    return bill


def test_the_bill_names_the_projects_of_the_licence_notices() -> None:
    names = {component["name"] for component in bill_of_materials()["components"]}
    notices = re.findall(r"^(\w+) +Copyright", NOTICES.read_text(), re.MULTILINE)
    assert names == {name.lower() for name in notices}


def test_the_bill_has_versions_and_licences() -> None:
    bill = bill_of_materials()
    licences = {c["name"]: [entry["license"]["id"] for entry in c["licenses"]] for c in bill["components"]}
    assert licences == {
        "highway": ["Apache-2.0"],
        "flatbuffers": ["Apache-2.0"],
        "pybind11": ["BSD-3-Clause"],
    }
    for component in [bill["metadata"]["component"], *bill["components"]]:
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", component["version"]), component["name"]
        assert component["purl"].removesuffix(component["version"]).endswith(("@", "@v"))
    versions = {component["name"]: component["version"] for component in bill["components"]}
    assert versions["pybind11"] == importlib.metadata.version("pybind11")
    assert bill["metadata"]["component"]["version"] == importlib.metadata.version("ortrain")


PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(ortrain VERSION 0.1.0 LANGUAGES NONE)
set(HIGHWAY_INCLUDE headers)
set(FLATBUFFERS_INCLUDE headers)
set(pybind11_VERSION 2.13.6)
set(SKBUILD_METADATA_DIR metadata)
include(@ROOT@/cmake/bill_of_materials.cmake)
"""


def test_a_library_of_ziglang_lists_its_cpp_library(tmp_path: pathlib.Path) -> None:
    headers = {
        "headers/hwy/highway.h": "#define HWY_MAJOR 1\n#define HWY_MINOR 0\n#define HWY_PATCH 7\n",
        "headers/flatbuffers/base.h": "".join(
            f"#define FLATBUFFERS_VERSION_{part} 2\n" for part in ("MAJOR", "MINOR", "REVISION")
        ),
        "tools/python/ziglang/lib/libcxx/include/__config": "#  define _LIBCPP_VERSION 210108\n",
        "CMakeLists.txt": PROJECT.replace("@ROOT@", str(ROOT)),
    }
    for name, text in headers.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["cmake", "-S", ".", "-B", "build", f"-DZIG_TOOLS={tmp_path}/tools"],
        cwd=tmp_path,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    bill = json.loads((tmp_path / "build/ortrain.cdx.json").read_text())
    component = bill["components"][-1]
    assert (component["name"], component["version"]) == ("libc++", "21.1.8")
    assert component["licenses"] == [{"expression": "Apache-2.0 WITH LLVM-exception"}]
    assert component["purl"] in bill["dependencies"][0]["dependsOn"]
    assert "libc++" in NOTICES.read_text()
