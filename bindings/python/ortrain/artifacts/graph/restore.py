"""Restoring the weights of an exported model, so that the parameters of the network are trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import onnx

from ortrain import _graph
from ortrain._frameworks.record import export_of
from ortrain._support.checks import names_of
from ortrain.artifacts.choice.export_record import ExportRecord
from ortrain.artifacts.choice.fates import Fate
from ortrain.artifacts.choice.rules import choose
from ortrain.artifacts.graph.changes import Choice, WeightChange
from ortrain.artifacts.graph.left_out import restore_biases
from ortrain.artifacts.graph.packed_tables import has_unpacked_tables, pack_tables
from ortrain.artifacts.graph.separate import separate
from ortrain.artifacts.graph.tie import tie
from ortrain.artifacts.graph.unrepeat import unrepeat


def restore(model: onnx.ModelProto, untie_choice: Choice, tie_choice: Choice) -> list[WeightChange]:
    """Undo the changes of exporters to the weights of a model, in place; return the changes.

    Raises
    ------
    ValueError
        When the user names an initializer that the model does not have.
    """
    record = ExportRecord(model)
    named = _floating(model)
    changes = separate(model, record, _weights(model), untie_choice)
    changes += restore_biases(model, record)
    untie_choice.check([*named, *_floating(model)])
    tie_choice.check(_floating(model))
    weights = _weights(model)
    changes += tie(model, record, weights, tie_choice)
    changes += unrepeat(model, record, weights)
    return changes


def _weights(model: onnx.ModelProto) -> set[str]:
    return {choice.name for choice in choose(model) if choice.fate is Fate.TRAINED}


def _floating(model: onnx.ModelProto) -> list[str]:
    return [tensor.name for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING]


def with_weights_restored(
    model: onnx.ModelProto,
    path: str | None,
    requires_grad: Sequence[str] | None,
    untie: Sequence[str] | Literal[False] | None,
    tie: Sequence[str] | Literal[False] | None,
) -> tuple[onnx.ModelProto, list[WeightChange]]:
    """Return the model with the weights of the network, and what was changed; a given model stays as it is."""
    choices = Choice("untie", untie), Choice("tie", tie)
    named = set() if requires_grad is None else set(names_of("requires_grad", requires_grad))
    inner = (tensor.name for graph in _graph.subgraphs(model.graph) for tensor in graph.initializer)
    has_them = export_of(model) is not None or (
        requires_grad is not None and named <= _graph.names_in_use(model).union(inner)
    )
    is_restored = has_them and all(choice.by_rule for choice in choices)
    has_unpacked = has_unpacked_tables(model)
    if path is None and (has_unpacked or not is_restored):
        given, model = model, onnx.ModelProto()
        model.CopyFrom(given)
    if has_unpacked:
        pack_tables(model)
    return model, [] if is_restored else restore(model, *choices)
