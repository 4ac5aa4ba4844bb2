"""Which nodes read which initializers, and which parameters of the network these reads are, by the exporter's record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import onnx

from ortrain import _graph
from ortrain.artifacts.choice.export_record import Call, ExportRecord, function_of


@dataclass(frozen=True, eq=False)
class Read:
    """A floating-point initializer of the main graph as an input of one of its nodes."""

    node: onnx.NodeProto
    slot: int
    name: str


@dataclass(frozen=True)
class Origin:
    """The counterpart of a read in the network."""

    parameters: tuple[str, ...]
    """The parameters from which the value was computed; empty for a constant of the code."""
    value: str = ""
    """The name of the buffer, or of the intermediate value that was folded; empty for a parameter itself."""


_CONSTANT = Origin(())
_LAYERS = frozenset(
    {"linear", "conv1d", "conv2d", "conv3d", "convolution", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
)  # fmt: skip
_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})


def reads_of(model: onnx.ModelProto) -> dict[str, list[Read]]:
    """Return the reads of each floating-point initializer by nodes of the main graph, in the order of the model."""
    found: dict[str, list[Read]] = {
        tensor.name: [] for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING
    }
    for node in model.graph.node:
        for slot, name in enumerate(node.input):
            if name in found:
                found[name].append(Read(node, slot, name))
    return found


def left_out_bias(record: ExportRecord, node: onnx.NodeProto) -> str | None:
    """Return the parameter that was the bias of a layer whose node has none; None if the network has none either."""
    if node.op_type not in ("Gemm", "Conv", "ConvTranspose") or (len(node.input) > 2 and node.input[2]):
        return None
    call = record.call_of(node)
    place = {"addmm": 0}.get(call.function, 2 if call.function in _LAYERS else None) if call else None
    if call is None or place is None or place >= len(call.arguments):
        return None
    operands = call.arguments[place]
    return operands[0] if len(operands) == 1 and record.kind_of(operands[0]) == "PARAMETER" else None


class Origins:
    """The origins of all reads of initializers."""

    def __init__(self, model: onnx.ModelProto, record: ExportRecord) -> None:
        self._record = record
        self.reads = reads_of(model)
        self._of: dict[Read, Origin] = {}
        values = {value.name for value in model.graph.input}
        self._computed = values.union(*(node.output for node in model.graph.node))
        self._accounted = set(self.reads)
        for name in self.reads:
            self._accounted.update(record.sources_of(name) or ())
        calls: dict[int, tuple[Call, list[Read], list[onnx.NodeProto]]] = {}
        by_node = defaultdict(list)
        for reads in self.reads.values():
            for read in reads:
                by_node[id(read.node)].append(read)
        for node in model.graph.node:
            call = record.call_of(node)
            if call is not None:
                _, reads, nodes = calls.setdefault(id(call), (call, [], []))
                nodes.append(node)
                ordered = sorted(by_node[id(node)], key=lambda read: read.slot)
                reads.extend(read for read in ordered if _may_be_parameter(call, read))
        for call, reads, nodes in calls.values():
            self._trace(call, reads, nodes)
        self._trace_folded_in_one_module()

    def of(self, read: Read) -> Origin | None:
        """Return the origin of a read; None if the model does not say."""
        return self._of.get(read)

    def parameters_of(self, name: str) -> list[str]:
        """Return the parameters that an initializer is, or was computed from."""
        return self._record.parameters_in([name])

    # Operands of a call that no node computes are parameters, or values that were folded. Initializers that the nodes of the
    # call read are matched with these operands: first by name, the remaining ones in order.

    def _trace(self, call: Call, reads: list[Read], nodes: list[onnx.NodeProto]) -> None:
        absent = {left_out_bias(self._record, node) for node in nodes}
        operands = [name for name in call.operands if name not in self._computed and name not in absent]
        stored = [name for name in operands if self._record.kind_of(name) is not None]
        folded = [name for name in operands if self._record.kind_of(name) is None]
        if len(reads) == len(stored) and all(map(self._fits, reads, stored)):
            for read, name in zip(reads, stored, strict=True):
                self._set(read, (name,))
            return
        rest = []
        for read in reads:
            sources = {read.name, *(self._record.sources_of(read.name) or ())}
            mine = tuple(name for name in stored if name in sources)
            if mine:
                self._set(read, mine)
                stored = [name for name in stored if name not in mine]
            elif read.name in folded:
                folded.remove(read.name)
                self._of[read] = Origin(tuple(self.parameters_of(read.name)[:1]), read.name)
            else:
                rest.append(read)
        again = [read for read in rest if read.name in operands and not stored and not folded]
        rest = [read for read in rest if read not in again]
        if stored:
            self._trace_by_order(call, rest, stored)
        elif folded:
            self._trace_folded(call, rest, folded)
        else:
            self._of.update((read, _CONSTANT) for read in rest)

    def _fits(self, read: Read, name: str) -> bool:
        return read.name == name or name not in self.reads

    def _set(self, read: Read, stored: tuple[str, ...]) -> None:
        parameters = tuple(name for name in stored if self._record.kind_of(name) == "PARAMETER")
        self._of[read] = Origin(parameters) if parameters else Origin((), stored[0])

    def _trace_by_order(self, call: Call, reads: list[Read], stored: list[str]) -> None:
        if len(reads) > len(stored):
            reads = [read for read in reads if self.parameters_of(read.name)]
        share = len(stored) // len(reads) if reads else 0
        if call.function in _RECURRENT and share and len(stored) % len(reads) == 0:
            for number, read in enumerate(reads):
                self._set(read, tuple(stored[number * share : (number + 1) * share]))
        elif len(reads) == len(stored):
            for read, name in zip(reads, stored, strict=True):
                self._set(read, (name,))
        elif len(stored) == 1 and len({read.name for read in reads}) == 1:
            for read in reads:
                self._set(read, (stored[0],))
        elif len(reads) == 1:
            self._set(reads[0], (stored[-1 if is_added(reads[0]) else 0],))

    def _trace_folded(self, call: Call, reads: list[Read], folded: list[str]) -> None:
        for read in reads:
            parameters = self.parameters_of(read.name)
            alike = [name for name in folded if function_of(name) == function_of(read.name)]
            if not parameters or not (alike or len(folded) == 1):
                continue
            value = (alike or folded)[0]
            if len(alike) > 1:
                # the next read belongs to another folded value
                folded = [name for name in folded if name != value]
            module, _, leaf = parameters[0].rpartition(".")
            source = f"{call.module}.{leaf}"
            if call.module == module:
                self._of[read] = Origin((parameters[0],), value)
            elif self._record.kind_of(source) == "PARAMETER":
                self._of[read] = Origin((source,), value)

    def _trace_folded_in_one_module(self) -> None:
        """Assign a source to each value that was folded in a module and merged with equal values.

        A module that is called several times may fold the same parameter each time. So values get sources only if the module
        has as many parameters without an initializer as there are values.
        """
        for name, reads in self.reads.items():
            parameters = self.parameters_of(name)
            here = [
                (read, origin)
                for read in reads
                if (origin := self._of.get(read)) is not None
                and origin.value
                and origin.parameters[:1] == tuple(parameters[:1])
            ]
            values = list(dict.fromkeys(origin.value for _, origin in here))
            if not parameters or len(values) < 2:
                continue
            module = parameters[0].rpartition(".")[0]
            sources = [
                other
                for other in self._record.parameters
                if other.rpartition(".")[0] == module
                and (other == parameters[0] or other not in self._accounted)
            ]
            for read, origin in here:
                if len(sources) == len(values):
                    self._of[read] = Origin((sources[values.index(origin.value)],), origin.value)
                else:
                    self._of[read] = Origin((parameters[0],), name)


def _may_be_parameter(call: Call, read: Read) -> bool:
    """Whether an input of a node may be an operand of the call, not a unit scale, an initial state or a layer before it."""
    if call.function == "group_norm":
        return read.node.op_type != "InstanceNormalization"
    if "batch_norm" in call.function:
        return read.node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul")
    return call.function not in _RECURRENT or read.slot in (1, 2, 3)


def is_added(read: Read) -> bool:
    """Whether an operator adds the read value, as a bias."""
    if read.node.op_type in ("Gemm", "Conv", "ConvTranspose", "LayerNormalization", "BatchNormalization"):
        return read.slot == 2
    return read.node.op_type in ("Add", "Sum", "Sub")


def replace_reads(reads: Iterable[Read], name: str) -> None:
    """Make nodes read another value."""
    for read in reads:
        read.node.input[read.slot] = name
