"""`OrtrainApi` as the header declares it, and the record of what was served under each of its versions."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "core/include/ortrain_c_api.h"
RECORD = ROOT / "tests/data/OrtrainApi.csv"
COMMAND = "python -m pytest tests/abi/test_own_table.py --record-own-table"


@dataclass(frozen=True)
class Row:
    """A call in its slot, and the version that added it."""

    since: int
    slot: int
    name: str
    returns: str
    parameters: str


def read(text: str) -> list[Row]:
    """The rows of a record."""
    return [
        Row(int(r["since"]), int(r["slot"]), r["name"], r["returns"], r["parameters"])
        for r in csv.DictReader(io.StringIO(text))
    ]


def write(rows: list[Row]) -> str:
    """The text of a record."""
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(asdict(row) for row in rows)
    return text.getvalue()


def declared(header: str) -> tuple[int, list[Row]]:
    """The version that a header states, and its calls as if that version had added all of them."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    version = int(re.findall(r"#define ORTRAIN_API_VERSION (\d+)", text)[0])
    # A callback's parameters matter as much as those of the call that takes it.
    callbacks = re.findall(r"typedef (\w+)\(ORT_API_CALL\* (\w+)\)\((.*?)\);", text, re.DOTALL)
    body = re.findall(r"struct OrtrainApi {(.*?)\n};", text, re.DOTALL)[0]
    calls = re.findall(r"(\S[^;{}]*?)\(ORT_API_CALL\* (\w+)\)\((.*?)\) NO_EXCEPTION;", body, re.DOTALL)
    rows = []
    for slot, (returns, name, parameters) in enumerate(calls):
        plain = re.sub(r"\s+", " ", parameters).strip()
        for result, callback, taken in callbacks:
            plain = re.sub(rf"\b{callback} (\w+)", rf"{result} (*\1)({taken})", plain)
        rows.append(Row(version, slot, name, returns.strip(), plain))
    return version, rows


def faults(record: list[Row], version: int, found: list[Row]) -> list[str]:
    """What a client of a recorded version would find changed, and what is not recorded."""
    wrong = []
    for old in record:
        if old.slot >= len(found):
            wrong.append(
                f"slot {old.slot}, {old.name}, of version {old.since} is gone: clients would call past the end of the table"
            )
            continue
        new = found[old.slot]
        if (old.name, old.returns, old.parameters) != (new.name, new.returns, new.parameters):
            wrong.append(
                f"slot {old.slot} has changed since version {old.since}, and clients compiled then would call it with the "
                f"wrong arguments; leave it, and append a call of another name\n"
                f"  was {old.returns} {old.name}({old.parameters})\n  is  {new.returns} {new.name}({new.parameters})"
            )
    last = max((row.since for row in record), default=0)
    added = [row.name for row in found[len(record) :]]
    if added and version <= last:
        wrong.append(
            f"{', '.join(added)}: appended under version {version}, whose table is recorded; set extension_version in "
            f"spec/library.yaml to {last + 1}, and since of each new call, so that no client finds a shorter table"
        )
    elif added:
        wrong.append(f"{', '.join(added)}: not recorded yet; when the signatures are final, run {COMMAND}")
    elif version != last:
        wrong.append(f"the header states version {version}, which adds no call; version {last} is recorded")
    return wrong


def extended(record: list[Row], version: int, found: list[Row]) -> list[Row]:
    """The record with the calls that a new version appends; ValueError if the version is not new, or changes a recorded call."""
    wrong = [fault for fault in faults(record, version, found) if COMMAND not in fault]
    if wrong:
        raise ValueError("\n".join(wrong))
    return record + found[len(record) :]
