"""C headers of the function tables, written only from the recorded slots: nothing here uses the spec or codegen."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path

TABLES = ("OrtApi", "OrtCompileApi", "OrtModelEditorApi", "OrtTrainingApi")
LAST_SLOT = {19: 279, 23: 389, 30: 425, 32: 428}
"""The last slot of `OrtApi` in some releases of onnxruntime, 1.19 to 1.32."""

DATA = Path(__file__).resolve().parents[1] / "data"
BUILT_IN = {"const", "void", "char", "int", "float", "bool", "size_t", "ORTCHAR_T"}

OPENING = """\
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#define ORTCHAR_T char
"""

BASE = """\
typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;
const OrtApiBase* OrtGetApiBase(void);
"""


@dataclass(frozen=True)
class Slot:
    """A row of a table, as C declares it."""

    number: int
    name: str
    returns: str
    parameters: list[str]


def plain(text: str) -> str:
    """A declaration without what C cannot or need not express."""
    return re.sub(r"\b(nullable|enum|struct)\s+", "", text).strip()


def slots(table: str) -> list[Slot]:
    """The slots of a table, in order."""
    with (DATA / f"{table}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["slot"]) for row in rows] == list(range(len(rows)))
    return [
        Slot(
            int(row["slot"]),
            row["name"],
            plain(row["returns"]),
            [plain(p) for p in re.split(r",(?![^()]*\))", row["parameters"]) if plain(p) not in ("", "void")],
        )
        for row in rows
    ]


def type_of(parameter: str) -> str:
    """The type of a parameter declared with its name; an array decays to a pointer."""
    if "(*" in parameter:
        return re.sub(r"\(\*\w+\)", "(*)", parameter)
    array = parameter.endswith("[]")
    return re.sub(r"\s*\w+(\[\])?$", "", parameter) + ("*" if array else "")


def is_function(name: str) -> bool:
    """Whether a type that is passed by value is a pointer to a function; otherwise it is an enumeration."""
    return bool(re.search(r"(Fn|FnPtr|Func|Function|Delegate)$", name))


def header(last_slot: int = LAST_SLOT[32]) -> str:
    """The header of a release whose `OrtApi` ends with that slot."""
    tables = {table: slots(table) for table in TABLES}
    tables["OrtApi"] = tables["OrtApi"][: last_slot + 1]
    every = [slot for rows in tables.values() for slot in rows]
    types = {slot.returns for slot in every} | {type_of(p) for slot in every for p in slot.parameters}
    names = sorted({n for kind in types for n in re.findall(r"[A-Za-z_]\w*", kind)} | set(TABLES))
    by_value = {kind.removeprefix("const ") for kind in types}
    lines = [OPENING]
    for name in names:
        if name in BUILT_IN or re.fullmatch(r"u?int\d+_t", name):
            continue
        if name not in by_value:
            lines.append(f"typedef struct {name} {name};")
        else:
            lines.append(f"typedef void (*{name})(void);" if is_function(name) else f"typedef int {name};")
    for table, rows in tables.items():
        lines.append(f"struct {table} {{")
        for slot in rows:
            lines.append(f"  {slot.returns} (*{slot.name})({', '.join(slot.parameters) or 'void'});")
        lines.append("};")
    return "\n".join([*lines, BASE])


def argument(kind: str) -> str:
    """A harmless argument: memory for a possible result, else text, null or 0."""
    if kind == "const char*" or kind == "const ORTCHAR_T*":
        return '"x"'
    if "(*)" in kind:
        return "NULL"
    if kind.endswith("*"):
        return "NULL" if kind.startswith("const ") and kind.count("*") == 1 else f"({kind})room()"
    return "NULL" if is_function(kind) else "0"


def called_elsewhere() -> set[tuple[str, str]]:
    """The tables and slots that the programs in tests/dropin call."""
    sources = [source.read_text() for source in (Path(__file__).parents[1] / "dropin").glob("*.[ch]")]
    variables = {"OrtApi": "ort", "OrtCompileApi": "compiler", "OrtModelEditorApi": "editor"}
    return {
        (table, name)
        for table, variable in variables.items()
        for source in sources
        for name in re.findall(rf"\b{variable}->(\w+)", source)
    }


def sweep() -> str:
    """C code that counts calls by slot, and calls every slot that no program calls."""
    elsewhere = called_elsewhere()
    lines = []
    for table in TABLES:
        rows = slots(table)
        numbers = ", ".join(f"{table}_{slot.name} = {slot.number}" for slot in rows)
        lines += [f"enum {{ {numbers} }};", f"static char called_{table}[{len(rows)}];"]
    for table in TABLES:
        lines.append(f"static void sweep_{table}(const {table}* table) {{")
        lines.append(f"  (void)table, (void)called_{table};")
        for slot in slots(table):
            if (table, slot.name) in elsewhere:
                lines.append(f'  says("{table}", {slot.number}, "{slot.name}", "called");')
                continue
            call = f"table->{slot.name}({', '.join(argument(type_of(p)) for p in slot.parameters)})"
            report = f'"{table}", {slot.number}, "{slot.name}"'
            lines.append(f"  if (!called_{table}[{slot.number}]) {{")
            lines.append(f'    begins("{table}", {slot.number}, "{slot.name}");')
            if slot.returns == "OrtStatus*":
                lines.append(f"    refuses({report}, {call});")
            elif slot.returns == "void":
                lines += [f"    {call};", f'    says({report}, "nothing");']
            else:
                lines += [f"    if ({call}) wrong({report});", f'    says({report}, "zero");']
            lines.append("  } else {")
            lines += [f'    says({report}, "called");', "  }"]
        lines.append("}")
    return "\n".join(lines) + "\n"
