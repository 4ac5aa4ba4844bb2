"""Which floating-point initializers of a model are parameters, and which are constants of its code.

A model file does not say what was trained. Weights, buffers, the exponent of a square and the epsilon of a
normalization are all floating-point initializers. Training the constants ruins a model: the gradient of an
exponent is NaN if the base is negative, and one step of AdamW makes an epsilon of 1e-5 negative. Leaving out all
single numbers would lose real parameters, such as the temperature of CLIP.

The first rule that applies decides:

1. *Running statistics* of batch normalization are not trained: they follow the batches.
2. *Unused initializers* have no gradient.
3. *The exporter's record.* PyTorch's newer exporter stores for each value whether it was a parameter, a buffer or
   a constant, and which values a folded one was computed from. A value folded from a parameter (transposed,
   expanded, looked up at fixed positions) is that parameter in another form. If a model has such a record, a
   scalar or vector with a generated name and no entry is a constant of the code.
4. *Values.* A tensor with infinities or the lowest number of its type is a mask.
5. *Names.* Exporters number the constants that they extract from the code, and some names of buffers are common.
6. *Uses.* Settings of operators (the bounds of Clip, the scales of Resize), thresholds and exponents are
   constants; so are single numbers used as a divisor, a bound, a fill value or an epsilon. One such use is
   enough for a single number, because exporters merge equal numbers; all uses of an array must be of this kind.
   Networks sometimes learn an exponent (generalized mean pooling) or a divisor (a temperature), so for these
   uses a name that comes from the network's code means a parameter.
7. *Rotations.* A vector that is only used to compute sines and cosines holds frequencies. Two tables whose
   squares add up to one hold cosines and sines of the same angles.
8. *Single numbers* with a generated name that only scale or shift are constants.
9. Everything else is trained. Models made by hand use any names, and exporters number the weights that they
   transpose (``onnx::MatMul_123``).

Uses inside If, Loop and Scan count. Parameters that no gradient reaches are left out later, when the gradient
graph is built.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx

from ortrain.onnxblock import _graph


class Fate(Enum):
    """What happens to an initializer."""

    TRAINED = "trained"
    """A parameter that training changes."""
    FROZEN = "frozen"
    """A parameter, stored in the checkpoint, that training does not change."""
    LEFT_OUT = "left out"
    """It stays in the models as a constant."""


@dataclass(frozen=True)
class InitializerReport:
    """The decision about one floating-point initializer, and the reason."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    fate: Fate
    reason: str
    recorded: bool = False
    """Whether the exporter's record decided."""

    @classmethod
    def of(
        cls, tensor: onnx.TensorProto, fate: Fate, reason: str, recorded: bool = False
    ) -> InitializerReport:
        """Return the report on an initializer."""
        name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        dtype = {"float": "float32", "double": "float64"}.get(name, name)
        return cls(tensor.name, tuple(tensor.dims), dtype, fate, reason, recorded)


def choose(model: onnx.ModelProto) -> list[InitializerReport]:
    """Decide for each floating-point initializer of the model's graph whether it is trained.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the metadata of its exporter. Functions must be inlined.

    Returns
    -------
    list of InitializerReport
        In the order of the model. No initializer is :attr:`Fate.FROZEN`.
    """
    chooser = _Chooser(model)
    return [
        chooser.decide(tensor) for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING
    ]


# ----------------------------------------------------------------------------------------------------------------------
# The exporter's record.

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(r"^\w+: (?P<kind>[A-Z_]+) target='(?P<target>[^']*)'", re.MULTILINE)


