"""How a graph uses its values, and which uses are those of constants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx

from ortrain import _graph

#: Inputs that configure an operator.
_SETTINGS = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "DequantizeLinear": (1,),
    "Dropout": (1,),
    "OneHot": (2,),
    "Pad": (2,),
    "QuantizeLinear": (1,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "RotaryEmbedding": (1, 2),
    "Upsample": (1,),
}
#: The same for operators of onnxruntime.
_FUSED_SETTINGS = {
    "DynamicQuantizeMatMul": (2, 3),
    "GatherBlockQuantized": (2,),
    "GroupQueryAttention": (7, 8),
    "MatMulBnb4": (2,),
    "MatMulNBits": (2, 3),
    "QAttention": (3, 4),
    "QEmbedLayerNormalization": (8, 9, 10, 11, 12),
    "RotaryEmbedding": (2, 3),
}

#: Operators whose output has the elements of the first input.
_CARRIERS = frozenset(
    {"Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
#: Operators that may be between frequencies and the angles computed from them.
_PRODUCTS = frozenset({"Concat", "Einsum", "MatMul", "Mul", "Slice", "Gather"})

_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})

_Value = tuple[int, str]
"""A value: the number of the graph that defines it, 0 for the main graph, and its name there."""


@dataclass(frozen=True)
class Use:
    """A read of a value. An output of a graph counts as a read without a node."""

    node: onnx.NodeProto | None
    slot: int
    results: tuple[_Value, ...]

    @property
    def operator(self) -> str:
        """The type of the operator; empty if it is not an operator of ONNX."""
        return self.node.op_type if self.node is not None and self.node.domain in ("", "ai.onnx") else ""


class Uses:
    """The reads of all values, in a graph and its subgraphs."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._of: dict[_Value, list[Use]] = {}
        self._numbers: dict[_Value, float] = {}
        self._ends: dict[_Value, frozenset[str]] = {}
        self._graphs = 0
        self._read(graph, [])

    def _read(self, graph: onnx.GraphProto, outer: list[tuple[int, set[str]]]) -> None:
        names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        names.update(output for node in graph.node for output in node.output)
        scopes = [*outer, (self._graphs, names)]
        self._graphs += 1

        def resolve(name: str) -> _Value:
            return next(((number, name) for number, known in reversed(scopes) if name in known), (-1, name))

        for tensor in graph.initializer:
            self._note_number(resolve(tensor.name), tensor)
        for node in graph.node:
            results = tuple(resolve(output) for output in node.output)
            for slot, name in enumerate(node.input):
                self._of.setdefault(resolve(name), []).append(Use(node, slot, results))
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._note_number(results[0], attribute.t)
                if node.op_type == "Constant" and attribute.name == "value_float":
                    self._numbers[results[0]] = attribute.f
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    self._read(inner, scopes)
        for output in graph.output:
            self._of.setdefault(resolve(output.name), []).append(Use(None, 0, ()))

    def _note_number(self, value: _Value, tensor: onnx.TensorProto) -> None:
        if math.prod(tensor.dims) == 1 and tensor.data_type in _graph.FLOATING:
            self._numbers[value] = float(onnx.numpy_helper.to_array(tensor).item())

    def direct(self, value: _Value) -> list[Use]:
        """Return the reads of a value."""
        return self._of.get(value, [])

    def of(self, value: _Value) -> Iterator[Use]:
        """Yield the reads of a value and of all its copies, reshaped or cast."""
        waiting = [iter(self.direct(value))]
        while waiting:
            for use in waiting[-1]:
                if use.operator in _CARRIERS and use.slot == 0:
                    waiting.append(iter(self.direct(use.results[0])))
                    break
                yield use
            else:
                waiting.pop()

    def ends(self, value: _Value) -> frozenset[str]:
        """Return the operators that a value reaches through products."""
        waiting, entered = [value], set()
        while waiting:
            latest = waiting[-1]
            entered.add(latest)
            uses = list(self.of(latest))
            passed = [use.results[0] for use in uses if use.operator in _PRODUCTS]
            unknown = [result for result in passed if result not in self._ends and result not in entered]
            waiting.extend(unknown)
            if not unknown:
                waiting.pop()
                operators = frozenset(use.operator for use in uses if use.operator not in _PRODUCTS)
                self._ends[latest] = operators.union(*(self._ends.get(result, ()) for result in passed))
        return self._ends[value]

    def is_singular_at_zero(self, value: _Value) -> bool:
        """Whether all reads of a value are singular at zero: roots, logarithms, divisors."""
        found = list(self.of(value))
        return bool(found) and all(self._is_singular(use) for use in found)

    def _is_singular(self, use: Use) -> bool:
        if use.operator == "Pow" and use.slot == 0 and use.node is not None:
            exponents = [number for (_, name), number in self._numbers.items() if name == use.node.input[1]]
            return bool(exponents) and all(e < 0 or not e.is_integer() for e in exponents)
        return use.operator in ("Sqrt", "Log", "Reciprocal") or (use.operator == "Div" and use.slot == 1)


def role_of(uses: Uses, use: Use, single: bool) -> str | None:
    """Return the role in which code uses constants; None if weights are used in this way."""
    operator, slot = use.operator, use.slot
    if slot in _SETTINGS.get(operator, ()):
        return f"setting of {operator}"
    if use.node is not None and use.node.domain == "com.microsoft":
        return f"setting of {use.node.op_type}" if slot in _FUSED_SETTINGS.get(use.node.op_type, ()) else None
    if operator in _COMPARISONS:
        return "threshold"
    if operator == "Pow" and slot == 1:
        return "exponent"
    if not single:
        return None
    if operator == "Where" and slot > 0:
        return "fill value of Where"
    if operator in ("Min", "Max"):
        return "bound"
    if operator in ("Div", "Mod") and slot == 1:
        return "divisor"
    if operator == "Add" and uses.is_singular_at_zero(use.results[0]):
        return "epsilon"
    return None
