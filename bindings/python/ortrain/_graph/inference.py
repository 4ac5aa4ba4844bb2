"""Types and shapes of a model: what ONNX infers and checks, without copying the weights."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Mapping

import onnx

_log = logging.getLogger(__name__)

#: Initializers with more elements than this are left out where only types and shapes matter. The values of smaller ones may be
#: shapes or axes, which determine other shapes.
_SMALL = 1024

#: ONNX's message about an operator that it does not know.
_NOT_KNOWN = "No Op registered for"

#: Operators of onnxruntime whose first output has the type and shape of their first input.
_LIKE_THEIR_INPUT = frozenset(
    {
        "BiasGelu",
        "FastGelu",
        "Gelu",
        "LayerNormalization",
        "QuickGelu",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
    }
)

#: Products of onnxruntime with quantized weights: the last dimension of the result is that of the weights.
_PRODUCTS = frozenset({"DynamicQuantizeMatMul", "MatMulBnb4", "MatMulNBits"})

#: Operators of onnxruntime whose first output has the first two dimensions of one input and the number of columns of another
#: input: the indices of both.
_ROWS_AND_COLUMNS = {
    "Attention": (0, 1),
    "EmbedLayerNormalization": (0, 2),
    "MultiHeadAttention": (0, 2),
    "QAttention": (0, 1),
    "QEmbedLayerNormalization": (0, 2),
}


def without_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of everything but the initializers, which may be most of the memory."""
    return onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        metadata_props=model.metadata_props,
        functions=model.functions,
        graph=onnx.GraphProto(
            name=model.graph.name,
            doc_string=model.graph.doc_string,
            node=model.graph.node,
            input=model.graph.input,
            output=model.graph.output,
            value_info=model.graph.value_info,
            sparse_initializer=model.graph.sparse_initializer,
        ),
    )


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which large initializers are inputs: the same types and shapes in few bytes."""
    light = without_initializers(model)
    inputs = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _SMALL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in inputs:
            light.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def infer_shapes(model: onnx.ModelProto) -> None:
    """Add the results of ONNX shape inference to the model.

    Declared types and shapes that contradict the nodes are replaced: some exporters declare wrong shapes, which do no harm as
    long as nothing is computed from them.
    """
    light = without_weights(model)
    for output in light.graph.output:
        output.type.tensor_type.ClearField("shape")
    _drop_wrong_statements(light)
    inferred = _inferred(light)
    while _state_ranks(inferred.graph) or _state_fused(inferred.graph):
        inferred = _inferred(inferred)
    del model.graph.value_info[:]
    model.graph.value_info.extend(inferred.graph.value_info)
    found = {value.name: value for value in inferred.graph.output}
    for output in model.graph.output:
        if not output.type.HasField("tensor_type"):
            if not output.type.WhichOneof("value"):
                output.CopyFrom(found[output.name])
            continue
        stated, inner = output.type.tensor_type, found[output.name].type.tensor_type
        if not stated.elem_type:
            stated.elem_type = inner.elem_type
        if inner.HasField("shape"):
            shape = _merged(stated.shape, inner.shape) if stated.HasField("shape") else inner.shape
            if shape is None:
                _log.warning(
                    "output %s is declared with the shape %s, but the nodes compute %s",
                    output.name, _text_of(stated.shape), _text_of(inner.shape),
                )  # fmt: skip
            stated.shape.CopyFrom(shape or inner.shape)


def _drop_wrong_statements(model: onnx.ModelProto) -> None:
    """Remove declared types and shapes of values inside the graph that contradict the nodes."""
    try:
        onnx.shape_inference.infer_shapes(model, strict_mode=True)
        return
    except onnx.shape_inference.InferenceError as error:
        reason = error
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    # What ONNX cannot infer stays: results of operators that it does not know.
    foreign = {name for node in bare.graph.node if node.domain not in ("", "ai.onnx") for name in node.output}
    del bare.graph.value_info[:]
    bare.graph.value_info.extend(value for value in model.graph.value_info if value.name in foreign)
    found = {value.name: value.type.tensor_type for value in _inferred(bare).graph.value_info}
    for place in reversed(range(len(model.graph.value_info))):
        value = model.graph.value_info[place]
        stated, made = value.type.tensor_type, found.get(value.name)
        if made is None or not value.type.HasField("tensor_type"):
            continue
        wrong_shape = (
            stated.HasField("shape") and made.HasField("shape") and _merged(stated.shape, made.shape) is None
        )
        if wrong_shape or (stated.elem_type and made.elem_type and stated.elem_type != made.elem_type):
            _log.debug("the declared type of %s contradicts the nodes and is ignored: %s", value.name, reason)
            del model.graph.value_info[place]


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    # Propagating the values of shapes fails on some models whose types and ranks can be inferred. If both inferences fail,
    # later checks report the fault of the model.
    for follow_values in (True, False):
        with contextlib.suppress(onnx.shape_inference.InferenceError):
            return onnx.shape_inference.infer_shapes(model, data_prop=follow_values)
    return model


def _state_ranks(graph: onnx.GraphProto) -> bool:
    """Declare the ranks that follow from the lengths of shapes, which ONNX does not infer; return whether there were any."""
    known = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
    lengths = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    for name, value in known.items():
        if value.type.tensor_type.HasField("shape"):
            lengths[name] = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
    found = False
    for node in graph.node:
        slot = {"Reshape": 1, "ConstantOfShape": 0}.get(node.op_type)
        if slot is None or node.domain not in ("", "ai.onnx") or len(node.input) <= slot:
            continue
        name, shape = node.output[0], lengths.get(node.input[slot], [])
        if name in lengths or name not in known or len(shape) != 1 or shape[0] <= 0:
            continue
        stated = known[name].type.tensor_type.shape
        stated.SetInParent()
        for _ in range(shape[0]):
            stated.dim.add()
        found = True
    return found


def _state_fused(graph: onnx.GraphProto) -> bool:
    """Declare the shapes of results of operators of onnxruntime, which ONNX does not know; return whether there were any."""
    values = (*graph.value_info, *graph.input, *graph.output)
    known = {v.name: v.type.tensor_type for v in values if v.type.tensor_type.HasField("shape")}
    for tensor in graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        known.setdefault(tensor.name, info.type.tensor_type)
    stated = {value.name for value in graph.output}
    infos = {value.name: value for value in graph.value_info}
    found = False
    for node in graph.node:
        if not (node.input and node.output) or node.output[0] in known or node.output[0] in stated:
            continue
        made = _fused_type(node, known)
        if made is not None:
            value = infos.get(node.output[0]) or graph.value_info.add(name=node.output[0])
            value.type.tensor_type.CopyFrom(made)
            known[node.output[0]] = value.type.tensor_type
            found = True
    return found


def _fused_type(
    node: onnx.NodeProto, known: Mapping[str, onnx.TypeProto.Tensor]
) -> onnx.TypeProto.Tensor | None:
    """Return the type of the first output of an operator of onnxruntime; None if the operator or its inputs are not known."""
    # onnxruntime's optimizer writes normalization operators of ONNX into models whose opset does not have these operators.
    if node.domain != "com.microsoft" and not node.op_type.endswith("LayerNormalization"):
        return None
    made = onnx.TypeProto.Tensor()
    if node.op_type in _LIKE_THEIR_INPUT and node.input[0] in known:
        made.CopyFrom(known[node.input[0]])
        return made
    if node.op_type in _PRODUCTS or node.op_type == "GatherBlockQuantized":
        return _quantized_type(node, known)
    places = _ROWS_AND_COLUMNS.get(node.op_type)
    if (
        places is None
        or len(node.input) <= places[1]
        or any(node.input[place] not in known for place in places)
    ):
        return None
    source, weights = (known[node.input[place]] for place in places)
    first, last = source.shape.dim, weights.shape.dim
    if len(first) < 2 or len(last) not in (2, 3):
        return None
    # The weights of the quantized operators are integers, and their results are float.
    made.elem_type = onnx.TensorProto.FLOAT if node.op_type.startswith("Q") else weights.elem_type
    for dimension in first[:2]:
        made.shape.dim.add().CopyFrom(dimension)
    width = made.shape.dim.add()
    if last[-1].HasField("dim_value"):
        width.dim_value = last[-1].dim_value
    if node.op_type in ("Attention", "QAttention"):
        sizes = next((list(a.ints) for a in node.attribute if a.name == "qkv_hidden_sizes"), [])
        if sizes:
            width.dim_value = sizes[-1]
        elif width.dim_value:
            width.dim_value //= 3
    return made


def _quantized_type(
    node: onnx.NodeProto, known: Mapping[str, onnx.TypeProto.Tensor]
) -> onnx.TypeProto.Tensor | None:
    """Return the type of a product with quantized weights, or of rows of a quantized table; None if the inputs are not known."""
    attributes = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
    made = onnx.TypeProto.Tensor()
    if node.op_type in _PRODUCTS:
        weights = known.get(node.input[1])
        columns = attributes.get("N") or (weights.shape.dim[-1].dim_value if weights is not None else 0)
        if node.input[0] not in known or not columns or not known[node.input[0]].shape.dim:
            return None
        made.CopyFrom(known[node.input[0]])
        made.shape.dim[-1].Clear()
        made.shape.dim[-1].dim_value = columns
        return made
    if any(name not in known for name in node.input[:3]) or attributes.get("gather_axis"):
        return None
    table, rows, scales = (known[name] for name in node.input[:3])
    made.elem_type = scales.elem_type
    for dimension in (*rows.shape.dim, *table.shape.dim[1:]):
        made.shape.dim.add().CopyFrom(dimension)
    if table.elem_type == onnx.TensorProto.UINT8:  # a byte has as many codes as fit
        made.shape.dim[-1].dim_value *= 8 // attributes.get("bits", 4)
    return made


def _merged(stated: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> onnx.TensorShapeProto | None:
    """Return the declared shape, with its unknown dimensions replaced by inferred ones.

    None if the shapes contradict each other.
    """
    if len(stated.dim) != len(inferred.dim):
        return None
    merged = onnx.TensorShapeProto()
    for a, b in zip(stated.dim, inferred.dim, strict=True):
        if a.HasField("dim_value") and b.HasField("dim_value") and a.dim_value != b.dim_value:
            return None
        merged.dim.add().CopyFrom(b if b.HasField("dim_value") else a)
    return merged


def _text_of(shape: onnx.TensorShapeProto) -> str:
    return f"[{', '.join(str(d.dim_value) if d.HasField('dim_value') else d.dim_param or '?' for d in shape.dim)}]"


def check(model: onnx.ModelProto, what: str) -> None:
    """Check that a model is valid ONNX.

    Operators that ONNX does not have, or does not have in this opset, are accepted: the core implements some of them, and
    reports all others.

    Raises
    ------
    ValueError
        When the model is not valid, with the checker's message.
    """
    try:
        onnx.checker.check_model(without_weights(model))
    except onnx.checker.ValidationError as error:
        if _NOT_KNOWN not in str(error):
            raise ValueError(f"{what} is not valid ONNX: {error}") from error
    check_types(model, what)


def check_types(model: onnx.ModelProto, what: str) -> None:
    """Check that types and shapes match the operators, as far as they are known.

    Raises
    ------
    ValueError
        When the inputs of a node do not match its operator; the message names the node.
    """
    try:
        onnx.shape_inference.infer_shapes(without_weights(model), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        if _NOT_KNOWN not in str(error):
            raise ValueError(f"{what} is not valid ONNX: {error}") from error
