"""Which floating-point initializers of a model are parameters, and which are constants of its code.

A model file does not say what was trained. Weights, buffers, the exponent of a square and the epsilon of a
normalization are all floating-point initializers. Training the constants ruins a model: the gradient of an
exponent is NaN if the base is negative, and one step of AdamW makes an epsilon of 1e-5 negative. Leaving out all
single numbers would lose real parameters, such as the temperature of CLIP.

The record of an export by ortrain (:mod:`ortrain._frameworks.record`) names the parameters. In other models the first rule that
applies decides:

1. *Running statistics* of batch normalization are not trained: they follow the batches.
2. *Unused initializers* have no gradient.
3. *The exporter's record.* PyTorch's newer exporter stores for each value whether it was a parameter, a buffer or
   a constant, and from which values a folded value was computed. A value folded from a parameter (transposed,
   expanded, looked up at fixed positions) is that parameter in another form. If a model has such a record, a
   scalar or vector with a generated name and no entry is a constant of the code.
4. *Values.* A tensor with infinities or the lowest number of its type is a mask.
5. *Names.* Exporters number the constants that they extract from the code, and some names of buffers are common. jax2tf numbers
   the weights of layers in the same way, so for these their uses decide.
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

import itertools
import math
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of, pieces_of
from ortrain._frameworks.record import FrameworkExport, export_of
from ortrain.artifacts.choice.export_record import (
    MADE_UP,
    PATH,
    ExportRecord,
    is_generated,
    is_named_as_constant,
)
from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.choice.uses import Uses, role_of


def choose(model: onnx.ModelProto) -> list[InitializerReport]:
    """Decide for each floating-point initializer of the model's graph whether it is trained.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the metadata of its exporter. Functions must be inlined.

    Returns
    -------
    list of InitializerReport
        In the order of the model. :attr:`Fate.FROZEN` are only parameters that the record of an export by ortrain
        calls frozen, and the running statistics in such an export that no step updates.

    Raises
    ------
    ValueError
        When that record is damaged.
    """
    export = export_of(model)
    if export is not None:
        return _as_exported(model, export)
    chooser = _Chooser(model)
    return [
        chooser.decide(tensor) for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING
    ]


def _as_exported(model: onnx.ModelProto, export: FrameworkExport) -> list[InitializerReport]:
    """Train and freeze the initializers that the framework trains and freezes."""
    fates = {name: (Fate.LEFT_OUT, "a buffer of the network") for name in export.buffers}
    fates |= {name: (Fate.FROZEN, "not trained by the network") for name in export.frozen}
    fates |= {name: (Fate.TRAINED, "trained by the network") for name in export.trained}
    # Buffers that no step updates are parameters too, so that the checkpoint has the state of the whole network.
    fates |= {name: (Fate.FROZEN, "running statistic, fixed") for name in _graph.running_statistics(model)}
    updated = _graph.running_statistics(model, updated_only=True)
    fates |= {name: (Fate.LEFT_OUT, "running statistic") for name in updated}
    constant = (Fate.LEFT_OUT, "a constant of the network's code")
    return [
        InitializerReport.of(tensor, *fates.get(tensor.name, constant), recorded=True)
        for tensor in model.graph.initializer
        if tensor.data_type in _graph.FLOATING
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Names.


def _given_by_the_network(name: str, producer: str) -> bool:
    """Whether a name comes from a parameter or buffer in the network's code, not from an exporter."""
    if is_generated(name):
        return False
    return producer == "pytorch" or "ReadVariableOp" in name or PATH.fullmatch(name) is not None


# ----------------------------------------------------------------------------------------------------------------------
# Uses.

_ARITHMETIC = frozenset({"Add", "Div", "Mul", "Sub"})

#: Uses of constants for which some networks learn the value.
_LEARNED_TOO = frozenset({"exponent", "divisor", "fill value of Where", "bound"})


# ----------------------------------------------------------------------------------------------------------------------
# The rules.


class _Chooser:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._producer = model.producer_name
        self._record = ExportRecord(model)
        self._uses = Uses(model.graph)
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
        if is_named_as_constant(name) and not self._is_weight_of_jax(tensor):
            return "named like a constant or a buffer"
        size = math.prod(tensor.dims)
        return self._used_as_constant(name, single=size == 1, is_vector=size == max(tensor.dims, default=1))

    def _is_weight_of_jax(self, tensor: onnx.TensorProto) -> bool:
        """Whether jax2tf, which makes constants of all arrays, made this one of the weights of a layer."""
        layers = (("MatMul", 1), ("Gemm", 1), ("Conv", 1), ("Gather", 0))
        uses = self._uses.of((0, tensor.name))
        return (
            tensor.name.startswith("jax2tf")
            and len(tensor.dims) > 1
            and any((use.operator, use.slot) in layers for use in uses)
        )

    def _recorded(self, name: str, rank: int) -> tuple[Fate, str] | None:
        """Return the fate of an initializer by the exporter's record; None if the record does not mention the initializer."""
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
        if rank < 2 and MADE_UP.fullmatch(name):
            return Fate.LEFT_OUT, "a constant: not among the recorded parameters"
        return None

    def _used_as_constant(self, name: str, single: bool, is_vector: bool) -> str | None:
        uses = list(self._uses.of((0, name)))
        roles = {role for use in uses if (role := role_of(self._uses, use, single))}
        others = [use for use in uses if not role_of(self._uses, use, single)]
        if roles and (single or not others):
            learned = roles <= _LEARNED_TOO and _given_by_the_network(name, self._producer)
            if not learned:
                return ", ".join(sorted(roles))
        # A matrix may be a layer of a network with sines as activations.
        if is_vector and self._uses.ends((0, name)) == {"Cos", "Sin"}:
            return "frequencies of sines and cosines"
        if name in self._rotation_tables:
            return "a table of cosines or sines"
        if single and MADE_UP.fullmatch(name) and all(use.operator in _ARITHMETIC for use in uses):
            return "a single number with a generated name"
        return None

    @cached_property
    def _rotation_tables(self) -> frozenset[str]:
        """Return the names of tables with cosines and sines of the same angles."""
        tables: dict[tuple[int, ...], list[tuple[str, npt.NDArray[np.float64]]]] = {}
        for tensor in self._graph.initializer:
            if tensor.data_type not in _graph.FLOATING or len(tensor.dims) < 2:
                continue
            if not all(use.operator == "Mul" for use in self._uses.of((0, tensor.name))):
                continue
            array = array_of(tensor).astype(np.float64)
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
    return any(bool((piece <= np.finfo(piece.dtype).min).any()) for piece in pieces_of(tensor))
