"""What is trained and what is frozen, declared to the block that builds the training model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from ortrain import _graph, onnxblock
from ortrain._support.checks import names_of
from ortrain._support.suggestions import did_you_mean
from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.choice.rules import choose
from ortrain.artifacts.choice.selection import Selection, settle


class UnknownParameterWarning(UserWarning):
    """``frozen_params`` of :func:`generate_artifacts` has names that are not in the model."""


@dataclass(frozen=True)
class Wanted:
    """What is to be trained and frozen, by name; and the reasons that the report gives."""

    trained: list[str] | None
    """None: the rules of this package choose."""
    frozen: list[str]
    reason: str = "named in requires_grad"
    otherwise: str = "not named in requires_grad"
    leaves_out_unreached: bool = False
    """Whether parameters without a gradient are left out, not rejected."""


def wanted(
    model: onnx.ModelProto, requires_grad: Sequence[str] | None, frozen_params: Sequence[str] | None
) -> Wanted:
    """Return what two arguments of ``generate_artifacts`` name in a model, patterns and modules resolved."""
    frozen = names_of("frozen_params", frozen_params)
    if requires_grad is None and not frozen:
        return Wanted(None, [])
    names = names_of("requires_grad", requires_grad)
    trained, frozen = settle(Selection(model), names, frozen)
    return Wanted(None if requires_grad is None else trained, frozen)


def name_parameters(
    model: onnx.ModelProto, block: onnxblock.TrainingBlock, wanted: Wanted
) -> dict[str, InitializerReport]:
    """Declare to a block what to train and what to freeze; return the reports by name."""
    floats = [tensor for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING]
    frozen = list(wanted.frozen)
    block.leave_out_unreached = wanted.trained is None or wanted.leaves_out_unreached
    if wanted.trained is None:
        choices = {choice.name: choice for choice in choose(model)}
        frozen += [
            name for name, choice in choices.items() if choice.fate is Fate.FROZEN and name not in frozen
        ]
        trainable = [
            name for name, choice in choices.items() if choice.fate is Fate.TRAINED and name not in frozen
        ]
    else:
        trainable = [name for name in wanted.trained if name not in frozen]
        choices = {
            tensor.name: InitializerReport.of(tensor, Fate.TRAINED, wanted.reason)
            if tensor.name in trainable
            else InitializerReport.of(tensor, Fate.LEFT_OUT, wanted.otherwise)
            for tensor in floats
        }
    for name in trainable:
        block.requires_grad(name)
    for name in _known(model, frozen):
        block.requires_grad(name, False)
    return choices


def _known(model: onnx.ModelProto, frozen: Sequence[str]) -> list[str]:
    """Return the names that are in the model, and warn about the others."""
    graphs = [model.graph, *_graph.subgraphs(model.graph)]
    initializers = [tensor.name for graph in graphs for tensor in graph.initializer]
    names = {*initializers, *(output for node in _graph.walk(model.graph) for output in node.output)}
    absent = [f"{name!r}{did_you_mean(name, initializers)}" for name in frozen if name not in names]
    if absent:
        warnings.warn(
            f"frozen_params: the model has no initializer named {', '.join(absent)}; it has {len(initializers)}: "
            f"{', '.join(initializers[:20])}{', ...' if len(initializers) > 20 else ''}",
            UnknownParameterWarning,
            stacklevel=4,
        )
    return [name for name in frozen if name in names]


def settled(
    block: onnxblock.TrainingBlock, choices: dict[str, InitializerReport], frozen: list[str]
) -> list[InitializerReport]:
    """Return the final reports, which include what only the block finds: unreached parameters, updated statistics."""
    settled = dict(choices)
    for name in block.unreached:
        settled[name] = replace(
            choices[name], fate=Fate.LEFT_OUT, reason="no gradient of the loss reaches it"
        )
    for tensors, fate in zip(block.parameters(), (Fate.TRAINED, Fate.FROZEN), strict=True):
        for tensor in tensors:
            if tensor.data_type not in _graph.FLOATING:
                continue
            if tensor.name not in settled:  # the initializer was in a subgraph
                settled[tensor.name] = InitializerReport.of(tensor, fate, "named, moved from a subgraph")
            elif fate is Fate.FROZEN and settled[tensor.name].fate is not Fate.FROZEN:
                reason = "named in frozen_params" if tensor.name in frozen else "running statistic, updated"
                settled[tensor.name] = replace(settled[tensor.name], fate=fate, reason=reason)
    return list(settled.values())