class _Record:
    """What PyTorch's newer exporter recorded about the values of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._kinds: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}
        self._has_signature = False
        for entry in (*model.metadata_props, *model.graph.metadata_props):
            if entry.key == _SIGNATURE:
                self._has_signature = True
                for line in _SIGNATURE_LINE.finditer(entry.value):
                    self._kinds[line["target"]] = line["kind"]
        graph = model.graph
        for value in (*graph.value_info, *graph.input, *graph.initializer):
            for entry in value.metadata_props:
                if entry.key == _KIND:
                    self._kinds[value.name] = entry.value
                elif entry.key == _FOLDED_FROM:
                    self._sources[value.name] = _list_of_names(entry.value)
        self.exists = bool(self._kinds)

    def kind_of(self, name: str) -> str | None:
        """Return ``"PARAMETER"``, ``"BUFFER"``, ``"CONSTANT_TENSOR"`` or another kind; None if there is no entry."""
        return self._kinds.get(name)

    def sources_of(self, name: str) -> list[str] | None:
        """Return the values that a folded value was computed from; None if there is no entry."""
        return self._sources.get(name)

    def parameters_in(self, names: Iterable[str]) -> list[str]:
        """Return the parameters among some values and the values they were folded from."""
        found, seen, waiting = [], set(), list(names)
        while waiting:
            name = waiting.pop(0)
            if name in seen:
                continue
            seen.add(name)
            if self._is_parameter(name):
                found.append(name)
            else:
                waiting.extend(self._sources.get(name, ()))
        return found

    def _is_parameter(self, name: str) -> bool:
        kind = self._kinds.get(name)
        if kind is None and not self._has_signature:
            # Values that folding removed from the graph have no entry of their own; only the name is left.
            return _PATH.fullmatch(name) is not None and not _is_named_as_constant(name)
        return kind == "PARAMETER"


def _list_of_names(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


# ----------------------------------------------------------------------------------------------------------------------
# Names.

#: Generated names: of PyTorch's newer exporter, of the older one, of tools that turn its Constant nodes into
#: initializers, of TensorFlow's, of PaddlePaddle's, and of onnxscript's functions. Weights that an exporter transposes
#: or folds have such names, too.
_MADE_UP = re.compile(
    r"val_\d+|(zeros|ones|full|scalar_tensor|arange|clone|detach|lift_fresh_copy)(_default)?(_\d+)?"
    r"|onnx::\w+|\d+"
    r"|/.*_output_\d+"
    r"|const_fold_opt__\d+"
    r"|(p2o\.)?helper\.constant\.\d+|Constant@\d+"
    r"|(const|u?int\d+|float)_m?\d+(_1d)?(_\d+)?(_cast)?(_\d+)?"
)
#: Names that PyTorch and TensorFlow give to tensors written in the code.
_LITERAL = re.compile(
    r"(.*\.)?(c_)?(lifted_tensor_|_tensor_constant)\d+|(.*/)?Const(_\d+)?(:0)?|.*/[xy](:0)?"
)
#: Common names of buffers in libraries for PyTorch.
_BUFFERS = frozenset(
    {
        "attn_mask",
        "causal_mask",
        "embed_scale",
        "inv_freq",
        "original_inv_freq",
        "pixel_mean",
        "pixel_std",
        "running_mean",
        "running_var",
    }
)
#: The path of a parameter or buffer in a network.
_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+")


def _is_named_as_constant(name: str) -> bool:
    return _LITERAL.fullmatch(name) is not None or name.rpartition(".")[2] in _BUFFERS


def _given_by_the_network(name: str, producer: str) -> bool:
    """Whether a name is that of a parameter or buffer in the network's code, not generated by an exporter."""
    if _MADE_UP.fullmatch(name) or _LITERAL.fullmatch(name):
        return False
    return producer == "pytorch" or "ReadVariableOp" in name or _PATH.fullmatch(name) is not None


# ----------------------------------------------------------------------------------------------------------------------
# Uses.

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
#: Operators whose output has the elements of the first input.
_CARRIERS = frozenset(
    {"Cast", "CastLike", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
)
_COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
#: Operators between frequencies and angles.
_PRODUCTS = frozenset({"Concat", "Einsum", "MatMul", "Mul", "Slice", "Gather"})
_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})

#: Uses of constants for which some networks learn the value.
_LEARNED_TOO = frozenset({"exponent", "divisor", "fill value of Where", "bound"})

