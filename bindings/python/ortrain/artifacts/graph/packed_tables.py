"""Tables of embeddings in tensors of four bits, which become bytes of two codes.

onnxruntime's quantization tool writes int4 and uint4 tables for GatherBlockQuantized, `ortrain quantize` writes uint8 tables. The
core and onnxruntime compute the same from both; the core keeps only bytes packed in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer, free_name

_INT4, _UINT4 = onnx.TensorProto.INT4, onnx.TensorProto.UINT4


def has_unpacked_tables(model: onnx.ModelProto) -> bool:
    """Whether a node looks up rows of a table of a four-bit type."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    return any(_is_unpacked(node, tensors) for node in model.graph.node)


def pack_tables(model: onnx.ModelProto) -> None:
    """Rewrite tables of four-bit types, and their zero points, in place."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = [node for node in model.graph.node if _is_unpacked(node, tensors)]
    # Several nodes may look up rows of one table.
    unsigned = {node.input[0] for node in nodes if tensors[node.input[0]].data_type == _UINT4}
    for node in nodes:
        name = node.input[3] if len(node.input) > 3 else ""
        if not name and node.input[0] in unsigned:
            # Without zero points, codes of uint4 begin at 0, and those of bytes in the middle.
            name = free_name(f"{node.input[0]}_zero_points", _graph.names_in_use(model))
            dims = tensors[node.input[2]].dims
            zeros = np.zeros((*dims[:-1], (dims[-1] + 1) // 2), np.uint8)
            tensors[name] = add_initializer(model, name, zeros)
            del node.input[3:]
            node.input.append(name)
        for tensor in (tensors[node.input[0]], tensors.get(name)):
            if tensor is not None and tensor.data_type in (_INT4, _UINT4):
                tensor.CopyFrom(_packed(tensor))
        if not any(attribute.name == "bits" for attribute in node.attribute):
            node.attribute.append(onnx.helper.make_attribute("bits", 4))


def _is_unpacked(node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> bool:
    return (
        node.op_type == "GatherBlockQuantized"
        and all(name in tensors for name in (node.input[0], *node.input[2:]) if name)
        and tensors[node.input[0]].data_type in (_INT4, _UINT4)
    )


def _packed(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return codes as bytes with two codes of a row, the lower bits first; the signed ones are counted from the lowest."""
    codes: npt.NDArray[Any] = array_of(tensor).astype(np.int8)
    if tensor.data_type == _INT4:
        codes = codes + np.int8(8)
    codes = codes.astype(np.uint8)
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    packed = codes[..., ::2] | codes[..., 1::2] << np.uint8(4)
    return onnx.numpy_helper.from_array(packed, tensor.name)
