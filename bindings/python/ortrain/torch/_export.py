"""From a ``torch.nn.Module`` to an ONNX model for training."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import torch

from ortrain import _graph
from ortrain._files.models import write_model
from ortrain._frameworks import exported_weights
from ortrain._frameworks.exported_weights import placeholders, write_weights
from ortrain._frameworks.record import FrameworkExport
from ortrain._support.counts import agreeing, counted
from ortrain.torch import _exporters
from ortrain.torch._call import PREFIX, Call, Flat, tensors_in
from ortrain.torch._dynamic import DynamicShapes, check_dynamic, dynamic_shapes
from ortrain.torch._state import State, exchanged, unwrapped

_log = logging.getLogger(__name__)

_Exporter = Callable[..., tuple[onnx.ModelProto, tuple[str, ...]]]
_EXPORTERS: dict[str, _Exporter] = {
    "torch.export": _exporters.with_torch_export,
    "TorchScript": _exporters.with_torchscript,
}
_LARGEST = 2**31 - 2**24
"""The most bytes of weights in a model file, whose size is limited to 2 GB."""


@dataclass(frozen=True)
class ExportReport:
    """The report of :func:`ortrain.torch.export`. ``print(report)`` shows it.

    Attributes
    ----------
    path : pathlib.Path or None
        The file.
    exporter : str
        The exporter of PyTorch that wrote the graph: ``"torch.export"`` or ``"TorchScript"``.
    failures : dict of str to str
        The exporters that were tried before, and why each failed.
    inputs, outputs : tuple of str
        The names of the model's inputs and outputs.
    trained, frozen, buffers : tuple of str
        The names of its initializers: parameters that require a gradient, other parameters, buffers.
    aliases : dict of str to str
        The further names of tied parameters, each with the name that the initializer has.
    unused : tuple of str
        The parameters that the outputs do not depend on. The model does not have them.
    warnings : tuple of str
        Warnings of the exporter about code of the network that depends on the values of its inputs. The model has only
        the path that the code took for the given arguments.
    """

    path: Path | None
    exporter: str
    failures: dict[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]
    aliases: dict[str, str]
    unused: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{name} could not export the network: {reason}" for name, reason in self.failures.items()]
        lines.append(f"exported by {self.exporter}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}")
        lines.append(
            f"{counted(len(self.trained), 'parameter')} {agreeing(len(self.trained), 'is', 'are')} trained, {len(self.frozen)} "
            f"{agreeing(len(self.frozen), 'is', 'are')} frozen; {counted(len(self.buffers), 'buffer')}"
        )
        lines += [f"tied  {alias} is {name}" for alias, name in self.aliases.items()]
        lines += [f"unused  {name}: the outputs do not depend on it" for name in self.unused]
        lines += [f"warning  {warning}" for warning in self.warnings]
        if self.path is not None:
            lines.append(f"wrote  {self.path}")
        return "\n".join(lines)


def export(
    module: Any,
    args: Any,
    path: str | os.PathLike[str],
    dynamic: str | Mapping[str, Any] | Sequence[Any] | None = "batch",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> ExportReport:
    """Write a network as an ONNX model for training.

    The model has every parameter and buffer that the outputs depend on, under its name in ``state_dict``, with its values and
    in its layout: nothing is merged, folded or transposed. A parameter with several names is one initializer. Dropout
    and batch normalization are in training mode. If the module itself is in training mode, modules in it that are in
    evaluation mode, such as a frozen batch normalization, stay so. A record in the model's metadata says which
    parameters require a gradient; :func:`ortrain.artifacts.generate_artifacts` trains these and freezes the others.

    PyTorch's newer exporter is used (``torch.export``); if it cannot write the network, the older one (TorchScript).
    The module is not changed.

    Parameters
    ----------
    module : torch.nn.Module
        The network.
    args : tensor, tuple, list or mapping
        Example arguments: one argument, positional arguments in a tuple, or arguments by name. Only types and shapes
        matter. The inputs of the model are named like the arguments. Values that are not tensors become constants.
    path : str or os.PathLike
        The file to write.
    dynamic : "batch", None, mapping or sequence, default "batch"
        The dimensions that may differ between runs. By default the first dimension of the first input, and of all inputs whose
        first dimension is equal to it. None: no dimension. Otherwise the argument is like ``dynamic_shapes`` of
        ``torch.export``: for each argument of the network, by name or in order, a mapping of dimensions to names or to
        ``torch.export.Dim``, such as ``{"input_ids": {0: "batch", 1: "time"}}``.
    kwargs : Mapping[str, Any], optional
        Further arguments by name.

    Returns
    -------
    ExportReport
        Which exporter was used, why another failed, and the names.

    Raises
    ------
    TypeError
        When ``module`` is not a module, or cannot be called with the arguments.
    ValueError
        When no exporter can write the network with these dynamic dimensions; the message has the reasons of both.
    FileError
        When the file cannot be written.
    """
    model, report = exported(module, args, dynamic, kwargs=kwargs)
    return replace(report, path=write_model(model, path))


def exported(
    module: Any,
    args: Any,
    dynamic: str | Mapping[str, Any] | Sequence[Any] | None = "batch",
    *,
    kwargs: Mapping[str, Any] | None = None,
) -> tuple[onnx.ModelProto, ExportReport]:
    """Return the model that :func:`export` would write, and a report without a path."""
    module = unwrapped(module)
    state = State.of(module)
    weights = state.arrays()
    size = sum(array.nbytes for array in weights.values())
    if size > _LARGEST:
        raise ValueError(
            f"exporting {type(module).__name__}: its weights take {size} bytes, but an ONNX file has at most 2 GB"
        )
    call = Call.of(module, args, kwargs, {*state.tensors, *state.aliases})
    shapes = dynamic_shapes(call, dynamic)
    found = placeholders(weights)
    failures: dict[str, str] = {}
    for name, exporter in _EXPORTERS.items():
        with exchanged(module, found):
            if not module.training:
                module.train()
            try:
                outputs, model, warnings = _run(module, call, shapes, exporter)
                model = onnx.inliner.inline_local_functions(model) if model.functions else model
                _strip(model)
                _rename_by_prefix(model)
                written = write_weights(model, found, weights, weights.keys() - state.parameters.keys())
                unused = _unused(module, call, state, written)
                _name_values(model, call, outputs)
                _check(model, shapes, call)
                if name == "TorchScript" and any(shapes):
                    check_dynamic(model, module, call, shapes)
            except Exception as error:  # exporters may raise any exception
                failures[name] = _reason(error)
                _log.info("%s could not export %s", name, type(module).__name__, exc_info=True)
                continue
        report = replace(_record(model, state, name, failures, written, unused), warnings=warnings)
        for warning in warnings:
            _log.warning("%s", warning)
        if failures:
            _log.warning(
                "exported by %s; %s", name, "; ".join(f"{n} failed: {r}" for n, r in failures.items())
            )
        return model, report
    reasons = "".join(f"\n- {name}: {reason}" for name, reason in failures.items())
    hint = "" if dynamic is None else "\ndynamic=None exports the network for the shapes of args alone"
    raise ValueError(
        f"exporting {type(module).__name__}: no exporter of PyTorch can write it:{reasons}{hint}"
    )


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = error.__cause__
    if (
        cause is not None and str(cause).strip()
    ):  # the newer exporter's own message only says how to report an error
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        error = cause if isinstance(cause, Exception) else error
    return f"{type(error).__name__}: {' '.join(lines[:3])[:500]}"


def _run(
    module: Any,
    call: Call,
    shapes: DynamicShapes,
    exporter: _Exporter,
) -> tuple[list[str], onnx.ModelProto, tuple[str, ...]]:
    """Export; return the names of the outputs, the model, and warnings."""
    with torch.no_grad():
        outputs = list(tensors_in(call.apply(module, [tensor.clone() for tensor in call.tensors])))
    if not outputs:
        raise TypeError(f"{type(module).__name__} returns no tensor")
    flat = Flat(module, call)
    return outputs, *exporter(flat, [tensor.clone() for tensor in call.tensors], call.names, shapes)


# ----------------------------------------------------------------------------------------------------------------------
# The model.


def _strip(model: onnx.ModelProto) -> None:
    """Remove exporters' notes about the code, with paths of this machine, and shapes, which are inferred again."""
    graphs = [model.graph, *_graph.subgraphs(model.graph)]
    for graph in graphs:
        del graph.value_info[:]
        del graph.metadata_props[:]
        for value in (*graph.input, *graph.output, *graph.initializer):
            del value.metadata_props[:]
        for node in graph.node:
            del node.metadata_props[:]
            node.ClearField("doc_string")
    del model.metadata_props[:]