_Value = tuple[int, str]
"""A value: the number of the graph that defines it, 0 for the main graph, and its name there."""


@dataclass(frozen=True)
class _Use:
    """A read of a value. An output of a graph counts as a read without a node."""

    node: onnx.NodeProto | None
    slot: int
    results: tuple[_Value, ...]

    @property
    def operator(self) -> str:
        """The type of the operator; empty if it is not an operator of ONNX."""
        return self.node.op_type if self.node is not None and self.node.domain in ("", "ai.onnx") else ""


class _Uses:
    """The reads of all values, in a graph and its subgraphs."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._of: dict[_Value, list[_Use]] = {}
        self._numbers: dict[_Value, float] = {}
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
                self._of.setdefault(resolve(name), []).append(_Use(node, slot, results))
            for attribute in node.attribute:
                if node.op_type == "Constant" and attribute.name == "value":
                    self._note_number(results[0], attribute.t)
                if node.op_type == "Constant" and attribute.name == "value_float":
                    self._numbers[results[0]] = attribute.f
                for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                    self._read(inner, scopes)
        for output in graph.output:
            self._of.setdefault(resolve(output.name), []).append(_Use(None, 0, ()))

    def _note_number(self, value: _Value, tensor: onnx.TensorProto) -> None:
        if math.prod(tensor.dims) == 1 and tensor.data_type in _graph.FLOATING:
            self._numbers[value] = float(onnx.numpy_helper.to_array(tensor).item())

    def direct(self, value: _Value) -> list[_Use]:
        """Return the reads of a value."""
        return self._of.get(value, [])

    def of(self, value: _Value) -> Iterator[_Use]:
        """Yield the reads of a value and of all its copies, reshaped or cast."""
        for use in self.direct(value):
            if use.operator in _CARRIERS and use.slot == 0:
                yield from self.of(use.results[0])
            else:
                yield use

    def ends(self, value: _Value, through: frozenset[str]) -> set[str]:
        """Return the operators that a value reaches through some others."""
        found, seen, waiting = set(), set(), [value]
        while waiting:
            value = waiting.pop()
            for use in self.of(value):
                if use.operator not in through:
                    found.add(use.operator)
                elif use.results[0] not in seen:
                    seen.add(use.results[0])
                    waiting.append(use.results[0])
        return found

    def is_singular_at_zero(self, value: _Value) -> bool:
        """Whether all reads of a value are singular at zero: roots, logarithms, divisors."""
        found = list(self.of(value))
        return bool(found) and all(self._is_singular(use) for use in found)

    def _is_singular(self, use: _Use) -> bool:
        if use.operator == "Pow" and use.slot == 0 and use.node is not None:
            exponents = [number for (_, name), number in self._numbers.items() if name == use.node.input[1]]
            return bool(exponents) and all(e < 0 or not e.is_integer() for e in exponents)
        return use.operator in ("Sqrt", "Log", "Reciprocal") or (use.operator == "Div" and use.slot == 1)


def _role(uses: _Uses, use: _Use, single: bool) -> str | None:
    """Return the role in which code uses constants; None if weights are used in this way."""
    operator, slot = use.operator, use.slot
    if slot in _SETTINGS.get(operator, ()):
        return f"setting of {operator}"
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


# ----------------------------------------------------------------------------------------------------------------------
# The rules.


class _Chooser:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._producer = model.producer_name
        self._record = _Record(model)
        self._uses = _Uses(model.graph)
        self._statistics = frozenset(_graph.running_statistics(model))
        self._graph = model.graph

    def decide(self, tensor: onnx.TensorProto) -> InitializerReport:
        """Apply the rules to a floating-point initializer."""
        name = tensor.name
        if name in self._statistics:
            return InitializerReport.of(tensor, Fate.LEFT_OUT, "running statistic")
        if not self._uses.direct((0, name)):
            return InitializerReport.of(tensor, Fate.LEFT_OUT, "unused")
        recorded = self._recorded(name, len(tensor.dims))
        if recorded is not None:
            return InitializerReport.of(tensor, *recorded, recorded=True)
        reason = self._constant_because(tensor)
        if reason is not None:
            return InitializerReport.of(tensor, Fate.LEFT_OUT, reason)
        operators = {use.operator or "an inner graph" for use in self._uses.direct((0, name))}
        return InitializerReport.of(
            tensor, Fate.TRAINED, f"used as a weight by {', '.join(sorted(operators))}"
        )

    def _constant_because(self, tensor: onnx.TensorProto) -> str | None:
        """Return why an initializer without a record is a constant; None for a weight."""
        name = tensor.name
        if _masks(tensor):
            return "a mask: contains infinities or the lowest number of its type"
        if _is_named_as_constant(name):
            return "named like a constant or a buffer"
        size = math.prod(tensor.dims)
        return self._used_as_constant(name, single=size == 1, is_vector=size == max(tensor.dims, default=1))

    def _recorded(self, name: str, rank: int) -> tuple[Fate, str] | None:
        """Return what the exporter's record says about an initializer; None if nothing."""
        record = self._record
        kind = record.kind_of(name)
        if kind is not None:
            fate = Fate.TRAINED if kind == "PARAMETER" else Fate.LEFT_OUT
            return fate, f"recorded as {kind.lower().replace('_', ' ')}"
        if not record.exists:
            return None
        sources = record.sources_of(name)
        if sources is not None:
            parameters = record.parameters_in(sources)
            if parameters:
                return Fate.TRAINED, f"folded from {', '.join(parameters)}"
            return Fate.LEFT_OUT, "folded from constants"
        if rank < 2 and _MADE_UP.fullmatch(name):
            return Fate.LEFT_OUT, "a constant: not among the recorded parameters"
        return None

    def _used_as_constant(self, name: str, single: bool, is_vector: bool) -> str | None:
        uses = list(self._uses.of((0, name)))
        roles = {role for use in uses if (role := _role(self._uses, use, single))}
        others = [use for use in uses if not _role(self._uses, use, single)]
        if roles and (single or not others):
            learned = roles <= _LEARNED_TOO and _given_by_the_network(name, self._producer)
            if not learned:
                return ", ".join(sorted(roles))
        # A matrix may be a layer of a network with sines as activations.
        if is_vector and self._uses.ends((0, name), _PRODUCTS) == {"Cos", "Sin"}:
            return "frequencies of sines and cosines"
        if name in self._rotation_tables:
            return "a table of cosines or sines"
        if single and _MADE_UP.fullmatch(name) and all(use.operator in _ARITHMETIC for use in uses):
            return "a single number with a generated name"
        return None

    @cached_property
    def _rotation_tables(self) -> frozenset[str]:
        """Names of tables of cosines and sines of the same angles."""
        tables: dict[tuple[int, ...], list[tuple[str, npt.NDArray[np.float64]]]] = {}
        for tensor in self._graph.initializer:
            if tensor.data_type not in _graph.FLOATING or len(tensor.dims) < 2:
                continue
            if not all(use.operator == "Mul" for use in self._uses.of((0, tensor.name))):
                continue
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            # Gains of one and gates of zero, common initial values, are not rotations.
            if array.size and np.abs(array).max() <= 1 + 1e-3 and np.ptp(array) > 0:
                tables.setdefault(array.shape, []).append((tensor.name, array))
        found = set()
        for alike in tables.values():
            for (first, a), (second, b) in itertools.combinations(alike, 2):
                if np.allclose(a * a + b * b, 1, atol=2e-3):
                    found |= {first, second}
        return frozenset(found)


def _masks(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor contains infinities or the lowest number of its type, as attention masks do."""
    if tensor.data_type == onnx.TensorProto.BFLOAT16:
        return False
    array = onnx.numpy_helper.to_array(tensor)
    return bool(array.size) and bool((array <= np.finfo(array.dtype).min).any())
