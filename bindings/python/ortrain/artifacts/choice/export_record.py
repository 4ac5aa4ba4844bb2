"""The records of PyTorch's exporters in a model file: names, kinds and sources of values, and the calls that nodes come from.

The newer exporter stores in metadata which values were parameters, what a folded value was computed from, and for
each node the call in the traced program, with its operands by name, and the module that made the call. The older exporter
leaves only names: of parameters, and of nodes, whose names contain the path of their module.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx

_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_SIGNATURE_LINE = re.compile(
    r"^(?P<placeholder>\w+): (?P<kind>[A-Z_]+) target='(?P<target>[^']*)'", re.MULTILINE
)
_CALL = "pkg.torch.onnx.fx_node"
_CALL_START = re.compile(
    r"%(?P<result>\w+) : [^\[]*(\[[^\]]*\] = )?call_function\[target=(?P<function>[\w.]+)\]\(args = \("
)
_SCOPES = "pkg.torch.onnx.name_scopes"
#: The key of the modules of nodes in a model's metadata, which the training core keeps. It drops the metadata of nodes.
_MODULES = "ortrain.modules"

#: Generated names: of PyTorch's newer exporter, of the older exporter, of tools that turn its Constant nodes into initializers,
#: of the exporters of TensorFlow and PaddlePaddle, and of onnxscript's functions. Weights that an exporter transposes or folds
#: have such names, too.
MADE_UP = re.compile(
    r"val_\d+|(zeros|ones|full|scalar_tensor|arange|clone|detach|lift_fresh_copy)(_default)?(_\d+)?"
    r"|onnx::\w+|\d+"
    r"|/.*_output_\d+"
    r"|const_fold_opt__\d+|ConstantFolding/.*_recip(:0)?"
    r"|(p2o\.)?helper\.constant\.\d+|Constant@\d+"
    r"|(const|u?int\d+|float)_m?\d+(_1d)?(_\d+)?(_cast)?(_\d+)?"
)
#: Names that PyTorch and TensorFlow give to tensors written in the code.
LITERAL = re.compile(r"(.*\.)?(c_)?(lifted_tensor_|_tensor_constant)\d+|(.*/)?Const(_\d+)?(:0)?|.*/[xy](:0)?")
#: The path of a parameter or buffer in a network.
PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)+")
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


def is_generated(name: str) -> bool:
    """Whether an exporter made a name up, or took it from the code around a tensor."""
    return MADE_UP.fullmatch(name) is not None or LITERAL.fullmatch(name) is not None


def is_named_as_constant(name: str) -> bool:
    """Whether exporters give this name to constants of the code, or libraries to buffers."""
    return LITERAL.fullmatch(name) is not None or name.rpartition(".")[2] in _BUFFERS


@dataclass(frozen=True)
class Call:
    """A call in the traced program, such as ``aten.linear``, from which the exporter made one or more nodes."""

    result: str
    """The name of the call's result."""
    function: str
    """The name of the function: ``linear``, ``layer_norm``, ``conv2d``."""
    arguments: tuple[tuple[str, ...], ...]
    """The names of the values that each argument reads. A parameter is listed under its name in the network."""
    module: str
    """The path of the module that made the call."""

    @property
    def operands(self) -> list[str]:
        """The values that the call reads, each once."""
        return list(dict.fromkeys(name for argument in self.arguments for name in argument))


class ExportRecord:
    """The record of PyTorch's newer exporter about a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._kinds: dict[str, str] = {}
        self._sources: dict[str, list[str]] = {}
        self._placeholders: dict[str, str] = {}
        self._calls: dict[str, Call | None] = {}
        self._has_signature = False
        for entry in (*model.metadata_props, *model.graph.metadata_props):
            if entry.key == _SIGNATURE:
                self._has_signature = True
                for line in _SIGNATURE_LINE.finditer(entry.value):
                    self._kinds[line["target"]] = line["kind"]
                    self._placeholders[line["placeholder"]] = line["target"]
        graph = model.graph
        for value in (*graph.value_info, *graph.input, *graph.initializer):
            for entry in value.metadata_props:
                if entry.key == _KIND:
                    self._kinds[value.name] = entry.value
                elif entry.key == _FOLDED_FROM:
                    self._sources[value.name] = _list_of_names(entry.value)
        self.exists = bool(self._kinds)

    @property
    def parameters(self) -> list[str]:
        """The names of the network's parameters, in its order. A shared one may have several names."""
        return [name for name, kind in self._kinds.items() if kind == "PARAMETER"]

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

    def call_of(self, node: onnx.NodeProto) -> Call | None:
        """Return the call that a node was made from; None if the model does not say."""
        entries = {entry.key: entry.value for entry in node.metadata_props}
        text = entries.get(_CALL, "")
        if text not in self._calls:
            scopes = _list_of_names(entries.get(_SCOPES, ""))
            self._calls[text] = self._parsed(text, _without_count(scopes[-2]) if len(scopes) > 1 else "")
        return self._calls[text]

    def _parsed(self, text: str, module: str) -> Call | None:
        """Return a call from the exporter's text ``%y : [..] = call_function[target=f](args = (..), kwargs = {..})``."""
        start = _CALL_START.match(text)
        if start is None:
            return None
        positional, _, named = text[start.end() :].rpartition("), kwargs = {")
        return Call(
            start["result"],
            start["function"].removeprefix("torch.ops.aten.").partition(".")[0],
            tuple(self._values_in(argument) for argument in (*_split(positional), named)),
            module,
        )

    def has_calls(self, model: onnx.ModelProto) -> bool:
        """Whether nodes have an entry of the call that they were made from."""
        return any(self.call_of(node) is not None for node in model.graph.node)

    def note(self, model: onnx.ModelProto, name: str, sources: Iterable[str]) -> None:
        """Record for an initializer that is added to the model what it was computed from; nothing for a constant."""
        value = model.graph.value_info.add(name=name)
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        value.CopyFrom(onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims))
        named = list(sources)
        if named:
            self._sources[name] = named
            value.metadata_props.add(key=_FOLDED_FROM, value=repr(named))
        else:
            self._kinds[name] = "CONSTANT_TENSOR"
            value.metadata_props.add(key=_KIND, value="CONSTANT_TENSOR")

    def _values_in(self, argument: str) -> tuple[str, ...]:
        names = re.findall(r"%(\w+)", argument)
        return tuple(self._placeholders.get(name, name) for name in names)

    def _is_parameter(self, name: str) -> bool:
        kind = self._kinds.get(name)
        if kind is None and not self._has_signature:
            # A value that folding removed from the graph has no entry, only a name.
            return PATH.fullmatch(name) is not None and not is_named_as_constant(name)
        return kind == "PARAMETER"


