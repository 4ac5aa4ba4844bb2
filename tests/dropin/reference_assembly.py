"""C# sources of onnxruntime's public types, written only from the recorded members: nothing here uses the spec or codegen.

Programs are compiled against them and run with the assembly under test, as those that were compiled for onnxruntime.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

MEMBERS = Path(__file__).resolve().parents[1] / "data/csharp_members.txt"

OPENING = """\
using System;
using System.Collections;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading.Tasks;
using Microsoft.ML.OnnxRuntime.Tensors;
"""

# Reflection on the assembly recorded members, not the signatures of delegates.
DELEGATES = {
    "DOrtLoggingFunction": "void DOrtLoggingFunction(IntPtr a, OrtLoggingLevel b, IntPtr c, IntPtr d, IntPtr e, IntPtr f)",
    "OrtValue+MapVisitor": "void MapVisitor(OrtValue keys, OrtValue values)",
    "OrtValue+SequenceElementVisitor": "void SequenceElementVisitor(OrtValue value, int index)",
    "SessionOptions+EpSelectionDelegate": "List<OrtEpDevice> EpSelectionDelegate("
    "IReadOnlyList<OrtEpDevice> a, OrtKeyValuePairs b, OrtKeyValuePairs c, uint d)",
}
# The base classes, and what their constructors take.
BASES = {
    "SafeHandle": "IntPtr.Zero, true",
    "Exception": "",
    "NamedOnnxValue": "null, null",
    "TensorBase": "null",
    "Tensor<T>": "0",
}
OPERATORS = {
    "op_Equality": "==",
    "op_Inequality": "!=",
    "op_LessThan": "<",
    "op_LessThanOrEqual": "<=",
    "op_GreaterThan": ">",
    "op_GreaterThanOrEqual": ">=",
}
OBJECT = {"Equals(object)", "GetHashCode()", "ToString()"}


def split(parameters: str) -> list[str]:
    """Types of a list, whose commas inside <> separate nothing."""
    found, depth = [""], 0
    for letter in parameters:
        depth += (letter == "<") - (letter == ">")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found if part.strip()]


def signature(parameters: str) -> str:
    """The list with names; whether what is passed by reference is also read is not recorded."""
    out = []
    for i, kind in enumerate(split(parameters)):
        optional = kind.endswith(" =")
        out.append(f"{kind.removesuffix(' =')} p{i}" + (f" = default({kind[:-2]})" if optional else ""))
    return ", ".join(out)


def member(kind: str, name: str, base: str, text: str) -> str:
    """The declaration of one member."""
    if kind == "enum":
        return f"{text},"
    access = "protected" if text.startswith("protected ") else "public"
    text = text.removeprefix("protected ")
    if text.startswith("new("):
        return f"{access} {name}({signature(text[4:-1])}){base} {{ throw null; }}"
    static = "static " if text.startswith("static ") else ""
    text = text.removeprefix("static ")
    prop = re.fullmatch(r"(\S+) (\w+)(?:\[(.*)\])? \{ (.*)\}", text)
    if prop:
        result, own, indices, accessors = prop.groups()
        own = f"this[{signature(indices)}]" if indices else own
        override = "override " if own == "IsInvalid" else ""
        bodies = accessors.replace("get;", "get { throw null; }").replace("set;", "set { throw null; }")
        return f"{access} {static}{override}{result} {own} {{ {bodies} }}"
    method = re.fullmatch(r"(\S+) (\w+)(<.*>)?\((.*)\)", text)
    if not method:
        return f"{access} {static}{text};"
    result, own, generic, parameters = method.groups()
    if own == "op_Explicit":
        return f"public static explicit operator {result}({signature(parameters)}) {{ throw null; }}"
    if own in OPERATORS:
        return f"public static {result} operator {OPERATORS[own]}({signature(parameters)}) {{ throw null; }}"
    override = "override " if own == "ReleaseHandle" or f"{own}({parameters})" in OBJECT else ""
    return (
        f"{access} {static}{override}{result} {own}{generic or ''}({signature(parameters)}) {{ throw null; }}"
    )


def declaration(path: str, kind: str, bases: list[str], members: list[str]) -> Iterator[str]:
    """One type, in the class that it is nested in if there is one."""
    namespace, _, name = ("Microsoft.ML.OnnxRuntime." + path).rpartition(".")
    outer, _, own = name.rpartition("+")
    generic = "<T>" if own.endswith("`1") else ""
    own = own.removesuffix("`1")
    yield f"namespace {namespace} {{"
    if outer:
        yield f"public partial class {outer} {{"
    if kind == "delegate":
        yield f"public delegate {DELEGATES[path]};"
    elif kind == "interface":
        yield f"public interface {own}<T> : IReadOnlyList<T>, IDisposable {{ }}"
    else:
        derived = [base for base in bases if base in BASES]
        if kind == "class":
            derived += ["IDisposable"] if "IDisposable" in bases else []
            derived += ["IEnumerable<T>"] if "IList<T>" in bases else []
        after = f" : {', '.join(derived)}" if derived else ""
        yield f"public {'partial ' if kind == 'class' else ''}{kind} {own}{generic}{after} {{"
        base = next((f" : base({BASES[name]})" for name in derived if name in BASES), "")
        yield from (member(kind, own, base, text) for text in members)
        if base and not any("new(" in text for text in members):
            yield f"internal {own}(){base} {{ }}"
        if own == "Tensor" and generic:
            yield "IEnumerator<T> IEnumerable<T>.GetEnumerator() { throw null; }"
            yield "IEnumerator IEnumerable.GetEnumerator() { throw null; }"
        yield "}"
    yield "}" * (2 if outer else 1)


def source() -> str:
    """The source of the assembly."""
    bases: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    members: dict[str, list[str]] = {}
    for line in MEMBERS.read_text().splitlines():
        what, path, text = line.split("\t")
        if what == "B":
            bases.setdefault(path, []).append(text.removeprefix(": "))
        elif what == "T":
            kinds[path] = text
        else:
            members.setdefault(path, []).append(text)
    out = [OPENING]
    for path, kind in kinds.items():
        out += declaration(path, kind, bases.get(path, []), members.get(path, []))
    return "\n".join(out) + "\n"


def public_key() -> bytes:
    """Some public key of 1024 bits, in the form of a key file, with which the assembly is said to be signed."""
    modulus = b"\xc5" * 128
    key = b"\x06\x02\0\0" + (0x2400).to_bytes(4, "little") + b"RSA1" + (1024).to_bytes(4, "little")
    key += (65537).to_bytes(4, "little") + modulus
    # The algorithms of signature and hash, and the length of the key.
    return b"".join(n.to_bytes(4, "little") for n in (0x2400, 0x8004, len(key))) + key
