"""The tables in the headers have the slots of the recorded binary layout, with the same types."""

from __future__ import annotations

import csv
import re

import pytest
from spec_copy import ROOT


def declared(header: str, table: str) -> list[tuple[str, str, list[str]]]:
    """Name, return type and parameter types of each function pointer of a struct in the header."""
    text = re.sub(r"/\*.*?\*/", "", (ROOT / "core/include" / header).read_text(), flags=re.DOTALL)
    body = re.search(rf"struct {table} {{(.*?)\n}};", text, re.DOTALL)
    assert body is not None
    rows = re.findall(
        r"(\S[^;{}]*?)\(ORT_API_CALL\* (\w+)\)\((.*?)\) NO_EXCEPTION;", body.group(1), re.DOTALL
    )
    return [(name, plain(returned), parameter_types(parameters)) for returned, name, parameters in rows]


def plain(kind: str) -> str:
    """A type without what does not affect the binary interface: nullable marks, enum, outermost const."""
    kind = re.sub(r"\b(nullable|enum|struct)\b", "", kind)
    kind = re.sub(r"\s+", " ", kind).strip()
    kind = re.sub(r"\s*\*\s*", "*", kind).replace("const*", " const*").replace("* const", "*const").strip()
    kind = re.sub(r"\*const$", "*", kind)
    return kind if "*" in kind else kind.removeprefix("const ")


def parameter_types(parameters: str) -> list[str]:
    """The types of a parameter list; arrays decay to pointers."""
    if parameters.strip() in ("", "void"):
        return []
    types = []
    for parameter in re.split(r",(?![^()]*\))", parameters):
        if "(*" in parameter:
            types.append(re.sub(r"\s+", "", parameter))
            continue
        array = parameter.rstrip().endswith("[]")
        kind = re.sub(r"\s*\w+\s*(\[\])?$", "", parameter.strip())
        types.append(plain(kind + "*" if array else kind))
    return types


@pytest.mark.parametrize(
    ("table", "header"),
    [
        ("OrtApi", "onnxruntime_c_api.h"),
        ("OrtCompileApi", "onnxruntime_c_api.h"),
        ("OrtModelEditorApi", "onnxruntime_c_api.h"),
        ("OrtTrainingApi", "onnxruntime_training_c_api.h"),
    ],
)
def test_every_slot(table: str, header: str) -> None:
    with (ROOT / f"tests/data/{table}.csv").open() as file:
        recorded = list(csv.DictReader(file))
    found = declared(header, table)
    assert len(found) == len(recorded)
    for row, (name, returned, types) in zip(recorded, found, strict=True):
        expected = (row["name"], plain(row["returns"]), parameter_types(row["parameters"]))
        assert (name, returned, types) == expected, f"slot {row['slot']}"
