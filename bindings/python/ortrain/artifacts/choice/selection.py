"""The parameters that a user selects: by name, by pattern, by the path of a module, or by layer from the end."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cached_property

import onnx

from ortrain import _graph
from ortrain.artifacts.choice.export_record import module_of
from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.choice.rules import choose

_WILDCARDS = frozenset("*?[")

#: Elementwise operators, whose parameters belong to the layer before them.
_ELEMENTWISE = frozenset({"Add", "Div", "Mul", "PRelu", "Sub", "BatchNormalization", "InstanceNormalization"})


def is_pattern(name: str) -> bool:
    """Whether a name has wildcards: ``*``, ``?`` or ``[``."""
    return not _WILDCARDS.isdisjoint(name)


def is_parameter(choice: InitializerReport) -> bool:
    """Whether an initializer is a parameter that a gradient can train."""
    return choice.fate is not Fate.LEFT_OUT and not choice.reason.startswith("running statistic")


class Selection:
    """Resolves what a user names to initializers of a model.

    A name of the model stands for itself. A pattern such as ``"*.bias"``, and the path of a module such as ``"encoder.layer.1"``,
    stand for parameters, which the rules of the automatic choice tell from constants: ``"*"`` trains no epsilon.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the weights of the network.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        graphs = (model.graph, *_graph.subgraphs(model.graph))
        self._known = {tensor.name for graph in graphs for tensor in graph.initializer}
        self._known |= {value.name for value in model.graph.input}
        self._known |= {name for graph in graphs for name in _graph.floating_constants(graph)}

    @cached_property
    def _choices(self) -> list[InitializerReport]:
        return choose(self._model)

    @cached_property
    def _modules(self) -> dict[str, set[str]]:
        """Return the paths of the modules whose nodes read a value."""
        modules: dict[str, set[str]] = {}
        for node in self._model.graph.node:
            module = module_of(node)
            for name in node.input if module else ():
                modules.setdefault(name, set()).add(str(module))
        return modules

    def resolve(self, argument: str, entries: Sequence[str]) -> dict[str, str]:
        """Return the names that entries stand for, each with its entry.

        A plain name that stands for nothing is returned as it is, for the caller to report.

        Raises
        ------
        ValueError
            When a pattern matches nothing; the message names similar parameters.
        """
        found: dict[str, str] = {}
        for entry in entries:
            if entry in self._known:
                found[entry] = entry
                continue
            fitting = [choice for choice in self._choices if self._fits(choice.name, entry)]
            names = [choice.name for choice in fitting if is_parameter(choice)]
            if not names and (is_pattern(entry) or fitting):
                raise ValueError(f"{argument}: {self._nothing(entry, fitting)}")
            for name in names or [entry]:
                found.setdefault(name, entry)
        return found

    def _fits(self, name: str, entry: str) -> bool:
        if is_pattern(entry):
            return fnmatchcase(name, entry)
        paths = (name, *self._modules.get(name, ()))
        return any(path == entry or path.startswith(f"{entry}.") for path in paths)

    def _nothing(self, entry: str, fitting: Sequence[InitializerReport]) -> str:
        if fitting:
            others = "; ".join(f"{choice.name} ({choice.reason})" for choice in fitting[:5])
            return (
                f"{entry!r} fits no parameter, only other initializers: {others}; to train one, give its name"
            )
        names = [choice.name for choice in self._choices if is_parameter(choice)]
        return (
            f"{entry!r} fits no parameter of the model; it has {len(names)}: "
            f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        )

    def layers(self) -> list[list[str]]:
        """Return the parameters by layer, in the order of the nodes.

        A layer is a weight matrix or kernel with the biases and normalizations that follow it.
        """
        tensors = {choice.name: choice for choice in self._choices if is_parameter(choice)}
        layers: list[list[str]] = []
        seen: set[str] = set()
        for node in self._model.graph.node:
            mine = [name for name in dict.fromkeys(node.input) if name in tensors and name not in seen]
            seen.update(mine)
            begins = node.op_type not in _ELEMENTWISE and any(len(tensors[name].shape) > 1 for name in mine)
            if mine and (begins or not layers):
                layers.append([])
            if mine:
                layers[-1] += mine
        return layers


def settle(
    selection: Selection, requires_grad: Sequence[str], frozen: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what two arguments name. Where they overlap, a name beats a pattern, and ``frozen_params`` beats equals.

    Raises
    ------
    ValueError
        When both give the same name, or a pattern stands for nothing.
    """
    trained = selection.resolve("requires_grad", requires_grad)
    kept = selection.resolve("frozen_params", frozen)
    both = [name for name in trained if name in kept]
    named = [name for name in both if trained[name] == name == kept[name]]
    if named:
        raise ValueError(f"requires_grad and frozen_params both name {', '.join(named)}")
    for name in both:
        loser = kept if trained[name] == name else trained
        del loser[name]
    return list(trained), list(kept)
