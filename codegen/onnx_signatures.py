"""The signatures of ONNX's operators, by the version that introduced them, from the schemas of ``onnx``."""

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
"""What the core calls the kinds of attributes."""


class Signature(NamedTuple):
    """The signature of an operator from one version of its domain on."""

    domain: str
    name: str
    since: int
    text: str
    """In the notation of ``core/src/op/signature.h``."""


def _parameters(formal: Sequence[OpSchema.FormalParameter]) -> str:
    option = OpSchema.FormalParameterOption
    texts = []
    for parameter in formal:
        mark = {option.Single: "", option.Optional: "?", option.Variadic: "..."}[parameter.option]
        if parameter.option == option.Variadic and parameter.min_arity == 0:
            mark = "...?"
        texts.append(parameter.name + mark)
    return ", ".join(texts)


@lru_cache
def onnx_signatures() -> list[Signature]:
    """Return the signatures in the order of domain, name and version.

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
    found: list[Signature] = []
    for schema in schemas:
        kinds = [
            f"{name}: {KINDS[attribute.type]}{'' if attribute.required else '?'}"
            for name, attribute in sorted(schema.attributes.items())
        ]
        text = f"{_parameters(schema.inputs)} -> {_parameters(schema.outputs)}".strip()
        if kinds:
            text += " | " + ", ".join(kinds)
        found.append(Signature(schema.domain, schema.name, schema.since_version, text))
    return found
