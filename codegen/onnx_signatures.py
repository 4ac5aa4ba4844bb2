"""The signatures and type parameters of ONNX's operators, by the version that introduced them, from ``onnx``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from onnx import defs
from onnx.defs import OpSchema

NEWEST_OPSET = 28
"""The newest version of the ONNX operators that the library reads (``kNewestOpset`` of the core)."""


_TYPES = OpSchema.AttrType
KINDS = {
    _TYPES.INT: "int", _TYPES.FLOAT: "float", _TYPES.STRING: "string", _TYPES.TENSOR: "tensor",
    _TYPES.INTS: "ints", _TYPES.FLOATS: "floats", _TYPES.STRINGS: "strings", _TYPES.GRAPH: "graph",
    _TYPES.TYPE_PROTO: "type", _TYPES.SPARSE_TENSOR: "sparse_tensor",
}  # fmt: skip
"""The core's names for the kinds of attributes."""


class Signature(NamedTuple):
    """The signature of an operator, or its type parameters, starting with a version of its domain."""

    domain: str
    name: str
    since: int
    text: str
    """The signature in the notation of ``core/src/op/signature.h``."""


def _parameters(formal: Sequence[OpSchema.FormalParameter]) -> str:
    option = OpSchema.FormalParameterOption
    texts = []
    for parameter in formal:
        mark = {option.Single: "", option.Optional: "?", option.Variadic: "..."}[parameter.option]
        if parameter.option == option.Variadic and parameter.min_arity == 0:
            mark = "...?"
        texts.append(parameter.name + mark)
    return ", ".join(texts)


def _schemas() -> list[OpSchema]:
    """Return the schemas in the order of domain, name and version.

    Raises
    ------
    RuntimeError
        If the installed ``onnx`` is older than the newest version that the library reads.
    """
    if defs.onnx_opset_version() < NEWEST_OPSET:
        raise RuntimeError(
            f"expected an onnx package with version {NEWEST_OPSET} of the operators, found {defs.onnx_opset_version()}"
        )
    schemas = [
        schema
        for schema in defs.get_all_schemas_with_history()
        if schema.domain != "" or schema.since_version <= NEWEST_OPSET
    ]
    schemas.sort(key=lambda schema: (schema.domain, schema.name, schema.since_version))
    return schemas


def _type_parameters(schema: OpSchema) -> str:
    """Return which inputs and outputs share a type, such as ``T i0 i1 o0, V i2``.

    An input or output without a type parameter counts as a parameter of the same name.
    """
    constraints = {constraint.type_param_str for constraint in schema.type_constraints}
    places: dict[str, list[str]] = {}
    for mark, side in (("i", schema.inputs), ("o", schema.outputs)):
        for index, parameter in enumerate(side):
            name = parameter.type_str if parameter.type_str in constraints else parameter.name
            places.setdefault(name, []).append(f"{mark}{index}")
    return ", ".join(" ".join((name, *places[name])) for name in sorted(places))


@lru_cache
def onnx_versions() -> list[Signature]:
    """Return the type parameters of every version of every operator, in the order of domain, name and version."""
    return [
        Signature(schema.domain, schema.name, schema.since_version, _type_parameters(schema))
        for schema in _schemas()
    ]


@lru_cache
def onnx_signatures() -> list[Signature]:
    """Return the signatures in the order of domain, name and version.

    A version that changes neither parameters nor attributes has no entry.
    """
    found: list[Signature] = []
    for schema in _schemas():
        kinds = [
            f"{name}: {KINDS[attribute.type]}{'' if attribute.required else '?'}"
            for name, attribute in sorted(schema.attributes.items())
        ]
        text = f"{_parameters(schema.inputs)} -> {_parameters(schema.outputs)}".strip()
        if kinds:
            text += " | " + ", ".join(kinds)
        signature = Signature(schema.domain, schema.name, schema.since_version, text)
        if not found or (found[-1].domain, found[-1].name, found[-1].text) != (
            signature.domain,
            signature.name,
            text,
        ):
            found.append(signature)
    return found