def _rename_by_prefix(model: onnx.ModelProto) -> None:
    """Rename initializers from their names in :class:`Flat` to their names in the network."""
    names = {t.name: t.name.removeprefix(PREFIX) for t in model.graph.initializer}
    exported_weights.rename(model, {old: new for old, new in names.items() if old != new})
    for tensor in model.graph.initializer:
        tensor.name = names[tensor.name]


def _name_values(model: onnx.ModelProto, call: Call, outputs: Sequence[str]) -> None:
    """Give names to the outputs of the model. The network has the same number of outputs."""
    graph = model.graph
    if len(graph.output) != len(outputs):
        raise ValueError(f"expected {counted(len(outputs), 'output')}, found {len(graph.output)}")
    made = {name for node in graph.node for name in node.output}
    taken = _graph.names_in_use(model) | set(call.names)
    new_names = []
    for output, wanted in zip(graph.output, outputs, strict=True):
        numbered = (f"{wanted}_{number}" for number in itertools.count(1))
        name = next(n for n in itertools.chain([wanted], numbered) if n == output.name or n not in taken)
        taken.add(name)
        new_names.append(name)
    renamed: dict[str, str] = {}
    for output, name in zip(list(graph.output), new_names, strict=True):
        old = output.name
        # the network returns the value twice, or the value is an input or a weight
        if old in renamed or old not in made:
            graph.node.append(onnx.helper.make_node("Identity", [renamed.get(old, old)], [name], name=name))
        elif old != name:
            renamed[old] = name
            exported_weights.rename(model, {old: name})
        output.name = name


