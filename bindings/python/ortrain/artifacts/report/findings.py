"""Findings about trained weights that a user should know: which are shared, and which are not parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from ortrain.artifacts.choice.export_record import ExportRecord
from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.graph.reads import reads_of
from ortrain.artifacts.report.folded import FoldedWeight, absent_parameters, folded_weights


@dataclass(frozen=True)
class SharedWeight:
    """A trained initializer that several nodes read: one parameter, used several times."""

    name: str
    nodes: tuple[str, ...]
    """The names of the nodes."""

    def __str__(self) -> str:
        """Return a line of the report."""
        shown = ", ".join(self.nodes[:3]) + (", ..." if len(self.nodes) > 3 else "")
        return f"{'shared':<10}  {self.name}: {len(self.nodes)} nodes read it, {shown}"


@dataclass(frozen=True)
class Findings:
    """Findings about the weights of a model."""

    shared: tuple[SharedWeight, ...]
    folded: tuple[FoldedWeight, ...]
    absent: tuple[str, ...]


def find(model: onnx.ModelProto, initializers: Sequence[InitializerReport]) -> Findings:
    """Look at the weights of a model that are trained."""
    record = ExportRecord(model)
    trained = [choice.name for choice in initializers if choice.fate is Fate.TRAINED]
    reads = reads_of(model)
    shared = [
        SharedWeight(name, tuple(read.node.name or read.node.output[0] for read in reads[name]))
        for name in trained
        if len(reads.get(name, ())) > 1
    ]
    return Findings(
        tuple(shared),
        tuple(folded_weights(model, record, trained)),
        tuple(absent_parameters(model, record)) if record.exists else (),
    )
