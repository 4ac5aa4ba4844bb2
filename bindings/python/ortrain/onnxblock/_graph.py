"""Queries and edits of ONNX models, for blocks and artifacts."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator

import numpy as np
import onnx

_log = logging.getLogger(__name__)

#: Initializers with more elements than this are left out where only types and shapes matter. Smaller ones
#: may be shapes or axes, whose values determine shapes.
_SMALL = 1024

#: ONNX's message about an operator that it does not know.
_NOT_KNOWN = "No Op registered for"

#: The version of the ONNX operators that a model gets which imports none of them.
ADDED_OPSET = 17

#: Types that a parameter can have.
FLOATING = frozenset(
    {onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
)


def names_in_use(model: onnx.ModelProto) -> set[str]:
    """Return the names of all values and nodes of the main graph."""
    graph = model.graph
    names = {value.name for values in (graph.input, graph.output, graph.value_info) for value in values}
    names.update(tensor.name for tensor in graph.initializer)
    for node in graph.node:
        names.add(node.name)
        names.update(node.input)
        names.update(node.output)
    return names


def value_exists(model: onnx.ModelProto, name: str) -> bool:
    """Return whether a value with this name is an input, an initializer, or written or read by a node."""
    graph = model.graph
    return (
        any(value.name == name for value in graph.input)
        or any(tensor.name == name for tensor in graph.initializer)
        or any(name in node.input or name in node.output for node in graph.node)
    )


def find_value_info(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto | None:
    """Return what the model declares about a value: an input, an output, an initializer or an intermediate value."""
    graph = model.graph
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            if value.name == name:
                found: onnx.ValueInfoProto = value
                return found
    for tensor in graph.initializer:
        if tensor.name == name:
            return onnx.helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)
    return None


def add_input_like(model: onnx.ModelProto, like: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Add an input with the type and shape of a value, and return it.

    Dimensions that no input names stay unknown: exporters invent names for dimensions that they do not know, and
    give different ones the same name.
    """
    known = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    new: onnx.ValueInfoProto = model.graph.input.add()
    new.CopyFrom(like)
    new.name = name
    for dim in new.type.tensor_type.shape.dim:
        if dim.dim_param not in known:
            dim.ClearField("dim_param")
    return new


def element_type(model: onnx.ModelProto, name: str) -> int:
    """Return the element type of a value.

    If it is not declared, it is that of the first input of the node that produces the value. Float if nothing is
    known: constants are created with it, and almost every model is float.
    """
    producers = {output: node for node in model.graph.node for output in node.output}
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        info = find_value_info(model, name)
        if info is not None and info.type.tensor_type.elem_type:
            return int(info.type.tensor_type.elem_type)
        node = producers.get(name)
        if node is None or not node.input:
            break
        if node.op_type == "Cast":
            return next(int(a.i) for a in node.attribute if a.name == "to")
        name = node.input[0]
    return int(onnx.TensorProto.FLOAT)


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
    """Add to the model what ONNX shape inference infers about its values.

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


def register_outputs(model: onnx.ModelProto, names: Iterable[str]) -> None:
    """Make values the outputs of the graph, in the given order.

    Raises
    ------
    LookupError
        Naming a value that the model does not have.
    """
    outputs = []
    for name in dict.fromkeys(names):
        info = find_value_info(model, name)
        if info is None:
            if not value_exists(model, name):
                known = ", ".join(value.name for value in model.graph.output) or "none"
                raise LookupError(
                    f"cannot make {name!r} an output: no node produces it; the outputs so far are {known}"
                )
            info = onnx.ValueInfoProto(name=name)
            info.type.tensor_type.elem_type = element_type(model, name)
        outputs.append(info)
    copies = []
    for info in outputs:
        output = onnx.ValueInfoProto()
        output.CopyFrom(info)
        copies.append(output)
    del model.graph.output[:]
    model.graph.output.extend(copies)


def walk(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a graph and of the graphs inside its nodes."""
    for node in graph.node:
        yield node
        for inner in _graphs_in(node):
            yield from walk(inner)


