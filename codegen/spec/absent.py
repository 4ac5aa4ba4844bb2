"""Absent providers: the rows of their table become calls, which the rest of the generator treats like other calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from codegen.spec.source import Document, Problem

OWNER = "absent"
"""The prefixes of ``core`` before the name of the provider: such a call fails, or frees an object that cannot exist."""

_PLACEHOLDER = "provider_options"
_ERRORS = [{"code": "fail", "when": "always; the message names the available providers"}]


def expand(documents: list[Document]) -> Iterable[Problem]:
    """Add the calls of absent providers to the documents that list them; return the problems of the rows."""
    forms = {form["name"]: form for document in documents for form in document.data.get("absent_forms", [])}
    for document in documents:
        calls = document.data.get("calls", [])
        for i, row in enumerate(document.data.get("absent_calls", [])):
            trail = ("absent_calls", i)
            if row["form"] not in forms:
                known = ", ".join(forms)
                message = f"expected one of the absent_forms {known}, found '{row['form']}'"
                yield document.problem((*trail, "form"), message)
                continue
            form = forms[row["form"]]
            takes_options = any(p["type"] == _PLACEHOLDER for p in form["parameters"])
            if takes_options != ("options" in row):
                expected = "the key 'options'" if takes_options else "no key 'options'"
                yield document.problem(trail, f"expected {expected} for the form {row['form']}")
                continue
            document.lines[("calls", len(calls))] = document.line(trail)
            calls.append(_call(row, form))
        if calls:
            document.data["calls"] = calls


def _call(row: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    call = {
        "name": row["name"],
        "table": "general",
        "slot": row["slot"],
        "group": "providers",
        "summary": form.get("summary", f"Fails: there is no {row['provider']} provider."),
        "parameters": [_parameter(p, row) for p in form["parameters"]],
        "core": f"{OWNER}::{row['provider']}",
    }
    return call | ({"returns": form["returns"]} if "returns" in form else {"errors": _ERRORS})


def _parameter(parameter: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    found = dict(parameter)
    if found["type"] == _PLACEHOLDER:
        found["type"] = row["options"]
    if found["name"] == _PLACEHOLDER:
        found["name"] = row.get("parameter", f"{row['provider'].lower()}_options")
    return found
