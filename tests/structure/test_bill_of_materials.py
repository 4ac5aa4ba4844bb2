"""The bill of materials in a wheel names the projects that it is compiled from."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import re
from typing import Any

NOTICES = pathlib.Path(__file__).parents[2] / "licenses/third-party.txt"


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