def _list_of_names(text: str) -> list[str]:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _split(arguments: str) -> Iterator[str]:
    """Yield the arguments of a call, which commas outside brackets separate."""
    depth, start = 0, 0
    for place, character in enumerate(arguments):
        if character in "([":
            depth += 1
        elif character in ")]":
            depth -= 1
        elif character == "," and depth == 0:
            yield arguments[start:place]
            start = place + 1
    yield arguments[start:]


def function_of(name: str) -> str:
    """Return the function in the name that the newer exporter gives to its result: ``add`` for ``add_10``."""
    return re.sub(r"(_\d+)+$", "", name)


def module_of(node: onnx.NodeProto) -> str | None:
    """Return the path of the module that a node belongs to; None if the model does not say.

    The newer exporter records it. The older one names nodes ``/encoder/layers.0/fc1/Add``. It numbers the calls of a
    module that is called several times (``/fc/Gemm``, ``/fc_1/Gemm``); such numbers are left out, so that two modules
    named alike look like one.
    """
    for entry in node.metadata_props:
        if entry.key == _SCOPES:
            scopes = _list_of_names(entry.value)
            return _without_count(scopes[-2]) if len(scopes) > 1 else None
    return module_in(node.name)


def module_in(name: str) -> str | None:
    """Return the path of the module in a name that PyTorch's older exporter gave to a node or a value; None if it has none."""
    if not name.startswith("/"):
        return None
    path = ""
    for part in name.split("/")[1:-1]:
        plain = re.sub(r"_\d+$", "", part)
        # The name of a module in a list begins with the name of the list: /layers.0/layers.0.fc
        path = plain if not path or plain.startswith(f"{path}.") else f"{path}.{plain}"
    return path or None


def note_modules(model: onnx.ModelProto, written: onnx.ModelProto) -> None:
    """Record in the metadata of a model of the training core which modules the layers of a given model belong to.

    Models that are exported from it have the record. :func:`with_modules` reads it.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    modules = {
        node.name: module_of(node)
        for node in model.graph.node
        if node.name
        and any(entry.key == _SCOPES for entry in node.metadata_props)
        and not weights.isdisjoint(node.input)
    }
    kept = [entry for entry in written.metadata_props if entry.key != _MODULES]
    del written.metadata_props[:]
    written.metadata_props.extend(kept)
    named = {name: module for name, module in modules.items() if module}
    if named:
        written.metadata_props.add(key=_MODULES, value=json.dumps(named))


def with_modules(model: onnx.ModelProto, may_change: bool) -> onnx.ModelProto:
    """Return a model whose nodes have the modules that :func:`note_modules` recorded; without a record, the given model."""
    text = next((entry.value for entry in model.metadata_props if entry.key == _MODULES), None)
    try:
        modules = json.loads(text) if text is not None else None
    except ValueError:
        modules = None
    if not isinstance(modules, dict):
        return model
    if not may_change:
        given, model = model, onnx.ModelProto()
        model.CopyFrom(given)
    for node in model.graph.node:
        module = modules.get(node.name)
        if isinstance(module, str) and all(entry.key != _SCOPES for entry in node.metadata_props):
            node.metadata_props.add(key=_SCOPES, value=repr([module, node.name]))
    return model


def _without_count(path: str) -> str:
    """Return the path of a module without the number of its call: ``layers.0@1`` is the second call of ``layers.0``."""
    return re.sub(r"@\d+", "", path)