def _unused(module: Any, call: Call, state: State, written: Sequence[str]) -> tuple[str, ...]:
    """Return the parameters that are not in the model because the outputs do not depend on them.

    Raises
    ------
    ValueError
        When the outputs depend on a parameter that is not in the model.
    """
    missing = [name for name in state.parameters if name not in written]
    asked = [name for name in missing if state.tensors[name].requires_grad]
    if asked:
        results = tensors_in(call.apply(module, [tensor.clone() for tensor in call.tensors])).values()
        roots = [result.float().sum() for result in results if result.requires_grad]
        gradients = (
            torch.autograd.grad(sum(roots), [state.tensors[name] for name in asked], allow_unused=True)
            if roots
            else [None] * len(asked)
        )
        lost = [name for name, gradient in zip(asked, gradients, strict=True) if gradient is not None]
        if lost:
            raise ValueError(
                f"the exporter computed with the values of {', '.join(lost)}, which the model does not have"
            )
    return tuple(missing)


def _check(model: onnx.ModelProto, shapes: DynamicShapes, call: Call) -> None:
    """Check that the model is valid, and that the requested dimensions are dynamic."""
    onnx.checker.check_model(model)
    inputs = {value.name: value for value in model.graph.input}
    for name, shape in zip(call.names, shapes, strict=True):
        if name not in inputs or not shape:
            continue
        dims = inputs[name].type.tensor_type.shape.dim
        for axis, dim in shape.items():
            if dims[axis].HasField("dim_value"):
                raise ValueError(
                    f"dimension {axis} of {name} should be dynamic ({dim}), the exporter made it {dims[axis].dim_value}"
                )


def _record(
    model: onnx.ModelProto,
    state: State,
    exporter: str,
    failures: dict[str, str],
    written: Sequence[str],
    unused: tuple[str, ...],
) -> ExportReport:
    floating = {tensor.name for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING}
    parameters = [name for name in written if name in state.parameters]
    trained = tuple(name for name in parameters if state.parameters[name] and name in floating)
    frozen = tuple(name for name in parameters if name not in trained and name in floating)
    buffers = tuple(name for name in written if name not in state.parameters)
    aliases = {alias: name for alias, name in state.aliases.items() if name in written}
    FrameworkExport(
        "torch", f"{exporter} of PyTorch {torch.__version__}", trained, frozen, buffers, aliases
    ).write(model)
    return ExportReport(
        path=None,
        exporter=exporter,
        failures=failures,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        trained=trained,
        frozen=frozen,
        buffers=buffers,
        aliases=aliases,
        unused=unused,
    )