def _graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def subgraphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs inside the nodes of a graph, however nested, the outer before the inner."""
    for node in graph.node:
        for inner in _graphs_in(node):
            yield inner
            yield from subgraphs(inner)


def floating_constants(graph: onnx.GraphProto) -> list[str]:
    """Return the values of Constant nodes of a graph that are floating-point tensors."""
    return [node.output[0] for node in graph.node if _floating_tensor(node) is not None]


def _floating_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type in FLOATING:
            given: onnx.TensorProto = attribute.t
            return given
        if attribute.name in ("value_float", "value_floats"):
            value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor: onnx.TensorProto = onnx.numpy_helper.from_array(np.array(value, np.float32))
            return tensor
    return None


def constants_to_initializers(model: onnx.ModelProto, names: Container[str]) -> None:
    """Replace Constant nodes by initializers, which can be parameters.

    Some exporters, PaddlePaddle's among them, store weights in Constant nodes.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed, subgraphs too.
    names : container of str
        The values to replace. Those that are not floating-point tensors of Constant nodes are left alone.
    """
    for graph in (model.graph, *subgraphs(model.graph)):
        kept = []
        for node in graph.node:
            tensor = _floating_tensor(node) if node.output and node.output[0] in names else None
            if tensor is None:
                kept.append(node)
            else:
                initializer = graph.initializer.add()
                initializer.CopyFrom(tensor)
                initializer.name = node.output[0]
        if len(kept) < len(graph.node):
            copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
            del graph.node[:]
            graph.node.extend(copies)


def lift_initializers(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, list[str]]:
    """Move initializers of subgraphs to the main graph, where they can be parameters.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, which is changed.
    names : iterable of str
        Names of initializers. Those that the main graph has, or that no graph has, are left alone.

    Returns
    -------
    dict
        For each name that was moved, its names in the main graph: the same, unless something else already has that
        name. If several subgraphs use one name for their own initializers, there are several.
    """
    own = {tensor.name for tensor in model.graph.initializer}
    inner = list(subgraphs(model.graph))
    if not inner:
        return {}
    defined = Counter(name for graph in (model.graph, *inner) for name in _defined_names(graph))
    lifted: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        holders = [
            graph
            for graph in inner
            if any(tensor.name == name for tensor in graph.initializer)
            and not any(value.name == name for value in graph.input)  # its value may come from outside
        ]
        if name in own or not holders:
            continue
        lifted[name] = []
        is_free = defined[name] == len(holders)
        for graph in holders:
            numbered = (f"{name}_{number}" for number in itertools.count(1))
            target = name if is_free else next(other for other in numbered if other not in defined)
            is_free = False
            defined[target] += 1
            _lift(model, graph, name, target)
            lifted[name].append(target)
    return lifted


def _defined_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names of the values that a graph defines."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(output for node in graph.node for output in node.output if output)
    return names


def _lift(model: onnx.ModelProto, graph: onnx.GraphProto, name: str, target: str) -> None:
    """Move an initializer of a subgraph to the main graph under another name."""
    place = next(i for i, tensor in enumerate(graph.initializer) if tensor.name == name)
    moved = model.graph.initializer.add()
    moved.CopyFrom(graph.initializer[place])
    moved.name = target
    del graph.initializer[place]
    for output in graph.output:  # a graph must return values that it produces itself
        if output.name == name:
            output.name = f"{target}_given"
            graph.node.append(onnx.helper.make_node("Identity", [name], [output.name], name=output.name))
    for i in reversed([i for i, value in enumerate(graph.value_info) if value.name == name]):
        del graph.value_info[i]
    _rename_reads(graph, name, target)


def _rename_reads(graph: onnx.GraphProto, name: str, target: str) -> None:
    for node in graph.node:
        node.input[:] = [target if value == name else value for value in node.input]
        for inner in _graphs_in(node):
            if name not in _defined_names(inner):
                _rename_reads(inner, name, target)


def opset_of(model: onnx.ModelProto, domain: str = "") -> int | None:
    """Return the version of a domain that the model imports, or None."""
    for opset in model.opset_import:
        if opset.domain == domain or (domain == "" and opset.domain == "ai.onnx"):
            return int(opset.version)
    return None


def import_domain(model: onnx.ModelProto, domain: str, version: int) -> None:
    """Add an opset import if the model does not have one for the domain."""
    if opset_of(model, domain) is None:
        model.opset_import.append(onnx.helper.make_opsetid(domain, version))


def running_statistics(model: onnx.ModelProto, updated_only: bool = False) -> list[str]:
    """Return the names of the running means and variances that batch normalization uses, or updates."""
    names: list[str] = []
    for node in walk(model.graph):
        if node.op_type != "BatchNormalization" or node.domain not in ("", "ai.onnx"):
            continue
        # Before opset 14, which added an attribute for it, more than one output meant training.
        if (opset_of(model) or 14) >= 14:
            updates = any(a.name == "training_mode" and a.i == 1 for a in node.attribute)
        else:
            updates = len(node.output) > 1
        if updates or not updated_only:
            names.extend(name for name in list(node.input)[3:5] if name)
    return list(dict.fromkeys(names))
