"""What the gradient tests covered: recorded by `helpers.check_gradient`, and read by test_gradient_coverage.py."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from ortrain import _ortrain

if TYPE_CHECKING:
    from helpers import Op

Array = NDArray[Any]
Key = tuple[str, str]  # domain and type of an operator

#: Whether a run includes all gradient tests.
COMPLETE = pytest.StashKey[bool]()


@dataclass
class Case:
    """What a test passed to `check_gradient`."""

    op: Op
    inputs: list[Array | None]
    arguments: dict[str, Any]

    @property
    def elements(self) -> int:
        return sum(x.size for x in self.inputs if x is not None)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What decides how a gradient is written: opset, modes and flags, which inputs there are or are constants, the rank."""
        modes = tuple(
            (name, value if isinstance(value, str) or value in (0, 1) else None)
            for name, value in sorted(self.op.attributes.items(), key=lambda item: item[0])
            if not isinstance(value, np.ndarray)
        )
        given = tuple(x is not None for x in self.inputs), tuple(sorted(self.arguments["constants"]))
        first = self.inputs[0]
        rank = None if first is None else first.ndim
        return self.op.opset, repr(modes), given, tuple(self.op.output_names), rank


@dataclass
class Coverage:
    """What is known about the gradient of one operator."""

    opsets: set[int] = field(default_factory=set)
    second: Counter[int] = field(
        default_factory=Counter
    )  # by opset, cases whose second derivative was compared
    second_misses: set[str] = field(default_factory=set)  # operators whose gradient it lacks
    smallest: dict[tuple[str, ...], Case] = field(default_factory=dict)  # by the attributes that are given
    kinds: dict[tuple[Any, ...], Case] = field(
        default_factory=dict
    )  # the smallest of each kind that may be computed differently


#: Whether comparisons are recorded. Cases run with and without passes, and are recorded with passes.
noting = True
COVERED: dict[Key, Coverage] = {}
#: Operators that occur in a gradient whose derivative was compared, and in how many.
IN_GRADIENTS: Counter[Key] = Counter()


#: Operators of whole models whose gradients were compared, and in how many.
IN_MODELS: Counter[Key] = Counter()


def is_covered(key: Key) -> bool:
    return any(key in known for known in (COVERED, IN_GRADIENTS, IN_MODELS, STRAIGHT_THROUGH))


def note_model(graph: onnx.GraphProto) -> None:
    """Record the operators of a model whose gradients were right, including those of its subgraphs."""
    if not noting:
        return
    for node in graph.node:
        IN_MODELS[node.domain, node.op_type] += 1
        for attribute in node.attribute:
            if attribute.HasField("g"):
                note_model(attribute.g)


def of(op: Op) -> Coverage:
    return COVERED.setdefault((op.domain, op.type), Coverage())


def note_in_gradient(keys: Iterable[Key]) -> None:
    """Record the operators of a gradient whose own derivative was right."""
    if noting:
        IN_GRADIENTS.update(keys)


def note(case: Case, floating: Iterable[Array], second: Collection[str] | None) -> None:
    """Record a case whose gradient was right.

    Parameters
    ----------
    floating
        The inputs that are not settings.
    second
        Operators whose gradient the second derivative lacks; None if it was not requested.
    """
    if not noting:
        return
    found = of(case.op)
    found.opsets.add(case.op.opset if not case.op.domain else 1)
    sizes = [x.size for x in floating]
    if second is not None:
        found.second[case.op.opset] += not second
        found.second_misses.update(second)
    kind = tuple(sorted(case.op.attributes))
    held = found.smallest.get(kind)
    if 0 in sizes:
        return
    if held is None or case.elements < held.elements:
        found.smallest[kind] = case
    held = found.kinds.get(case.kind)
    if held is None or case.elements < held.elements:
        found.kinds[case.kind] = case


def registered() -> dict[Key, str]:
    """Whether gradients go through each operator of the core: ``yes``, ``decomposed``, ``stop`` or ``no``."""
    rows = [line.split(",") for line in _ortrain.list_operators().splitlines()]
    return {(domain, type): gradient for domain, type, gradient in rows}


def name_of(key: Key) -> str:
    return ".".join(filter(None, key))


#: Operators whose gradient is not a derivative, so that finite differences do not apply: it passes straight
#: through the rounding.
STRAIGHT_THROUGH = {
    ("", "QuantizeLinear"),
    ("", "DequantizeLinear"),
    ("com.microsoft", "FakeQuant"),
}


def versions(type: str) -> dict[int, int]:
    """The opsets from 12 on at which an operator of the standard domain changes: effective version to opset."""
    newest = onnx.defs.onnx_opset_version()
    found: dict[int, int] = {}
    for opset in range(12, newest + 1):
        try:
            schema = onnx.defs.get_schema(type, opset, "")
        except onnx.defs.SchemaError:
            continue
        if not schema.deprecated:
            found.setdefault(schema.since_version, opset)
    return found


def effective(type: str, opset: int) -> int:
    """The version of an operator in an opset; 0 if it does not have it."""
    try:
        return int(onnx.defs.get_schema(type, opset, "").since_version)
    except onnx.defs.SchemaError:
        return 0


def variants(case: Case) -> list[Case]:
    """The case with one element per input, with none, and with the axis counted from the other end."""
    wrt = set(case.arguments["wrt"])
    found = []
    for size in (1, 0):
        inputs = [
            x[tuple(slice(size) for _ in x.shape)] if i in wrt and x is not None else x
            for i, x in enumerate(case.inputs)
        ]
        found.append(Case(case.op, inputs, case.arguments))
    axis, first = case.op.attributes.get("axis"), case.inputs[0]
    if axis is not None and first is not None and first.ndim:
        other = axis - first.ndim if axis >= 0 else axis + first.ndim
        op = dataclasses.replace(case.op, attributes={**case.op.attributes, "axis": other})
        found.append(Case(op, case.inputs, case.arguments))
    return found


def moved(case: Case, opset: int) -> Case | None:
    """The case in another opset, with settings in that opset's form; None if there is none."""
    source = onnx.defs.get_schema(case.op.type, case.op.opset, "")
    target = onnx.defs.get_schema(case.op.type, opset, "")
    names = [value.name for value in source.inputs]
    wanted = [value.name for value in target.inputs]
    arguments = dict(case.arguments)
    attributes, inputs = dict(case.op.attributes), list(case.inputs)
    attribute_became_input = not set(attributes) <= set(target.attributes)
    input_became_attribute = any(name in target.attributes for name in names[: len(inputs)])
    if attribute_became_input or input_became_attribute:
        given = dict(zip(names, case.inputs, strict=False))
        constants = {names[i] for i in case.arguments["constants"] if i < len(names)}
        for name in [name for name in attributes if name not in target.attributes]:
            if name not in wanted:
                return None
            given[name] = np.asarray(attributes.pop(name), np.int64)
            constants.add(name)
        for name in [name for name in given if name not in wanted]:
            value = given.pop(name)
            if value is None:
                continue
            if name not in target.attributes:
                return None
            attributes[name] = value.tolist()
            constants.discard(name)
        inputs = [given.get(name) for name in wanted]
        if any(names[i : i + 1] != wanted[i : i + 1] for i in case.arguments["wrt"]):
            return None
        arguments["constants"] = [wanted.index(name) for name in constants]
    while inputs and inputs[-1] is None:
        inputs.pop()
    arguments["constants"] = [i for i in arguments["constants"] if i < len(inputs)]
    return Case(dataclasses.replace(case.op, attributes=attributes, opset=opset), inputs, arguments)
