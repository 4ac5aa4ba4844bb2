"""Weights that an exporter computed from parameters, so that training them is not training the parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import onnx

from ortrain._graph.initializers import all_equal
from ortrain._support.counts import counted
from ortrain.artifacts.choice.export_record import ExportRecord, function_of
from ortrain.artifacts.graph.reads import Origins
from ortrain.artifacts.graph.unrepeat import COPYING

#: Functions that may copy an element several times.
_REPEATING = frozenset(
    {"_unsafe_index", "embedding", "expand", "gather", "index", "index_select", "repeat", "tile"}
)

#: How the older exporter names weights that it transposes or concatenates.
_REORDERED = re.compile(r"onnx::(MatMul|Gemm|LSTM|GRU|RNN)_\d+")


@dataclass(frozen=True)
class FoldedWeight:
    """A trained initializer that an exporter computed from parameters of the network."""

    name: str
    sources: tuple[str, ...]
    """The parameters, as far as the exporter recorded them."""
    reason: str

    def __str__(self) -> str:
        """Return a line of the report."""
        return f"{'folded':<10}  {self.name}: {self.reason}"


def folded_weights(
    model: onnx.ModelProto, record: ExportRecord, trained: Iterable[str]
) -> list[FoldedWeight]:
    """Return the trained initializers that are not copies of a parameter, and why."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    normalized = _with_normalization(model, record)
    found = []
    for name in trained:
        if name not in tensors:
            continue
        if name in normalized:
            found.append(normalized[name])
        elif record.exists:
            reason = _recorded_reason(tensors, record, name)
            if reason is not None:
                sources = record.parameters_in(record.sources_of(name) or ())
                found.append(FoldedWeight(name, tuple(sources), reason))
        elif model.producer_name == "pytorch" and len(tensors[name].dims) > 1:
            if re.fullmatch(r"onnx::Conv(Transpose)?_\d+", name):
                found.append(
                    FoldedWeight(
                        name,
                        (),
                        "computed while exporting, most likely a batch normalization was folded into it",
                    )
                )
            elif name.startswith("onnx::") and not _REORDERED.fullmatch(name):
                found.append(
                    FoldedWeight(
                        name, (), "computed while exporting, from parameters that the file does not name"
                    )
                )
    return found


def _recorded_reason(tensors: dict[str, onnx.TensorProto], record: ExportRecord, name: str) -> str | None:
    sources = record.parameters_in(record.sources_of(name) or ())
    if not sources:
        return None
    function, names = function_of(name), ", ".join(sources)
    if function not in COPYING and "." not in name:  # a path is not the name of a result
        return f"computed from {names} by {function} while exporting, and trained on its own"
    if function in _REPEATING and all_equal(tensors[name]):
        return f"elements of {names}, perhaps repeated; equal values do not show which were repeated"
    also = [source for source in sources if source in tensors]
    return f"copied from {', '.join(also)}, and both are trained" if also else None


def _with_normalization(model: onnx.ModelProto, record: ExportRecord) -> dict[str, FoldedWeight]:
    """Return the weights of convolutions into which, by the exporter's record, a batch normalization was folded."""
    found = {}
    for node in model.graph.node:
        call = record.call_of(node) if node.op_type in ("Conv", "ConvTranspose") else None
        if call is not None and "batch_norm" in call.function:
            sources = tuple(name for name in call.operands if record.kind_of(name) == "PARAMETER")
            absent = counted(len(sources), "parameter")
            reason = f"contains the batch normalization {call.module}, whose {absent} are not in the model"
            found[node.input[1]] = FoldedWeight(node.input[1], sources, reason)
    return found


def absent_parameters(model: onnx.ModelProto, record: ExportRecord) -> list[str]:
    """Return parameters of the network that the model lacks, although it has others of the same module.

    They are unused, or an exporter merged what is computed from them with something equal.
    """
    origins = Origins(model, record)
    named = {tensor.name for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        named.update(record.parameters_in([tensor.name]))
    for folded in _with_normalization(model, record).values():
        named.update(folded.sources)
    # The exporter gives a shared parameter the last of its names; nodes of other modules read it too.
    for reads in origins.reads.values():
        for read in reads:
            call, origin = record.call_of(read.node), origins.of(read)
            if call is None or origin is None:
                continue
            for parameter in origin.parameters:
                named.add(f"{call.module}.{parameter.rpartition('.')[2]}")
    modules = {name.rpartition(".")[0] for name in named}
    return [name for name in record.parameters if name not in named and name.rpartition(".")[0] in modules]
