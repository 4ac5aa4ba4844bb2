"""Separating parameters that an exporter merged because their values were equal.

PyTorch's exporters store equal tensors once: the zero biases and unit scales of a network that was never trained, and
the layers of ``torch.nn.TransformerEncoder``, which start as copies. Shared parameters look the same in the graph.
These sources tell them apart, the most reliable first:

1. The newer exporter records for each node the call that it was made from, with the names of its operands. It gives a
   shared parameter one name.
2. The older one keeps the name of a merged parameter as the output of an Identity. A shared parameter has one name
   from the beginning.
3. Otherwise only the modules of the nodes are known. If all elements of an initializer are equal and different modules
   read it, it is taken for several parameters.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import onnx

from ortrain import _graph
from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer, all_equal, free_name, is_read, remove_initializers
from ortrain._support.counts import counted
from ortrain.artifacts.choice.export_record import MADE_UP, PATH, ExportRecord, module_of
from ortrain.artifacts.graph.changes import ChangeKind, Choice, WeightChange
from ortrain.artifacts.graph.reads import Origin, Origins, Read, is_added, replace_reads


def separate(
    model: onnx.ModelProto, record: ExportRecord, weights: set[str], choice: Choice
) -> list[WeightChange]:
    """Separate merged parameters of a model in place, and return the changes. `weights` are the initializers used as weights."""
    changes = _separate_named_copies(model, choice)
    origins = Origins(model, record)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    by_module = set() if changes or record.has_calls(model) or _is_as_exported(model) else weights
    for name, reads in origins.reads.items():
        if not choice.by_rule and not choice.names(name):
            continue
        parts = _by_origin(name, reads, origins, record)
        if parts is None and name in by_module and len(reads) > 1 and all_equal(tensors[name]):
            parts = _by_module(name, reads)
        if choice.names(name) and (parts is None or len(parts) < 2) and len(reads) > 1:
            by_modules = _by_module(name, reads)
            several = by_modules is not None and len(by_modules) > 1
            parts = by_modules if several else [_Part(name, [read]) for read in reads]
        renamed = parts is not None and len(parts) == 1 and parts[0].name != name
        if parts is not None and (len(parts) > 1 or (renamed and all_equal(tensors[name]))):
            changes.append(_apply(model, record, tensors[name], parts))
    return changes


def _is_as_exported(model: onnx.ModelProto) -> bool:
    """Whether no tool has simplified a model of the older exporter: only such a model still shows merged parameters."""
    return any(node.op_type in ("Constant", "Identity") for node in model.graph.node)


@dataclass
class _Part:
    """A future parameter, and the reads of it."""

    name: str
    reads: list[Read]
    sources: tuple[str, ...] | None = None
    """For a folded value, the parameters from which it was computed; empty for a constant."""


def _by_origin(name: str, reads: list[Read], origins: Origins, record: ExportRecord) -> list[_Part] | None:
    """Return the parts of an initializer by the calls that read it; None if no call names parameters."""
    if not any((origin := origins.of(read)) and origin.parameters for read in reads):
        return None
    mine = set(origins.parameters_of(name))
    parts: dict[Origin | None, _Part] = {}
    for read in reads:
        origin = origins.of(read)
        if origin is None or _is_of(origin, name, mine):
            part = parts.setdefault(None, _Part(name, []))
        elif not origin.parameters:
            known = record.kind_of(origin.value) is not None
            part = parts.setdefault(
                origin, _Part(origin.value or f"{name}_constant", [], None if known else ())
            )
        elif origin.value or record.sources_of(name):
            part = parts.setdefault(origin, _Part(origin.value or f"{name}_1", [], origin.parameters))
        else:
            part = parts.setdefault(origin, _Part(origin.parameters[0], []))
        part.reads.append(read)
    return list(parts.values())


def _is_of(origin: Origin, name: str, parameters: set[str]) -> bool:
    """Whether an initializer with these parameters already has the name of what is read."""
    if origin.value:
        return origin.value == name
    return parameters >= set(origin.parameters) and bool(parameters) == bool(origin.parameters)


def _by_module(name: str, reads: list[Read]) -> list[_Part] | None:
    """Return the parts of an initializer by the modules that read it; None if a module is unknown."""
    parts: dict[str, _Part] = {}
    for read in reads:
        module = module_of(read.node)
        if module is None:
            return None
        path = f"{module}.{'bias' if is_added(read) else 'weight'}"
        parts.setdefault(path, _Part(path, [])).reads.append(read)
    keep = name if name in parts else next(iter(parts))
    parts[keep].name = name
    return list(parts.values())


def _apply(
    model: onnx.ModelProto, record: ExportRecord, tensor: onnx.TensorProto, parts: list[_Part]
) -> WeightChange:
    name = tensor.name
    taken = _graph.names_in_use(model) - {name}
    keeps = next((part for part in parts if part.name == name), None)
    made = [name] if keeps is not None else []
    for part in parts:
        if part is keeps:
            continue
        if part.sources is not None or part.name == name or not _is_stored(model, part.name, tensor):
            part.name = free_name(part.name, taken | {name})
            taken.add(part.name)
            add_initializer(model, part.name, tensor)
        if part.sources is not None:
            record.note(model, part.name, part.sources)
        replace_reads(part.reads, part.name)
        made.append(part.name)
    if keeps is None and not is_read(model, name):
        remove_initializers(model, [name])
    return WeightChange(
        ChangeKind.SEPARATED, name, tuple(made), f"equal values, merged by the exporter; now {_listed(made)}"
    )


def _is_stored(model: onnx.ModelProto, name: str, value: onnx.TensorProto) -> bool:
    """Whether an initializer already has this name and value because of another read of the parameter."""
    found = next((tensor for tensor in model.graph.initializer if tensor.name == name), None)
    if found is None or found.data_type != value.data_type or found.dims != value.dims:
        return False
    a, b = array_of(found), array_of(value)
    return bool((a == b).all())


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return f"{counted(len(names), 'parameter')}, {shown}, ..." if len(names) > 4 else shown


# ----------------------------------------------------------------------------------------------------------------------
# The older exporter's Identity nodes.


def _separate_named_copies(model: onnx.ModelProto, choice: Choice) -> list[WeightChange]:
    """Turn Identity nodes whose outputs are named like parameters into initializers."""
    tensors = {
        tensor.name: tensor for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING
    }
    outputs = {output.name for output in model.graph.output}
    copies = [
        node
        for node in model.graph.node
        if node.op_type == "Identity"
        and re.fullmatch(r"Identity_\d+", node.name)
        and node.input[0] in tensors
        and node.output[0] not in outputs
        and not node.output[0].startswith("/")
    ]
    if model.producer_name != "pytorch" or not copies:
        return []
    copied_modules = {
        node.output[0].rpartition(".")[0]
        for node in copies
        if PATH.fullmatch(node.output[0]) and not all_equal(tensors[node.input[0]])
    }
    readers = {name: node for node in model.graph.node for name in node.input}
    found: dict[str, list[onnx.NodeProto]] = {}
    for node in copies:
        name = node.output[0]
        wanted = choice.names(node.input[0]) or choice.names(name)
        if choice.by_rule:
            reader = readers.get(name)
            wanted = (
                not MADE_UP.fullmatch(name)
                or all_equal(tensors[node.input[0]])
                or (reader is not None and _path_of(reader) in copied_modules)
            )
        if wanted:
            found.setdefault(node.input[0], []).append(node)
    changes = []
    for name, nodes in found.items():
        for node in nodes:
            add_initializer(model, node.output[0], tensors[name])
        made = [name, *(node.output[0] for node in nodes)]
        changes.append(
            WeightChange(
                ChangeKind.SEPARATED, name, tuple(made), f"equal values, merged by the exporter; now {_listed(made)}"
            )
        )  # fmt: skip
    gone = {node.output[0] for nodes in found.values() for node in nodes}
    for place in reversed([i for i, node in enumerate(model.graph.node) if node.output[0] in gone]):
        del model.graph.node[place]
    return changes


def _path_of(node: onnx.NodeProto) -> str:
    """Return the path of the module of a node as it is in the node's name."""
    parts = node.name.split("/")[1:-1]
    path = ""
    for part in parts:
        path = part if not path or part.startswith(f"{path}.") else f"{path}.{part}"
    return path
