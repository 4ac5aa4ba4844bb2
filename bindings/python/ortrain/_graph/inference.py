"""Types and shapes of a model: what ONNX infers and checks, without copying the weights."""

from __future__ import annotations

import contextlib
import logging
import math

import onnx

_log = logging.getLogger(__name__)

#: Initializers with more elements than this are left out where only types and shapes matter. Smaller ones
#: may be shapes or axes, whose values determine shapes.
_SMALL = 1024

#: ONNX's message about an operator that it does not know.
_NOT_KNOWN = "No Op registered for"


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

    Stated shapes of outputs that contradict the nodes are replaced. Some exporters write wrong ones, which does
    not hurt as long as nothing is computed from them.
    """
    light = without_weights(model)
    for output in light.graph.output:
        output.type.tensor_type.ClearField("shape")
    inferred = _inferred(light)
    while _state_ranks(inferred.graph):
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
                    "output %s is stated to have shape %s, but the nodes compute %s",
                    output.name, _text_of(stated.shape), _text_of(inner.shape),
                )  # fmt: skip
            stated.shape.CopyFrom(shape or inner.shape)


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    # Propagating the values of shapes fails on some models whose types and ranks can be inferred. Nothing is
    # lost if both fail: later checks report what is wrong with the model.
    for follow_values in (True, False):
        with contextlib.suppress(onnx.shape_inference.InferenceError):
            return onnx.shape_inference.infer_shapes(model, data_prop=follow_values)
    return model


def _state_ranks(graph: onnx.GraphProto) -> bool:
    """State the ranks that follow from the lengths of shapes, which ONNX leaves out; return whether there were any."""
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


def _merged(stated: onnx.TensorShapeProto, inferred: onnx.TensorShapeProto) -> onnx.TensorShapeProto | None:
    """Return the stated shape with what is inferred about its unknown dimensions; None if they contradict each other."""
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

    Operators that ONNX does not know, or not in this opset, are accepted: the core has some, and reports all
    others.

    Raises
    ------
    ValueError
        With the checker's message, if it is not.
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
        Naming a node whose inputs do not match.
    """
    try:
        onnx.shape_inference.infer_shapes(without_weights(model), check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        if _NOT_KNOWN not in str(error):
            raise ValueError(f"{what} is not valid ONNX: {error}") from error
