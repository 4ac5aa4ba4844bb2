"""Models whose weights were exported as inputs, and become initializers afterwards.

An exporter folds, merges and renames constants: biases of zero vanish, and batch normalization becomes part of the convolution
before it. Inputs, however, an exporter has to keep. So :mod:`ortrain.keras` and :mod:`ortrain.jax` export a function that takes
the weights as arguments, and this module puts the weights back.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from ortrain import _graph
from ortrain._files.models import write_model
from ortrain._frameworks.record import FrameworkExport
from ortrain._support.counts import agreeing, counted

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ExportReport:
    """The report of :func:`ortrain.keras.export` or :func:`ortrain.jax.export`. ``print(report)`` shows it.

    Attributes
    ----------
    path : pathlib.Path or None
        The file.
    exporter : str
        The packages that wrote the graph, with their versions.
    inputs, outputs : tuple of str
        The names of the model's inputs and outputs.
    trained, frozen, buffers : tuple of str
        The names of the model's initializers: weights that the framework trains, other weights, running statistics.
    unused : tuple of str
        The weights that the outputs do not depend on. The model does not have them.
    """

    path: Path | None
    exporter: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    buffers: tuple[str, ...]
    unused: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"exported by {self.exporter}: {', '.join(self.inputs)} -> {', '.join(self.outputs)}"]
        lines.append(
            f"{counted(len(self.trained), 'weight')} {agreeing(len(self.trained), 'is', 'are')} trained, {len(self.frozen)} "
            f"{agreeing(len(self.frozen), 'is', 'are')} frozen; {counted(len(self.buffers), 'statistic')}"
        )
        lines += [f"unused  {name}: the outputs do not depend on it" for name in self.unused]
        if self.path is not None:
            lines.append(f"wrote  {self.path}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Weights:
    """The weights of a network.

    Attributes
    ----------
    values : Mapping[str, numpy.ndarray]
        All weights by name, in the order of the initializers.
    trained : frozenset of str
        The names of the weights that the framework trains.
    updated : frozenset of str
        Running statistics of batch normalization that training updates.
    """

    values: Mapping[str, Array]
    trained: frozenset[str]
    updated: frozenset[str]


def finish(
    model: onnx.ModelProto,
    inputs: Mapping[str, str],
    outputs: Sequence[str],
    weights: Weights,
    framework: str,
    exporter: str,
) -> ExportReport:
    """Turn the model of an exporter into a model for training, in place, and check it.

    Parameters
    ----------
    model : onnx.ModelProto
        What the exporter wrote. Functions must be inlined.
    inputs, outputs
        See :func:`name_values`.
    weights : Weights
        The weights. An input with the name of a weight becomes an initializer.
    framework, exporter : str
        For the record in the model, see :class:`ortrain._frameworks.record.FrameworkExport`.

    Raises
    ------
    ValueError
        When a node is not an ONNX operator, or reads an input that is not in ``inputs``.
    """
    unknown = [f"{node.op_type} of node {node.name!r}" for node in _graph.unknown_nodes(model)]
    if unknown:
        raise ValueError(f"{exporter} wrote operators that ONNX does not have: {', '.join(unknown)}")
    for graph in (model.graph, *_graph.subgraphs(model.graph)):
        del graph.value_info[:]  # jax2onnx declares wrong shapes, so shapes are inferred again
    present = name_values(model, inputs, outputs, weights.values)
    train_batch_normalization(model, weights.updated)
    nodes = [node for node in _graph.walk(model.graph) if node.op_type == "BatchNormalization"]
    statistics = {name for node in nodes for name in node.input[3:5]}
    others = [name for name in present if name not in weights.trained and _is_floating(weights.values[name])]
    record = FrameworkExport(
        framework,
        exporter,
        trained=tuple(name for name in present if name in weights.trained),
        frozen=tuple(name for name in others if name not in statistics),
        buffers=tuple(name for name in others if name in statistics),
    )
    record.write(model)
    model.producer_name, model.producer_version = f"ortrain.{framework}", ""
    onnx.checker.check_model(model)
    return ExportReport(
        path=None,
        exporter=exporter,
        inputs=tuple(value.name for value in model.graph.input),
        outputs=tuple(value.name for value in model.graph.output),
        trained=record.trained,
        frozen=record.frozen,
        buffers=record.buffers,
        unused=tuple(name for name in weights.values if name in weights.trained and name not in present),
    )


def save(model: onnx.ModelProto, report: ExportReport, path: str | os.PathLike[str]) -> ExportReport:
    """Write a model, and return the report with the path."""
    return replace(report, path=write_model(model, path))


def names_in_order(plain: str, given: Sequence[str]) -> list[str]:
    """Return names for inputs or outputs: the given names, and numbered ones where a given name is empty or not unique."""
    numbered = [plain] if len(given) == 1 else [f"{plain}_{position}" for position in range(len(given))]
    named = [name or other for name, other in zip(given, numbered, strict=True)]
    return named if len(set(named)) == len(named) else numbered


def name_values(
    model: onnx.ModelProto, inputs: Mapping[str, str], outputs: Sequence[str], weights: Mapping[str, Array]
) -> list[str]:
    """Name the inputs and outputs of an exported model and turn inputs into initializers, in place.

    Parameters
    ----------
    model : onnx.ModelProto
        What the exporter wrote. Functions must be inlined.
    inputs : Mapping[str, str]
        The new name of each input by its present name. Other inputs are removed: exporters declare constants of the code as
        inputs that no node reads.
    outputs : sequence of str
        The new names of the outputs, in the order of the model.
    weights : Mapping[str, numpy.ndarray]
        The values of the inputs that become initializers, by their new names, in the order of the initializers.

    Returns
    -------
    list of str
        The weights that are in the model now. The exporter left out the others, because the network does not use them.

    Raises
    ------
    ValueError
        When a node reads an input that is not in ``inputs``.
    """
    graph = model.graph
    read = {name for node in _graph.walk(graph) for name in node.input}
    read |= {value.name for inner in _graph.subgraphs(graph) for value in inner.output}
    missing = sorted(read & {value.name for value in graph.input} - inputs.keys())
    if missing:
        raise ValueError(f"the exporter made inputs that the network does not have: {', '.join(missing)}")
    _separate_outputs(graph)
    used = [name for name in inputs if name in read]
    _rename(model, {**inputs, **dict(zip([value.name for value in graph.output], outputs, strict=True))})
    written = {inputs[name] for name in used} & weights.keys()
    kept = [_copy(value) for value in graph.input if value.name in {*inputs.values()} - weights.keys()]
    del graph.input[:]
    graph.input.extend(kept)
    others = [_copy(tensor) for tensor in graph.initializer]
    del graph.initializer[:]
    in_order = [name for name in weights if name in written]
    graph.initializer.extend(numpy_helper.from_array(np.array(weights[name]), name) for name in in_order)
    graph.initializer.extend(others)
    return in_order


def train_batch_normalization(model: onnx.ModelProto, statistics: Container[str]) -> None:
    """Let BatchNormalization nodes normalize with the statistics of the batch and update the running ones, in place.

    Parameters
    ----------
    model : onnx.ModelProto
        A model with BatchNormalization nodes in inference mode, of opset 14 or later.
    statistics : container of str
        The running statistics to update. Nodes that read other values do not change.
    """
    for node in model.graph.node:
        running = list(node.input)[3:5]
        if node.op_type != "BatchNormalization" or not all(name in statistics for name in running):
            continue
        del node.output[1:]
        node.output.extend(f"{node.output[0]}/{kind}" for kind in ("mean", "variance"))
        kept = [_copy(attribute) for attribute in node.attribute if attribute.name != "training_mode"]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("training_mode", 1)])


def _is_floating(array: Array) -> bool:
    return onnx.helper.np_dtype_to_tensor_dtype(array.dtype) in _graph.FLOATING


def _separate_outputs(graph: onnx.GraphProto) -> None:
    """Give each output of a graph a separate value that a node computes, so that the value can be named."""
    computed = {name for node in graph.node for name in node.output}
    seen: set[str] = set()
    for position, value in enumerate(graph.output):
        if value.name not in computed or value.name in seen:
            name = f"{value.name}/output_{position}"
            graph.node.add(op_type="Identity", input=[value.name], output=[name], name=name)
            value.name = name
        seen.add(value.name)


def _rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Rename values in all graphs at once. Other values that have one of the new names get a number."""
    graphs = [model.graph, *_graph.subgraphs(model.graph)]
    known = {name for graph in graphs for name in _names_of(graph)}
    changed = dict(names)
    for name in known & set(names.values()) - names.keys():
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        changed[name] = next(n for n in numbered if n not in known | set(changed.values()))
    for graph in graphs:
        for node in graph.node:
            node.input[:] = [changed.get(name, name) for name in node.input]
            node.output[:] = [changed.get(name, name) for name in node.output]
        for values in (graph.input, graph.output, graph.value_info, graph.initializer):
            for value in values:
                value.name = changed.get(value.name, value.name)


def _names_of(graph: onnx.GraphProto) -> Iterator[str]:
    for values in (graph.input, graph.output, graph.value_info, graph.initializer):
        yield from (value.name for value in values)
    for node in graph.node:
        yield from node.output


def _copy(message: Any) -> Any:
    """Return a copy that survives the removal of the original from its list."""
    return type(message).FromString(message.SerializeToString())
