"""How Swift imports a method of Objective-C; see "Customizing Objective-C APIs for Swift" in Apple's documentation."""

from __future__ import annotations

from codegen.languages.objc import Language
from codegen.spec.model import Method, argument_kind

TYPES = {"bool": "Bool", "flag": "Bool", "int": "Int32", "int64": "Int64", "uint32": "UInt32", "size": "UInt",
         "float": "Float", "string": "String", "path": "String", "bytes": "Data", "values": "[ORTValue]",
         "strings": "[String]", "name_set": "Set<String>", "named_values": "[String: ORTValue]"}  # fmt: skip
"""Numbers and collections; an array of numbers is an array of objects."""

REPEATED = {"WithRunOptions": "with", "WithValue": "with", "WithMetric": "with", "AtIndex": "at"}
"""Labels whose last words only repeat the type of the argument, so that Swift drops them."""


def imported_type(objc: Language, kind: str, nullable: bool = False) -> str:
    name = "[NSNumber]" if kind.endswith("[]") else TYPES.get(kind)
    if name is None:
        name = objc.object_type(kind).removesuffix(" *")
    return f"{name}?" if nullable else name


def imported(objc: Language, m: Method) -> str:
    """The declaration under which Swift imports a method."""
    result = ""
    made = objc.returned(m) == "nullable instancetype"
    if not made and (objc.returned(m) != "BOOL" or objc.is_number(m)):
        optional = objc.fails_by_error(m) and not objc.is_number(m)
        result = f" -> {imported_type(objc, m.returns.type if m.returns else '', optional)}"
    taken = [(p.own, imported_type(objc, p.type, objc.is_nullable(p))) for p in objc.arguments(m)]
    for p in objc.stored(m):
        kind = f"UnsafeMutablePointer<{imported_type(objc, argument_kind(p))}>?"
        taken.append((objc.stored_name(p), kind))
    base, *labels = m.labels
    if labels:
        # What is created is named by its arguments alone: the label of the first one loses its With.
        first = labels[0].removeprefix("With") if made else labels[0]
        labels[0] = REPEATED.get(first) or f"{first[:1].lower()}{first[1:]}" or "_"
    parts = [
        f"{own}: {kind}" if label == own else f"{label} {own}: {kind}"
        for label, (own, kind) in zip(labels, taken, strict=True)
    ]
    return f"{'' if made else 'func '}{base}({', '.join(parts)}) throws{result}"
