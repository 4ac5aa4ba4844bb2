"""Products with dynamically quantized inputs, as onnxruntime's ``quantize_dynamic`` writes them.

    codes, scale, zero = DynamicQuantizeLinear(x)
    y = Cast(MatMulInteger(codes, weights, zero, weight_zero)) * (scale * weight_scale)

The rounding of `x` has no gradient. DynamicQuantizeMatMul computes the same as one layer with the input `x`, and passes gradients
on as if `x` were not rounded.
"""

from __future__ import annotations

import onnx

from ortrain import _graph
from ortrain._graph.initializers import is_read


def join_dynamic_products(model: onnx.ModelProto) -> None:
    """Replace products with dynamically quantized inputs by DynamicQuantizeMatMul, in place."""
    graph = model.graph
    producers = {name: node for node in graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    for output in graph.output:  # outputs of the model are read too
        readers.setdefault(output.name, []).append(onnx.NodeProto())
    constants = {tensor.name for tensor in graph.initializer}
    replaced: dict[str, onnx.NodeProto] = {}  # by the output of the layer
    removed: set[str] = set()
    for node in graph.node:
        found = _layer(node, producers, readers, constants)
        if found is None:
            continue
        quantization, parts, scale = found
        result = parts[-1].output[0]
        zero = [node.input[3]] if len(node.input) > 3 else []
        inputs = [quantization.input[0], node.input[1], scale, *zero]
        replaced[result] = onnx.helper.make_node(
            "DynamicQuantizeMatMul", inputs, [result], node.name, domain="com.microsoft"
        )
        removed |= {part.output[0] for part in parts[:-1]}
    if not replaced:
        return
    kept = [
        replaced.get(node.output[0], node)
        for node in graph.node
        if not (node.output and node.output[0] in removed)
    ]
    del graph.node[:]
    graph.node.extend(kept)
    unread = [
        node
        for node in graph.node
        if node.op_type == "DynamicQuantizeLinear" and not any(is_read(model, name) for name in node.output)
    ]
    for node in unread:
        graph.node.remove(node)
    _graph.import_domain(model, "com.microsoft", 1)


def _layer(
    product: onnx.NodeProto,
    producers: dict[str, onnx.NodeProto],
    readers: dict[str, list[onnx.NodeProto]],
    constants: set[str],
) -> tuple[onnx.NodeProto, list[onnx.NodeProto], str] | None:
    """Return the quantization of the input of a layer, the other nodes of the layer, and the scale of its weights."""
    if product.op_type != "MatMulInteger" or len(product.input) < 3 or product.input[1] not in constants:
        return None
    quantization = producers.get(product.input[0])
    if (
        quantization is None
        or quantization.op_type != "DynamicQuantizeLinear"
        or product.input[2] != quantization.output[2]
    ):
        return None
    cast = _only_reader(readers, product.output[0], "Cast")
    scaled = cast and _only_reader(readers, cast.output[0], "Mul")
    if not cast or not scaled:
        return None
    factors = [producers.get(name) for name in scaled.input if name != cast.output[0]]
    scales = factors[0] if factors else None
    if scales is None or scales.op_type != "Mul" or quantization.output[1] not in scales.input:
        return None
    weight_scales = [name for name in scales.input if name in constants]
    if len(weight_scales) != 1 or len(readers[scales.output[0]]) != 1:
        return None
    return quantization, [product, cast, scales, scaled], weight_scales[0]


def _only_reader(readers: dict[str, list[onnx.NodeProto]], name: str, operator: str) -> onnx.NodeProto | None:
    found = readers.get(name, [])
    return found[0] if len(found) == 1 and found[0].op_type == operator else None
