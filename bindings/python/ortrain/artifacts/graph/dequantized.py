"""Layers with quantized weights that become layers with float weights."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain.artifacts.graph.stored_weights import Array, Stored
from ortrain.artifacts.graph.targets import WEIGHTS


def read_floats(model: onnx.ModelProto, stored: Stored, values: Array, name: str) -> Array:
    """Let a layer read an initializer in place of codes. The nodes that decoded the codes stay.

    Parameters
    ----------
    model, stored
        The model, and the weights of the layer so far.
    values : Array
        The weights as the layer reads them.
    name : str
        The initializer.

    Returns
    -------
    Array
        The value of the initializer: the weights, or their transpose.

    Raises
    ------
    ValueError
        When the layer needs codes. The message is the end of a sentence.
    """
    node, kind = stored.layer, stored.layer.op_type
    if kind == "DynamicQuantizeMatMul":
        raise ValueError("it also quantizes its input")
    if kind in ("MatMulNBits", "MatMulBnb4"):
        matrix = values.T if stored.outputs == 0 else values
        _become_product(model, node, name)
        return np.ascontiguousarray(matrix)
    if kind == "GatherBlockQuantized":
        node.op_type, node.domain = "Gather", ""
        node.input[:] = [name, node.input[1]]
        del node.attribute[:]
        return values
    node.input[WEIGHTS[kind]] = name
    if decoder := stored.decoder_of_results:  # they are numbers now
        decoder.op_type = "Identity"
        del decoder.input[1:], decoder.attribute[:]
        values_of_codes = [
            i for i, value in enumerate(model.graph.value_info) if value.name == node.output[0]
        ]
        for place in reversed(values_of_codes):
            del model.graph.value_info[place]
    return values


def _become_product(model: onnx.ModelProto, node: onnx.NodeProto, name: str) -> None:
    """Turn a product with codes into a MatMul, with an Add if it has a bias."""
    bias = node.input[5] if node.op_type == "MatMulNBits" and len(node.input) > 5 else ""
    node.op_type, node.domain = "MatMul", ""
    node.input[:] = [node.input[0], name]
    del node.attribute[:]
    if not bias:
        return
    nodes, result = model.graph.node, node.output[0]
    place = next(i for i, other in enumerate(nodes) if other.output[:1] == [result])
    node.output[0] = f"{result}.product"
    added = onnx.helper.make_node(
        "Add", [node.output[0], bias], [result], f"{node.name}.bias" if node.name else ""
    )
    nodes.insert(place + 1, added)
