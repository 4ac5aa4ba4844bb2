"""Render what the target ``calls`` knows: every call of the spec, with what each parameter is, and how handles are freed.

``python -m tests.fuzz.calls CALLS HANDLES``. A call is known by its table and slot, which never change, so inputs that are
kept mean the same when the spec grows.
"""

from __future__ import annotations

import sys
from pathlib import Path

from codegen import languages
from codegen.spec.check import load
from codegen.spec.model import Call, Parameter, Spec

ROOT = Path(__file__).resolve().parent.parent.parent
LEFT_OUT = {"release_available_providers"}
"""It frees an array that only another call can make, by a pointer of three levels."""
TABLES = {
    "general": "ort()",
    "training": "training()",
    "extension": "extension()",
    "compile": "compiling()",
    "model_editor": "editor()",
}


def kind(call: Call, p: Parameter) -> str:
    """Return what a parameter is: a member of ``Role::Kind``."""
    if p.room:
        return "kRoom"
    if p.type == "allocator" and any(q.type == "bytes" and q.mutable for q in call.parameters):
        return "kDeleter"
    if p.type == "bytes" and p.direction == "in":
        return "kBytes"
    if p.name in call.arrays:
        return {"in": "kLength", "out": "kResult", "inout": "kRoomLength"}[p.direction]
    if p.is_result:
        return "kResult"
    if p.length:
        return "kArray"
    return "kPath" if p.type == "path" else "kValue"


def role(call: Call, p: Parameter) -> str:
    """Return a parameter as an initializer of ``Role``."""
    names = [q.name for q in call.parameters]
    other = names.index(p.length) if p.length else -1
    owner = {"caller": "kCaller", "allocator": "kAllocator"}.get(p.owner, "kCallee")
    later = "kTaken" if p.taken else "kOutlives" if p.outlives else "kUnaffected"
    return f"{{Role::{kind(call, p)}, {other}, Role::{owner}, Role::{later}}}"


def calls(spec: Spec) -> list[str]:
    """Return an entry of the table for each call."""
    c = languages.language_class("c")(spec)
    lines = []
    for number, (table, expression) in enumerate(TABLES.items()):
        for call in spec.calls_of(table):
            if not isinstance(call, Call) or not call.parameters or call.name in LEFT_OUT:
                continue
            roles = ", ".join(role(call, p) for p in call.parameters)
            function = c.function(call)
            act = "release" if call.core == "release" else "call"
            lines.append(
                f'{{{number}, {call.slot}, "{function}", [](Machine& m) {{ '
                f"m.{act}({expression}.{function}, {{{{{roles}}}}}); }}}},"
            )
    return lines


def handles(spec: Spec) -> list[str]:
    """Return a function ``destroy`` for each kind of handle, and the list of the kinds."""
    c = languages.language_class("c")(spec)
    released = {name: handle["release"] for name, handle in spec.handles.items() if "release" in handle}
    released["allocator"] = "release_allocator"
    lines = []
    for name, release in released.items():
        call = spec.calls[release]
        function = f"{TABLES[call.table]}.{c.function(call)}"
        lines.append(f"void destroy({c.base(name)}* handle) {{ {function}(handle); }}")
    return [*lines, f"using OwnedKinds = Kinds<{', '.join(c.base(name) for name in released)}>;"]


def main() -> int:
    """Write both files."""
    spec = load(ROOT / "spec")
    for path, lines in zip(sys.argv[1:], (calls(spec), handles(spec)), strict=True):
        Path(path).write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
