"""Checking: the schema, then the rules that a schema cannot express.

All problems are reported at once, each with its file and line.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jsonschema

from codegen.lower import PATTERNS
from codegen.spec import absent
from codegen.spec.model import Call, Class, Command, Given, Method, Parameter, Returned, Spec
from codegen.spec.names import MENTION
from codegen.spec.source import Document, Problem, SpecError, Trail, read_folder

LISTS = ("tables", "groups", "parts", "types", "handles", "opaque", "enums", "callbacks", "structs", "calls")

CORE_CLASSES = {"training_session": "TrainingSession", "checkpoint_state": "CheckpointState"}
"""The class of the core behind a handle; a direct call on it needs no body."""


def load(folder: Path) -> Spec:
    """Read and check the spec in ``folder``.

    Raises
    ------
    SpecError
        When the spec is rejected; the error lists every reason.
    """
    documents = read_folder(folder)
    problems = list(_schema_problems(documents, folder / "schema.json")) or list(absent.expand(documents))
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
                what = schema.get("properties", {}).get(key, {}).get("description", "")
                note = f" ({what})" if what else ""
                yield document.problem(trail, f"expected the key '{key}'{note}, found {', '.join(found)}")
    elif error.validator == "enum":
        expected = [str(v) for v in wanted]
        message = f"expected one of {', '.join(expected)}, found '{found}'{nearest(str(found), expected)}"
        yield document.problem(trail, message)
    elif error.validator == "anyOf":
        # Report the problems of the alternative that has the right type.
        choices: dict[Any, list[jsonschema.ValidationError]] = {}
        for inner in error.context or []:
            choices.setdefault(inner.schema_path[0], []).append(inner)
        meant = [
            inners
            for inners in choices.values()
            if not any(e.validator == "type" and not e.path for e in inners)
        ]
        for inner in meant[0] if meant else [e for inners in choices.values() for e in inners]:
            yield from _schema_problem(document, inner)
    elif error.validator == "type":
        yield document.problem(trail, f"expected {wanted}, found {json.dumps(found)[:60]}")
    else:
        yield document.problem(trail, f"expected {error.validator} {wanted}, found {found!r}")


class _Meaning:
    """The rules that the schema cannot express: names must exist, and each slot must occur once."""

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
            v["name"] for _, _, e in self._entries("enums") if e["name"] == "error_code" for v in e["values"]
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
        for document, trail, entry in self._entries("callbacks", "unimplemented"):
            yield from self._parameters(document, trail, entry)
            if "returns" in entry and entry["returns"] != "void":
                yield from self._type(document, (*trail, "returns"), entry["returns"])
        for document, trail, entry in self._entries("classes"):
            yield from self._class(document, trail, entry)
        for key in ("handles", "enums", "callbacks", "structs"):
            for document, trail, entry in self._entries(key):
                if entry["table"] not in self.names["tables"]:
                    message = f"expected a table of the spec, found '{entry['table']}'"
                    known = nearest(entry["table"], self.names["tables"])
                    yield document.problem((*trail, "table"), message + known)
        for document, trail, entry in self._entries("session_config"):
            yield from self._session_config(document, trail, entry)
        yield from self._config_keys()
        for document, trail, entry in self._entries("training_parameters"):
            yield from self._training_parameter(document, trail, entry)
        for document, trail, entry in self._entries("commands"):
            yield from self._command(document, trail, entry)
        yield from self._languages()
        yield from self._mentions()

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
            for key in ("length", "valid", "typed_by", "outlives"):
                other = parameter.get(key)
                if other is not None and other not in parameters:
                    known = nearest(other, parameters)
                    message = f"expected a parameter of {entry['name']}, found '{other}'{known}"
                    yield document.problem((*here, key), message)
            length = parameters.get(parameter.get("length", ""))
            if length is not None and length["type"] not in ("size", "int", "int64"):
                message = f"expected a length of type size, int or int64, found {length['name']} of type {length['type']}"
                yield document.problem((*here, "length"), message)
            result = parameter.get("direction", "in") != "in"
            if result and parameter["type"] in self.names["handles"] and "owner" not in parameter:
                yield document.problem(
                    here, "expected the key 'owner', for the result is a handle, found none"
                )
            if not result and "owner" in parameter:
                yield document.problem(
                    (*here, "owner"), "expected no owner, because the parameter is not a result, found one"
                )
            for key in ("taken", "outlives"):
                if key in parameter and (result or parameter["type"] not in self.names["handles"]):
                    yield document.problem(
                        (*here, key),
                        f"expected no key '{key}', because the parameter is not a given handle, found one",
                    )
            if parameter.get("taken") and not parameter.get("mutable"):
                yield document.problem(
                    here, "expected the key 'mutable', for the call takes the handle, found none"
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
                message = f"expected a code of error_code, found '{error['code']}'"
                yield document.problem((*trail, "errors", i), message + nearest(error["code"], self.codes))
        if "part" in call and call["part"] not in self.names["parts"]:
            message = f"expected a part of the spec, found '{call['part']}'"
            yield document.problem((*trail, "part"), message + nearest(call["part"], self.names["parts"]))
        core = call["core"]
        owner = core.split("::")[0]
        if owner not in ("body", "release", "ortrain", absent.OWNER, *CORE_CLASSES.values()):
            expected = ", ".join(f"{name}::<method>" for name in CORE_CLASSES.values())
            message = f"expected body, release, ortrain::<function> or {expected}, found '{core}'"
            yield document.problem((*trail, "core"), message)

    def _session_config(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        kind, values = entry.get("kind", "choice"), entry.get("values", [])
        if kind == "bytes":
            if len(values) > 1:
                yield document.problem(trail, f"expected at most one value beside bytes, found {values}")
        elif bool(values) != (kind in {"choice", "pass"}):
            yield document.problem(
                trail,
                f"expected values if the kind is choice or pass, and only then, found {kind} and {values}",
            )
        if kind in {"count", "limit"}:
            if not entry.get("default", "1").isdigit():
                yield document.problem((*trail, "default"), f"expected a number, found '{entry['default']}'")
        elif "default" in entry and entry["default"] not in values:
            yield document.problem(
                (*trail, "default"), f"expected one of {values}, found '{entry['default']}'"
            )
        if entry["key"].endswith(".") != (kind == "pass"):
            yield document.problem(
                (*trail, "key"), "expected a dot at the end where the kind is pass, and only there"
            )

    def _config_keys(self) -> Iterable[Problem]:
        used = {entry["key"] for _, _, entry in self._entries("session_config")}
        for document, trail, entry in self._entries("config_keys"):
            if entry["of"] == "session" and entry["key"] in used and "effect" not in entry:
                yield document.problem(trail, f"session_config has {entry['key']}: expected its effect")

    def _training_parameter(
        self, document: Document, trail: Trail, entry: dict[str, Any]
    ) -> Iterable[Problem]:
        expected = {"bool": bool, "int": int, "float": float, "string": str}.get(entry["type"])
        found = entry.get("default")
        if type(found) is not (expected or type(None)):
            what = f"a default of type {entry['type']}" if expected else f"no default of a {entry['type']}"
            yield document.problem((*trail, "default"), f"expected {what}, found {found!r}")

    def _class(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        handles = {**self.names["handles"], **self.names["structs"]}
        if entry.get("handle") and entry["handle"] not in handles:
            message = f"expected a handle of the spec, found '{entry['handle']}'"
            yield document.problem((*trail, "handle"), message + nearest(entry["handle"], handles))
        if entry.get("view_of") and entry["view_of"] not in self.names["classes"]:
            message = f"expected a class of the spec, found '{entry['view_of']}'"
            yield document.problem(
                (*trail, "view_of"), message + nearest(entry["view_of"], self.names["classes"])
            )
        keys = entry.get("keys", {})
        for key in ("count", "name", "find"):
            if keys and keys[key] not in self.calls:
                message = f"expected a call of the spec, found '{keys[key]}'{nearest(keys[key], self.calls)}"
                yield document.problem((*trail, "keys", key), message)
        taken: dict[str, int] = {}
        for i, method in enumerate(entry["methods"]):
            here: Trail = (*trail, "methods", i)
            if method["name"] in taken:
                line = document.line((*trail, "methods", taken[method["name"]]))
                message = f"the name is taken by the method at {document.file}:{line}, expected another"
                yield document.problem(here, message)
            taken.setdefault(method["name"], i)
            yield from self._method(document, here, method)

    def _method(self, document: Document, here: Trail, method: dict[str, Any]) -> Iterable[Problem]:
        pattern = PATTERNS.get(method["pattern"])
        if pattern is None:
            known = nearest(method["pattern"], PATTERNS)
            message = f"expected a pattern of codegen/lower, found '{method['pattern']}'{known}"
            yield document.problem((*here, "pattern"), message)
            return
        given = {"call": method["call"]} if "call" in method else method.get("calls", {})
        for role, name in given.items():
            at = (*here, "call") if "call" in method else (*here, "calls", role)
            if name not in self.calls:
                message = f"expected a call of the spec, found '{name}'{nearest(name, self.calls)}"
                yield document.problem(at, message)
            if role not in (*pattern.calls, *pattern.optional):
                expected = ", ".join((*pattern.calls, *pattern.optional)) or "none"
                known = nearest(role, (*pattern.calls, *pattern.optional))
                message = (
                    f"expected a role of the pattern {method['pattern']} ({expected}), found '{role}'{known}"
                )
                yield document.problem(at, message)
        for role in pattern.calls:
            if role not in given:
                message = f"expected a call in the role {role} of the pattern {method['pattern']}, found none"
                yield document.problem((*here, "pattern"), message)
        if pattern.open and given.get("call") in self.calls:
            roles = {p["name"] for p in self.calls[given["call"]].get("parameters", [])}
        else:
            roles = set(pattern.parameters)
        if any(name not in self.calls for name in given.values()):
            return
        for name in method.get("fixed", {}):
            if name not in roles:
                message = f"expected a parameter of {given.get('call')}, found '{name}'{nearest(name, roles)}"
                yield document.problem((*here, "fixed", name), message)
        for j, p in enumerate(method.get("parameters", [])):
            role = p.get("role", p["name"])
            if "*" not in pattern.parameters and role not in roles | set(pattern.parameters):
                expected = ", ".join(sorted(roles | set(pattern.parameters))) or "none"
                message = f"expected a role of the pattern {method['pattern']} ({expected}), found '{role}'"
                yield document.problem((*here, "parameters", j), message + nearest(role, roles))

    def _command(self, document: Document, trail: Trail, entry: dict[str, Any]) -> Iterable[Problem]:
        methods = {f"{c['name']}.{m['name']}" for _, _, c in self._entries("classes") for m in c["methods"]}
        named: list[tuple[Trail, str]] = [(("methods", i), m) for i, m in enumerate(entry.get("methods", []))]
        named += [(("attached",), entry["attached"])] if "attached" in entry else []
        for place, method in named:
            if method not in methods:
                message = f"expected a method of the spec, such as checkpoint_state.save_checkpoint, found '{method}'"
                yield document.problem((*trail, *place), message + nearest(method, methods))
        commands = [command["name"] for _, _, command in self._entries("commands")]
        for key, kind, known in (("call", "a call", self.calls), ("names", "a command", commands)):
            if key in entry and entry[key] not in known:
                message = f"expected {kind} of the spec, found '{entry[key]}'"
                yield document.problem((*trail, key), message + nearest(entry[key], known))

    # ---- languages ----

    def _languages(self) -> Iterable[Problem]:
        for document in self.documents:
            if "language" in document.data:
                yield from self._language(document, document.data["language"])

    def _language(self, document: Document, language: dict[str, Any]) -> Iterable[Problem]:
        enums = {e["name"]: e for _, _, e in self._entries("enums")}
        classes = {c["name"]: c for _, _, c in self._entries("classes")}
        slots = {**self.names["calls"], **self.names["unimplemented"]}
        for key, kind, known in (
            ("calls", "a call", slots),
            ("enums", "an enumeration", enums),
            ("classes", "a class", classes),
            ("tables", "a table", self.names["tables"]),
            ("errors", "a code of error_code", self.codes),
            ("declarations", "a call", slots),
            ("typedefs", "an opaque type", self.names["opaque"]),
            ("config_keys", "a key of config_keys", self.names["config_keys"]),
            ("fields", "a structure", self.names["structs"]),
        ):
            for name in language.get(key, {}):
                if name not in known:
                    message = f"expected {kind} of the spec, found '{name}'{nearest(name, known)}"
                    yield document.problem(("language", key, name), message)
        for name, own in language.get("enums", {}).items():
            values = {v["name"] for v in enums.get(name, {"values": []})["values"]}
            for value in (own or {}).get("names", {}):
                if name in enums and value not in values:
                    message = f"expected a value of {name}, found '{value}'{nearest(value, values)}"
                    yield document.problem(("language", "enums", name, "names", value), message)
        for name, own in language.get("classes", {}).items():
            if name in classes:
                yield from self._overrides(document, ("language", "classes", name), classes[name], own)

    def _overrides(
        self, document: Document, trail: Trail, cls: dict[str, Any], own: dict[str, Any]
    ) -> Iterable[Problem]:
        methods = {m["name"]: m for m in cls["methods"]}
        if own.get("complete") and "handle" not in cls:
            yield document.problem((*trail, "complete"), "expected a class with a handle, found one without")
        for name, over in own["methods"].items():
            here = (*trail, "methods", name)
            if name not in methods and name not in self._calls_on(cls):
                message = f"expected a method of {cls['name']}, found '{name}'{nearest(name, methods)}"
                yield document.problem(here, message)
            elif isinstance(over, dict):
                method = methods.get(name) or self._calls_on(cls)[name]
                yield from self._override(document, here, method, over)
        types = [*document.data["language"].get("types", {}), "c", "element"]
        for name, over in own.get("plain", {}).items():
            here = (*trail, "plain", name)
            if name not in self.calls:
                message = f"expected a call of the spec, found '{name}'{nearest(name, self.calls)}"
                yield document.problem(here, message)
            elif isinstance(over, dict):
                yield from self._override(document, here, self.calls[name], over)
                for p, differs in over.get("parameters", {}).items():
                    found = differs.get("type", "c") if isinstance(differs, dict) else "c"
                    if found not in types:
                        message = f"expected a type of the language, c or element, found '{found}'{nearest(found, types)}"
                        yield document.problem((*here, "parameters", p), message)

    def _calls_on(self, cls: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """Return the calls on the handle of a class, by their names as methods."""
        prefix = f"{cls['prefix']}_" if "prefix" in cls else ""
        return {
            name.removeprefix(prefix): call
            for name, call in self.calls.items()
            if "handle" in cls and call.get("parameters", [])[:1]
            if call["parameters"][0]["type"] == cls["handle"]
        }

    def _override(
        self, document: Document, here: Trail, entry: dict[str, Any], over: dict[str, Any]
    ) -> Iterable[Problem]:
        """Check the differences from a method or a call of the spec."""
        parameters = {p["name"] for p in entry.get("parameters", [])}
        for p in over.get("parameters", {}):
            if p not in parameters:
                message = f"expected a parameter of {entry['name']}, found '{p}'{nearest(p, parameters)}"
                yield document.problem((*here, "parameters", p), message)
        for code in over.get("errors", {}):
            if code not in self.codes:
                message = f"expected a code of error_code, found '{code}'{nearest(code, self.codes)}"
                yield document.problem((*here, "errors", code), message)

    # ---- texts ----

    def _mentions(self) -> Iterable[Problem]:
        known = {*self.calls, *self.types, "true", "false", "none"}
        known |= {f"{e['name']}.{v['name']}" for _, _, e in self._entries("enums") for v in e["values"]}
        for document in self.documents:
            for trail, text in _texts(document.data, ()):
                for name in MENTION.findall(text):
                    if name not in known:
                        message = (
                            f"expected a name of the spec behind @, found '{name}'{nearest(name, known)}"
                        )
                        yield document.problem(trail, message)


def _texts(value: Any, trail: Trail) -> Iterable[tuple[Trail, str]]:
    if isinstance(value, str):
        yield trail, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*trail, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _texts(item, (*trail, i))


def _build(documents: list[Document]) -> Spec:
    def every(key: str) -> list[dict[str, Any]]:
        return [entry for document in documents for entry in document.data.get(key, [])]

    calls = {c["name"]: _call(c) for c in every("calls")}
    classes = [Class(**{**c, "methods": [_method(m, calls) for m in c["methods"]]}) for c in every("classes")]
    return Spec(
        library=next(d.data["library"] for d in documents if "library" in d.data),
        tables=every("tables"),
        groups=every("groups"),
        parts={p["name"]: p for p in every("parts")},
        types={t["name"]: t for t in every("types")},
        handles={h["name"]: h for h in every("handles")},
        opaque=[o["name"] for o in every("opaque")],
        enums={e["name"]: e for e in every("enums")},
        callbacks={
            c["name"]: {**c, "parameters": [Parameter(**p) for p in c["parameters"]]}
            for c in every("callbacks")
        },
        structs={s["name"]: s for s in every("structs")},
        calls=calls,
        unimplemented=[_unimplemented(u) for u in every("unimplemented")],
        classes=classes,
        words={word: own for d in documents for word, own in d.data.get("words", {}).items()},
        config_keys=every("config_keys"),
        session_config=[
            {"kind": "choice", "values": [], "default": "", **c} for c in every("session_config")
        ],
        training_parameters=every("training_parameters"),
        commands=[Command(**c) for c in every("commands")],
        languages={d.data["language"]["name"]: d for d in documents if "language" in d.data},
    )


def _call(entry: dict[str, Any]) -> Call:
    return Call(**{**entry, "parameters": [Parameter(**p) for p in entry.get("parameters", [])]})


def _unimplemented(entry: dict[str, Any]) -> Call:
    rest = {key: value for key, value in entry.items() if key != "why"}
    return _call({**rest, "summary": entry["why"], "returns": {"type": entry.get("returns", "status")}})


def _method(entry: dict[str, Any], calls: dict[str, Call]) -> Method:
    given = dict(entry)
    roles = {"call": given.pop("call")} if "call" in given else given.pop("calls", {})
    given["calls"] = {role: calls[name] for role, name in roles.items()}
    given["parameters"] = [Given(**p) for p in given.get("parameters", [])]
    if "returns" in given:
        given["returns"] = Returned(**given["returns"])
    return Method(**given)
