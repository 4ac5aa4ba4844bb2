"""Checking: the schema, then what a schema cannot say. All problems are said at once, each with its place."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema

from codegen.spec.model import Call, Class, Method, Parameter, Spec, Unimplemented, implied_methods
from codegen.spec.source import Document, Problem, SpecError, Trail, read_folder

LISTS = ("tables", "groups", "types", "handles", "opaque", "enums", "callbacks", "structs", "calls")

CORE_CLASSES = {"OrtTrainingSession": "TrainingSession", "OrtCheckpointState": "CheckpointState"}
"""The class of the core behind a handle; a direct call on it needs no body of its own."""


def load(folder: Path) -> Spec:
    """Read and checks the spec in ``folder``.

    Raises
    ------
    SpecError
        With every reason why the spec is refused.
    """
    documents = read_folder(folder)
    problems = list(_schema_problems(documents, folder / "schema.json"))
    if problems:
        raise SpecError(problems)
    problems = list(_Meaning(documents).problems())
    if problems:
        raise SpecError(problems)
    return _build(documents)


def nearest(word: str, words: Iterable[str]) -> str:
    """`` (did you mean x?)`` when one of ``words`` is close to ``word``, else nothing."""
    close = difflib.get_close_matches(word, list(words), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def _schema_problems(documents: list[Document], schema_path: Path) -> Iterable[Problem]:
    validator = jsonschema.Draft202012Validator(json.loads(schema_path.read_text(encoding="utf-8")))
    for document in documents:
        for error in sorted(
            validator.iter_errors(document.data), key=lambda e: document.line(e.absolute_path)
        ):
            yield from _schema_problem(document, error)


def _schema_problem(document: Document, error: jsonschema.ValidationError) -> Iterable[Problem]:
    trail: Trail = tuple(error.absolute_path)
    schema: Any = error.schema
    wanted: Any = error.validator_value
    found: Any = error.instance
    if error.validator == "additionalProperties":
        known = list(schema["properties"])
        for key in found:
            if key not in known:
                message = f"unknown key '{key}'{nearest(key, known)} (expected one of: {', '.join(known)})"
                yield document.problem((*trail, key), message)
    elif error.validator == "required":
        for key in wanted:
            if key not in found:
                what = schema["properties"].get(key, {}).get("description", "")
                note = f" ({what})" if what else ""
                yield document.problem(trail, f"expected the key '{key}'{note}, found {', '.join(found)}")
    elif error.validator == "enum":
        expected = [str(v) for v in wanted]
        message = f"expected one of {', '.join(expected)}, found '{found}'{nearest(str(found), expected)}"
        yield document.problem(trail, message)
    elif error.validator == "type":
        yield document.problem(trail, f"expected {wanted}, found {json.dumps(found)[:60]}")
    else:
        yield document.problem(trail, f"expected {error.validator} {wanted}, found {found!r}")


class _Meaning:
    """What the schema cannot say: names that must exist, slots that must be there once."""

    def __init__(self, documents: list[Document]) -> None:
        self.documents = documents
        self.names: dict[str, dict[str, str]] = {
            key: {} for key in (*LISTS, "unimplemented", "classes", "config_keys")
        }
        self.duplicates: list[Problem] = []
        for document, trail, entry in self._entries(*self.names):
            known = self.names[str(trail[0])]
            place = f"{document.file}:{document.line(trail)}"
            if entry["name"] in known:
                message = f"the name is taken by the entry at {known[entry['name']]}, expected another"
                self.duplicates.append(document.problem(trail, message))
            known.setdefault(entry["name"], place)
        typed = ("types", "handles", "opaque", "enums", "callbacks", "structs")
        self.types = {name for key in typed for name in self.names[key]} | set(self.names["tables"])
        self.calls = {e["name"]: e for _, _, e in self._entries("calls")}
        self.codes = {
            v["name"]
            for _, _, e in self._entries("enums")
            if e["name"] == "OrtErrorCode"
            for v in e["values"]
        }

    def _entries(self, *keys: str) -> Iterable[tuple[Document, Trail, dict[str, Any]]]:
        for document in self.documents:
            for key in keys:
                for i, entry in enumerate(document.data.get(key, [])):
                    yield document, (key, i), entry

    def problems(self) -> Iterable[Problem]:
        yield from self.duplicates
        yield from self._library()
        yield from self._slots()
        for document, trail, entry in self._entries("handles"):
            if "release" in entry and entry["release"] not in self.calls:
                message = f"expected a call of the spec, found '{entry['release']}'"
                yield document.problem((*trail, "release"), message + nearest(entry["release"], self.calls))
        for document, trail, entry in self._entries("calls"):
            yield from self._call(document, trail, entry)
        for document, trail, entry in self._entries("callbacks"):
            yield from self._parameters(document, trail, entry)
        for document, trail, entry in self._entries("classes"):
            yield from self._class(document, trail, entry)
        for document, trail, entry in self._entries("session_config"):
            yield from self._session_config(document, trail, entry)

    def _library(self) -> Iterable[Problem]:
        libraries = [d for d in self.documents if "library" in d.data]
        if len(libraries) != 1:
            files = ", ".join(d.file for d in libraries) or "none"
            yield Problem(
                "spec", 1, "library", f"expected one file that describes the library, found {files}"
            )

    def _slots(self) -> Iterable[Problem]:
        sizes = {e["name"]: (d, t, e["slots"]) for d, t, e in self._entries("tables")}
        taken: dict[tuple[str, int], tuple[str, str]] = {}
        for document, trail, entry in self._entries("calls", "unimplemented"):
            table, slot = entry["table"], entry["slot"]
            if table not in sizes:
                message = f"expected a table of the spec, found '{table}'{nearest(table, sizes)}"
                yield document.problem((*trail, "table"), message)
                continue
            if (table, slot) in taken:
                name, place = taken[table, slot]
                message = f"slot {slot} of {table} is taken by {name} at {place}, expected a free slot"
                yield document.problem((*trail, "slot"), message)
            if slot >= sizes[table][2]:
                message = f"expected a slot below {sizes[table][2]}, the size of {table}, found {slot}"
                yield document.problem((*trail, "slot"), message)
            taken.setdefault(
                (table, slot), (entry["name"], f"{document.file}:{document.line((*trail, 'slot'))}")
            )
        for table, (document, trail, size) in sizes.items():
            missing = [str(s) for s in range(size) if (table, s) not in taken]
            if missing:
                message = (
                    f"expected an entry for all {size} slots, found none for slot {', '.join(missing[:8])}"
                )
                yield document.problem((*trail, "slots"), message)

    def _type(self, document: Document, trail: Trail, name: str) -> Iterable[Problem]:
        if name not in self.types:
            message = f"expected a type, handle, enum, callback or struct of the spec, found '{name}'"
            yield document.problem(trail, message + nearest(name, self.types))

    def _parameters(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        parameters = {p["name"]: p for p in entry.get("parameters", [])}
        for i, parameter in enumerate(entry.get("parameters", [])):
            here: Trail = (*trail, "parameters", i)
            yield from self._type(document, (*here, "type"), parameter["type"])
            if parameters[parameter["name"]] is not parameter:
                yield document.problem(here, "another parameter has this name, expected another")
            for key in ("length", "valid", "typed_by"):
                other = parameter.get(key)
                if other is not None and other not in parameters:
                    known = nearest(other, parameters)
                    message = f"expected a parameter of {entry['name']}, found '{other}'{known}"
                    yield document.problem((*here, key), message)
            length = parameters.get(parameter.get("length", ""))
            if length is not None and length["type"] not in ("size", "int"):
                message = (
                    f"expected a length of type size or int, found {length['name']} of type {length['type']}"
                )
                yield document.problem((*here, "length"), message)
            result = parameter.get("direction", "in") != "in"
            if result and parameter["type"] in self.names["handles"] and "owner" not in parameter:
                yield document.problem(
                    here, "expected the key 'owner', for the result is a handle, found none"
                )
            if not result and "owner" in parameter:
                yield document.problem(
                    (*here, "owner"), "expected no owner, for the parameter is no result, found one"
                )

    def _call(self, document: Document, trail: Trail, call: dict[str, Any]) -> Iterable[Problem]:
        yield from self._parameters(document, trail, call)
        if call["group"] not in self.names["groups"]:
            message = f"expected a group of the spec, found '{call['group']}'"
            yield document.problem((*trail, "group"), message + nearest(call["group"], self.names["groups"]))
        if "returns" in call and call["returns"]["type"] != "void":
            yield from self._type(document, (*trail, "returns", "type"), call["returns"]["type"])
        for i, error in enumerate(call.get("errors", [])):
            if error["code"] not in self.codes:
                message = f"expected a code of OrtErrorCode, found '{error['code']}'"
                yield document.problem((*trail, "errors", i), message + nearest(error["code"], self.codes))
        core = call["core"]
        owner = core.split("::")[0]
        if core != "release" and owner not in ("capi", "ortrain", *CORE_CLASSES.values()):
            expected = ", ".join(f"{name}::<method>" for name in CORE_CLASSES.values())
            message = (
                f"expected release, capi::{call['name']}, ortrain::<function> or {expected}, found '{core}'"
            )
            yield document.problem((*trail, "core"), message)
        if owner == "capi" and core != f"capi::{call['name']}":
            message = f"expected capi::{call['name']}, a body of the call's own name, found '{core}'"
            yield document.problem((*trail, "core"), message)

    def _session_config(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        kind, values = entry.get("kind", "choice"), entry.get("values", [])
        if bool(values) != (kind != "bytes"):
            yield document.problem(
                trail, f"expected values unless the kind is bytes, found {kind} and {values}"
            )
        if "default" in entry and entry["default"] not in values:
            yield document.problem(
                (*trail, "default"), f"expected one of {values}, found '{entry['default']}'"
            )
        if entry["key"].endswith(".") != (kind == "pass"):
            yield document.problem(
                (*trail, "key"), "expected a dot at the end where the kind is pass, and only there"
            )

    def _class(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        if entry.get("handle") and entry["handle"] not in self.names["handles"]:
            message = f"expected a handle of the spec, found '{entry['handle']}'"
            yield document.problem(
                (*trail, "handle"), message + nearest(entry["handle"], self.names["handles"])
            )
        if entry.get("view_of") and entry["view_of"] not in self.names["classes"]:
            message = f"expected a class of the spec, found '{entry['view_of']}'"
            yield document.problem(
                (*trail, "view_of"), message + nearest(entry["view_of"], self.names["classes"])
            )
        keys = entry.get("keys", {})
        for key in ("count", "name"):
            if keys and keys[key] not in self.calls:
                message = f"expected a call of the spec, found '{keys[key]}'{nearest(keys[key], self.calls)}"
                yield document.problem((*trail, "keys", key), message)
        for i, method in enumerate(entry["methods"]):
            here: Trail = (*trail, "methods", i)
            for j, name in enumerate(method.get("calls", [])):
                if name not in self.calls:
                    message = f"expected a call of the spec, found '{name}'{nearest(name, self.calls)}"
                    yield document.problem((*here, "calls", j), message)
            for language in method.get("names", {}):
                if language not in entry["names"]:
                    message = f"the class has no name in {language}, so no method expected there"
                    yield document.problem((*here, "names", language), message)
            wanted = PATTERN_CALLS.get(method["pattern"], 0)
            count = len(method.get("calls", []))
            if wanted is not None and count != wanted:
                message = f"expected {wanted} calls for the pattern {method['pattern']}, found {count}"
                yield document.problem((*here, "pattern"), message)


TRAINING_TABLES = ("OrtTrainingApi", "OrtrainApi")
"""The tables whose calls become methods of a class that is ``complete``."""

PATTERN_CALLS: dict[str, int | None] = {
    "direct": 1, "static": 1, "factory": 1, "create": 1, "create_session": None, "attach": 1,
    "keyed_value": 1, "keyed_value_if": 2, "map_get": 1, "map_set": 1,
    "step": 3, "step_by_mode": 4, "names": 2, "names_by_mode": 4, "names_by_flag": 4,
    "copy_in_buffer": 2,
    "property_get": 1, "property_set": 1, "option": 1, "switch": 2,
    "load_model": 2, "value_infos": 3, "value_infos_by_mode": 5, "allocated_name": 1, "run": 1,
}  # fmt: skip
"""How many calls a pattern stands on; None where that is open, 0 where it is not listed."""


def _build(documents: list[Document]) -> Spec:
    def every(key: str) -> list[dict[str, Any]]:
        return [entry for document in documents for entry in document.data.get(key, [])]

    calls = {
        c["name"]: Call(**{**c, "parameters": [Parameter(**p) for p in c.get("parameters", [])]})
        for c in every("calls")
    }
    classes = [
        Class(
            **{
                **c,
                "methods": [
                    Method(**{**m, "calls": [calls[n] for n in m.get("calls", [])]}) for m in c["methods"]
                ],
            }
        )
        for c in every("classes")
    ]
    handles = {h["name"]: h for h in every("handles")}
    training_calls = sorted(
        (c for c in calls.values() if c.table in TRAINING_TABLES), key=lambda c: (c.table, c.slot)
    )
    for cls in classes:
        if cls.handle:
            cls.methods += implied_methods(cls, training_calls, handles[cls.handle].get("release", ""))
    return Spec(
        library=next(d.data["library"] for d in documents if "library" in d.data),
        tables=every("tables"),
        groups=every("groups"),
        types={t["name"]: t for t in every("types")},
        handles=handles,
        opaque=every("opaque"),
        enums={e["name"]: e for e in every("enums")},
        callbacks={
            c["name"]: {**c, "parameters": [Parameter(**p) for p in c["parameters"]]}
            for c in every("callbacks")
        },
        structs={s["name"]: s for s in every("structs")},
        calls=calls,
        unimplemented=[Unimplemented(**u) for u in every("unimplemented")],
        classes=classes,
        config_keys=every("config_keys"),
        session_config=[
            {"kind": "choice", "values": [], "default": "", **c} for c in every("session_config")
        ],
    )
