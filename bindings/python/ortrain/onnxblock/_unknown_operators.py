"""Operators that ONNX does not have: exporters write them for operations that they cannot convert."""

from __future__ import annotations

import onnx

from ortrain import _graph


def explain(model: onnx.ModelProto, report: str) -> str:
    """Add to a report that nodes with an operator unknown to ONNX are a fault of the export, not of the network.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    report : str
        The core's reasons why the model cannot be trained, one per line.
    """
    version = model.producer_version.partition(" ")[0]  # tf2onnx appends a commit or None to its version
    producer = f"{model.producer_name} {version}".strip() or "the exporter"
    why = (
        f". No version of ONNX has this operator. The export is broken, not the network: {producer} could not convert an "
        f"operation and wrote it under its own name. Export the network again, with another exporter or version{_advice(model)}"
    )
    starts = tuple(f'node "{node.name}" ({node.op_type}), ' for node in _graph.unknown_nodes(model))
    lines = report.split("\n")
    return "\n".join(line.partition("; ")[0] + why if line.startswith(starts) else line for line in lines)


def _advice(model: onnx.ModelProto) -> str:
    return "; ortrain.keras.export exports models of Keras" if model.producer_name == "tf2onnx" else ""
