"""Giving layers the biases that an exporter left out because they were zeros."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer
from ortrain.artifacts.choice.export_record import ExportRecord
from ortrain.artifacts.graph.changes import ChangeKind, WeightChange
from ortrain.artifacts.graph.reads import left_out_bias


def restore_biases(model: onnx.ModelProto, record: ExportRecord) -> list[WeightChange]:
    """Add biases of zeros where PyTorch's record of the calls has biases; return what was done."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    changes = []
    for node in model.graph.node:
        weight = tensors.get(node.input[1]) if len(node.input) > 1 else None
        if weight is None or len(weight.dims) < 2:
            continue
        name = left_out_bias(record, node) or _bias_of_folded_normalization(record, node)
        if name is None:
            continue
        zeros = np.zeros(_outputs_of(node, weight), onnx.helper.tensor_dtype_to_np_dtype(weight.data_type))
        if name in tensors and not np.array_equal(array_of(tensors[name]), zeros):
            continue
        if name not in tensors:
            tensors[name] = add_initializer(model, name, zeros)
            changes.append(
                WeightChange(
                    ChangeKind.RESTORED, weight.name, (name,), f"a bias of zeros, left out by the exporter, is back as {name}"
                )
            )  # fmt: skip
        del node.input[2:]
        node.input.append(name)
    return changes


def _bias_of_folded_normalization(record: ExportRecord, node: onnx.NodeProto) -> str | None:
    """Return a name for the bias of a convolution that contains a batch normalization, if it has none."""
    if node.op_type not in ("Conv", "ConvTranspose") or (len(node.input) > 2 and node.input[2]):
        return None
    call = record.call_of(node)
    if call is None or "batch_norm" not in call.function:
        return None
    if not any(record.kind_of(operand) == "PARAMETER" for operand in call.operands):
        return None
    return f"{node.input[1]}_bias"


def _outputs_of(node: onnx.NodeProto, weight: onnx.TensorProto) -> int:
    """Return the number of columns or channels that a layer computes."""
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type == "Gemm":
        return int(weight.dims[0 if attributes.get("transB") else 1])
    return int(weight.dims[0] if node.op_type == "Conv" else weight.dims[1] * attributes.get("group", 1))
