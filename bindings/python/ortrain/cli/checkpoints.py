"""Reading checkpoints and models for the commands that describe them."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ortrain import _ortrain
from ortrain.api import CheckpointState


def open_checkpoint(path: Path) -> CheckpointState:
    """Return the state of a checkpoint, or of the artifacts in a folder."""
    return CheckpointState.load_checkpoint(path / "checkpoint" if path.is_dir() else path)


def parameters_of(state: CheckpointState) -> dict[str, Any]:
    """Return the parameters of a state as arrays by name."""
    return {name: parameter.data for name, parameter in state.parameters}


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Return the contents of a checkpoint: parameters with their norms, properties, and the number of optimizer steps."""
    state = open_checkpoint(path)
    rows: list[dict[str, Any]] = []
    for name, parameter in state.parameters:
        values = parameter.data
        wide = values.astype(np.float64) if values.dtype.kind not in "iub" else values
        rows.append(
            {
                "name": name,
                "dtype": str(values.dtype),
                "shape": list(values.shape),
                "trained": parameter.requires_grad,
                "norm": float(np.linalg.norm(wide.astype(np.float64).ravel())),
                "bytes": values.nbytes,
            }
        )
    return {
        "optimizer_steps": _ortrain.checkpoint_get_optimizer_step_count(state._handle),
        "properties": {name: value for name, value in state.properties if name != "ortrain.trainer"},
        "parameters": rows,
        "elements": sum(math.prod(row["shape"]) for row in rows),
        "trained_elements": sum(math.prod(row["shape"]) for row in rows if row["trained"]),
        "bytes": sum(row["bytes"] for row in rows),
    }


def describe_model(path: Path) -> dict[str, Any]:
    """Return the contents of a model: inputs, outputs, operators and initializers. Needs onnx."""
    try:
        import onnx

        from ortrain._files.models import load_model
    except ImportError as error:
        raise ImportError("describing a model needs onnx: pip install 'ortrain[artifacts]'") from error
    if not path.exists():
        raise FileNotFoundError(f"there is no model {path}")
    model = load_model(path, load_external_data=False)

    def describe(value: onnx.ValueInfoProto) -> dict[str, Any]:
        tensor = value.type.tensor_type
        shape = [
            dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in tensor.shape.dim
        ]
        return {
            "name": value.name,
            "dtype": onnx.TensorProto.DataType.Name(tensor.elem_type).lower(),
            "shape": shape,
        }

    stored = {tensor.name for tensor in model.graph.initializer}
    return {
        "opset": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "inputs": [describe(value) for value in model.graph.input if value.name not in stored],
        "outputs": [describe(value) for value in model.graph.output],
        "operators": dict(Counter(node.op_type for node in model.graph.node).most_common()),
        "initializers": len(stored),
        "elements": sum(math.prod(tensor.dims) for tensor in model.graph.initializer),
        "bytes": sum(
            math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            for tensor in model.graph.initializer
            if tensor.data_type != onnx.TensorProto.STRING
        ),
    }


def describe_memory(folder: Path, checkpoint: dict[str, Any]) -> dict[str, int]:
    """Return the bytes that training keeps from step to step: parameters, gradients, and the state of the optimizer.

    The optimizer model takes the state of all parameters as sequences, beside those of parameters and gradients. What a step
    needs for activations depends on the batch and is not in it.
    """
    from ortrain._files import models  # this module needs onnx

    trained = sum(row["bytes"] for row in checkpoint["parameters"] if row["trained"])
    optimizer = models.load_model(folder / "optimizer_model.onnx")
    sequences = sum(1 for value in optimizer.graph.input if value.type.HasField("sequence_type"))
    return {
        "parameters": checkpoint["bytes"],
        "gradients": trained,
        "optimizer_state": trained * max(0, sequences - 2),
    }
