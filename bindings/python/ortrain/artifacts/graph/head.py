"""A new head: the classifier of a model is replaced by one for other classes, and the rest of the model is kept."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._frameworks.record import export_of
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain._graph.initializers import add_initializer, free_name, is_read, remove_initializers
from ortrain._support.checks import names_of
from ortrain._support.counts import counted
from ortrain.artifacts.choice.export_record import PATH, is_generated, module_of
from ortrain.artifacts.choice.selection import Selection
from ortrain.artifacts.graph.adapters import is_added
from ortrain.artifacts.graph.classifier import ACTIVATIONS, QUANTIZED, Classifier, find_classifier, pooling_of
from ortrain.artifacts.graph.dynamic_products import join_dynamic_products
from ortrain.artifacts.graph.joined_softmax import join_softmax

#: Nodes between a network's body and its classifier that belong to the head: a Dropout among them stays in training mode.
_PASSING = frozenset({"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose"})
#: Operators between a parameter and the layer that reads it.
_COPYING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
#: Operators whose results have the shape of their first input.
_SAME_SHAPE = ACTIVATIONS | {"Cast", "Dropout", "Identity", "Relu"}


@dataclass(frozen=True)
class Head:
    """A new classifier for a model that is already trained.

    Parameters
    ----------
    classes : int
        The number of classes, 2 or more.
    train : str or list of str, default "head"
        What is trained: ``"head"``, the new classifier alone; ``"last:2"``, the last two layers, of which the classifier is one;
        ``"all"``; or names, patterns and paths of modules of what is trained besides the classifier. A layer is a weight matrix
        or kernel with the biases and normalizations that follow it.
    seed : int, default 0
        Seed of the initial weights and biases, which are uniform in ±1/sqrt(features), as in PyTorch.
    """

    classes: int
    train: str | Sequence[str] = "head"
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        if isinstance(self.classes, bool) or not isinstance(self.classes, int):
            raise TypeError(f"Head: expected a number of classes, found {self.classes!r}")
        if self.classes < 2:
            raise ValueError(f"Head: expected 2 or more classes, found {self.classes}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"Head: expected a whole number as seed, found {self.seed!r}")
        if self.seed < 0:
            raise ValueError(f"Head: expected a seed of 0 or more, found {self.seed}")
        if isinstance(self.train, str):
            self.last_layers()
        else:
            names_of("Head.train", self.train)

    def last_layers(self) -> int | None:
        """Return how many layers from the end ``train`` names: 1 for the head, None for all of them.

        Raises
        ------
        ValueError
            When ``train`` is another word.
        """
        if self.train in ("head", "all"):
            return 1 if self.train == "head" else None
        kind, _, count = str(self.train).partition(":")
        if kind == "last" and count.isdecimal() and int(count) > 0:
            return int(count)
        raise ValueError(
            f'Head: expected train "head", "last:N", "all" or a list of names and patterns, found {self.train!r}'
        )


@dataclass(frozen=True)
class NewHead:
    """The new classifier, and why it replaces this layer.

    Attributes
    ----------
    layer, operator : str
        The module, or the node if the model does not name modules, and the operator of the layer.
    reason : str
        Why this layer is the classifier.
    classes_before, classes, features : int
        The number of classes of the given model and of the new one, and of elements that each score is computed from.
    weight : str
        The parameter with the weights.
    bias : str or None
        The parameter with the biases; None if the classifier of the given model has none.
    scores : str
        The value that the loss is computed from: the scores before a Softmax.
    class_axis : int
        The dimension of the scores that is that of the classes.
    notes : tuple of str
        What else was changed, such as the activation.
    """

    layer: str
    operator: str
    reason: str
    classes_before: int
    classes: int
    features: int
    weight: str
    bias: str | None
    scores: str
    class_axis: int
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters."""
        return [self.weight, *([self.bias] if self.bias is not None else [])]

    def __str__(self) -> str:
        """Return the lines of the report."""
        lines = [
            f"{'head':<10}  {self.layer} ({self.operator}), {self.reason}: {counted(self.classes, 'class')} instead of "
            f"{self.classes_before}, computed from {counted(self.features, 'feature')}"
        ]
        return "\n".join([*lines, *(f"{'head':<10}  {note}" for note in self.notes)])


def replace_head(model: onnx.ModelProto, head: Head, output: str | None, activation: str | None) -> NewHead:
    """Replace the classifier of a model in place.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with its weights among the initializers.
    head : Head
        The new classifier.
    output : str, optional
        The value that the classifier computes; the first floating-point output by default.
    activation : str, optional
        The operator that the loss applies to scores: ``"Softmax"`` or ``"Sigmoid"``. Another activation at the end of the model
        becomes this one.

    Raises
    ------
    ValueError
        When there is no classifier, or the model needs its number of classes elsewhere.
    """
    join_dynamic_products(model)
    _graph.infer_shapes(model)
    join_softmax(model)
    found = find_classifier(model, output)
    notes: list[str] = []
    if found.node.op_type in QUANTIZED:
        notes.append("its weights were quantized; the new weights are float")
        _use_float_weights(model, found)
        found = find_classifier(model, output)
    rng = np.random.default_rng(head.seed)
    bound = 1 / np.sqrt(found.features)

    def values(shape: Sequence[int], name: str) -> npt.NDArray[np.generic]:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(_graph.element_type(model, name))
        return rng.uniform(-bound, bound, shape).astype(dtype)

    shape = list(found.weight_shape)
    shape[found.class_axis] = head.classes
    name, bias_name = _names(model, found)
    weight = _set_parameter(model, found.node, 1, name, values(shape, found.node.input[1]))
    bias = None
    if found.bias is not None:
        node, slot = found.bias
        dims = [head.classes if dim == found.classes else dim for dim in found.bias_shape]
        bias = _set_parameter(model, node, slot, bias_name, values(dims, node.input[slot]))
    notes += [
        *_keep_classes(model, found, head.classes),
        *_resize(model, found, head.classes),
        *_set_activation(found, activation),
    ]
    first = next((node for node in found.carriers if node.op_type in ACTIVATIONS), None)
    scores = found.output if first is None else first.input[0]
    _restate_shapes(model, found, head.classes)
    notes += _positions(model, scores)
    return NewHead(
        layer=found.name,
        operator=found.node.op_type,
        reason=_reason(model, found),
        classes_before=found.classes,
        classes=head.classes,
        features=found.features,
        weight=weight,
        bias=bias,
        scores=scores,
        class_axis=_axis_of(model, found, scores, head.classes),
        notes=tuple(notes),
    )


def _use_float_weights(model: onnx.ModelProto, found: Classifier) -> None:
    """Replace a layer with quantized weights by a MatMul with weights of zero, and by an Add if there is a bias."""
    node, output = found.node, found.node.output[0]
    place_of_bias = QUANTIZED[node.op_type]
    codes = [name for name in node.input[1:place_of_bias] if name]
    bias = node.input[place_of_bias] if len(node.input) > place_of_bias else ""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(_graph.element_type(model, node.input[2]))
    node.op_type, node.domain = "MatMul", ""
    del node.attribute[:]
    del node.input[1:]
    for name in codes:
        _remove_unread(model, name)
    node.input.append(free_name(re.sub(r"_(q\d|Q\d|quantized)$", "", codes[0]), _graph.names_in_use(model)))
    add_initializer(model, node.input[1], np.zeros(found.weight_shape, dtype))
    if bias:
        place = next(i for i, other in enumerate(model.graph.node) if output in other.output)
        node.output[0] = free_name(f"{output}_product", _graph.names_in_use(model))
        model.graph.node.insert(place + 1, onnx.helper.make_node("Add", [node.output[0], bias], [output]))


def _reason(model: onnx.ModelProto, found: Classifier) -> str:
    before = list(_before(model, found))
    behind = pooling_of(before)
    after = pooling_of(found.carriers)
    where = f" behind {behind}" if behind else f" in front of {after}" if after else ""
    return f"the last layer with weights before output {found.output!r}{where}"


def _before(model: onnx.ModelProto, found: Classifier) -> Iterator[onnx.NodeProto]:
    """Yield the nodes before a classifier that only reshape or drop its input, and the node before these."""
    producers = {name: node for node in model.graph.node for name in node.output}
    value = found.node.input[0]
    while (node := producers.get(value)) is not None:
        yield node
        if node.op_type not in _PASSING:
            return
        value = node.input[0]


def _set_parameter(
    model: onnx.ModelProto, node: onnx.NodeProto, slot: int, name: str, value: npt.NDArray[np.generic]
) -> str:
    """Make a node read a new initializer, and return its name. The name gets a number if another value keeps that name."""
    old = node.input[slot]
    node.input[slot] = ""
    _remove_unread(model, old)
    name = free_name(name, _graph.names_in_use(model))
    add_initializer(model, name, np.ascontiguousarray(value))
    node.input[slot] = name
    return name


def _remove_unread(model: onnx.ModelProto, name: str) -> None:
    """Remove a constant that no node reads, and the values that only this constant was computed from."""
    if is_read(model, name):
        return
    remove_initializers(model, [name])
    for place, node in enumerate(model.graph.node):
        if list(node.output) == [name]:
            inputs = list(node.input)
            del model.graph.node[place]
            for other in inputs:
                _remove_unread(model, other)
            return


def _names(model: onnx.ModelProto, found: Classifier) -> tuple[str, str]:
    """Return names for weight and bias: the model's, if they come from the network, or names with the module's path."""
    export = export_of(model)
    recorded = {*export.trained, *export.frozen} if export is not None else set()
    initializers = {tensor.name for tensor in model.graph.initializer}

    def given(node: onnx.NodeProto, slot: int) -> str | None:
        sources = [name for name in _sources(model, node.input[slot]) if name in initializers]
        return next((name for name in sources if name in recorded or not is_generated(name)), None)

    weight = given(found.node, 1)
    bias = given(*found.bias) if found.bias is not None else None
    path = next((name for name in (weight, bias) if name and PATH.fullmatch(name)), None)
    module = path.rpartition(".")[0] if path else module_of(found.node) or "head"
    if not PATH.fullmatch(f"{module}.weight"):
        module = "head"
    return weight or f"{module}.weight", bias or f"{module}.bias"


def _sources(model: onnx.ModelProto, name: str) -> Iterator[str]:
    """Yield a constant, and the constants of which it is a copy or the transpose."""
    producers = {output: node for node in model.graph.node for output in node.output}
    yield name
    while (node := producers.get(name)) is not None and node.op_type in _COPYING:
        name = node.input[0]
        yield name


# ----------------------------------------------------------------------------------------------------------------------
# What follows from the number of classes.


def _keep_classes(model: onnx.ModelProto, found: Classifier, classes: int) -> Iterator[str]:
    """Keep the dimension of the classes where a model with a single score drops it."""
    axis = _rank(model, found.node.output[0]) - 1 if found.node.op_type != "Conv" else 1
    producers = {name: node for node in model.graph.node for name in node.output}
    for carrier in found.carriers if found.classes == 1 else ():
        rank = _rank(model, carrier.input[0])
        if not 0 <= axis < rank:
            return
        kept = f"{carrier.op_type} {carrier.name or carrier.output[0]} keeps the dimension of the {counted(classes, 'class')}"
        if carrier.op_type in ("Squeeze", "Unsqueeze"):
            axes = _axes_of(model, producers, carrier)
            if axes is None:
                return
            if carrier.op_type == "Unsqueeze":
                for added in sorted(number % (rank + len(axes)) for number in axes):
                    axis += added <= axis
                continue
            dropped = [number % rank for number in axes]
            if axis in dropped:
                dropped.remove(axis)
                _set_axes(model, carrier, dropped)
                yield kept
            axis -= sum(number < axis for number in dropped)
        elif carrier.op_type == "Reshape":
            shape = _integers(model, producers, carrier.input[1])
            if shape is None or shape.tolist() != [-1] or axis != rank - 1:
                return
            name = free_name(f"{carrier.input[1]}_and_classes", _graph.names_in_use(model))
            add_initializer(model, name, np.array([-1, classes], np.int64))
            carrier.input[1] = name
            axis = 1
            yield kept
        elif carrier.op_type not in _SAME_SHAPE:
            return


def _rank(model: onnx.ModelProto, name: str) -> int:
    """Return the number of dimensions of a value; 0 if it is not known."""
    info = _graph.find_value_info(model, name)
    return len(info.type.tensor_type.shape.dim) if info is not None else 0


def _axes_of(
    model: onnx.ModelProto, producers: dict[str, onnx.NodeProto], node: onnx.NodeProto
) -> list[int] | None:
    """Return the dimensions that a Squeeze or Unsqueeze names; None if they are not known."""
    for attribute in node.attribute:
        if attribute.name == "axes":
            return list(attribute.ints)
    axes = _integers(model, producers, node.input[1]) if len(node.input) > 1 else None
    return None if axes is None else [int(axis) for axis in axes]


def _set_axes(model: onnx.ModelProto, node: onnx.NodeProto, axes: list[int]) -> None:
    """Make a Squeeze drop these dimensions; without any it becomes Identity."""
    if not axes:
        node.op_type = "Identity"
        del node.attribute[:], node.input[1:]
    elif len(node.input) > 1:
        name = free_name(f"{node.input[1]}_without_classes", _graph.names_in_use(model))
        add_initializer(model, name, np.array(axes, np.int64))
        node.input[1] = name
    else:
        del node.attribute[:]
        node.attribute.append(onnx.helper.make_attribute("axes", axes))


def _resize(model: onnx.ModelProto, found: Classifier, classes: int) -> Iterator[str]:
    """Replace the number of classes in constant shapes that nodes after the classifier read."""
    producers = {name: node for node in model.graph.node for name in node.output}
    for carrier in found.carriers:
        if carrier.op_type not in ("Reshape", "Expand"):
            continue
        for reader, slot in _stated(producers, carrier):
            shape = _integers(model, producers, reader.input[slot])
            if shape is None or found.classes not in shape:
                continue
            shape[shape.size - 1 - shape[::-1].tolist().index(found.classes)] = classes
            name = free_name(f"{reader.input[slot]}_of_{classes}_classes", _graph.names_in_use(model))
            add_initializer(model, name, shape)
            reader.input[slot] = name
            yield f"the shape of {carrier.op_type} {carrier.name or carrier.output[0]} has {counted(classes, 'class')} now"
            break


def _stated(
    producers: dict[str, onnx.NodeProto], node: onnx.NodeProto
) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Yield the inputs from which the shape of a Reshape or Expand is joined, as node and index, the last dimensions first."""
    waiting = [(node, 1)]
    while waiting:
        reader, slot = waiting.pop()
        yield reader, slot
        source = producers.get(reader.input[slot])
        if source is not None and source.op_type in ("Cast", "Concat", "Identity", "Unsqueeze"):
            waiting.extend((source, number) for number in range(len(source.input)))


def _integers(
    model: onnx.ModelProto, producers: dict[str, onnx.NodeProto], name: str
) -> npt.NDArray[np.generic] | None:
    """Return a constant list of integers as an array; None if the value is something else."""
    tensor = next((tensor for tensor in model.graph.initializer if tensor.name == name), None)
    node = producers.get(name)
    for attribute in node.attribute if node is not None and node.op_type == "Constant" else ():
        if attribute.name == "value":
            tensor = attribute.t
        elif attribute.name == "value_ints":
            return np.array(attribute.ints, np.int64)
    if tensor is None or tensor.data_type not in (onnx.TensorProto.INT32, onnx.TensorProto.INT64):
        return None
    array: npt.NDArray[np.generic] = onnx.numpy_helper.to_array(tensor).copy()
    return array if array.ndim == 1 else None


def _set_activation(found: Classifier, activation: str | None) -> Iterator[str]:
    """Replace the activation at the end of the model by the one of the loss."""
    for node in found.carriers:
        if node.op_type not in ACTIVATIONS:
            continue
        kept = f"the loss is computed from the scores before {node.op_type} {node.name or node.output[0]}"
        if activation is None or node.op_type.endswith(activation):
            yield f"{kept}, and this node stays"
            continue
        before = node.op_type
        node.op_type = activation
        del node.attribute[:]
        if activation == "Softmax":
            node.attribute.append(
                onnx.helper.make_attribute("axis", -1 if found.node.op_type != "Conv" else 1)
            )
        yield f"{kept}; this node was {before} and is {activation} now, like the activation of the loss"


def _restate_shapes(model: onnx.ModelProto, found: Classifier, classes: int) -> None:
    """Replace the shapes that the model declares for values after the classifier."""
    stale = {name for node in (found.node, *found.carriers) for name in node.output}
    if found.bias is not None:
        stale.update(found.bias[0].output)
    grown = True
    while grown:
        grown = False
        for node in model.graph.node:
            if not stale.isdisjoint(node.input) and not stale.issuperset(node.output):
                stale.update(node.output)
                grown = True
    for place in reversed([i for i, value in enumerate(model.graph.value_info) if value.name in stale]):
        del model.graph.value_info[place]
    stated = {}
    for output in model.graph.output:
        if output.name in stale:
            stated[output.name] = onnx.TensorShapeProto()
            stated[output.name].CopyFrom(output.type.tensor_type.shape)
            output.type.tensor_type.ClearField("shape")
    _graph.infer_shapes(model)
    for output in model.graph.output:
        if output.name not in stated or output.type.tensor_type.HasField("shape"):
            continue
        # Shapes after operators of onnxruntime are not inferred: the declared shape gets the new number of classes.
        of_classes = [dim for dim in stated[output.name].dim if dim.dim_value == found.classes]
        if of_classes:
            of_classes[-1].dim_value = classes
            output.type.tensor_type.shape.CopyFrom(stated[output.name])


def _positions(model: onnx.ModelProto, scores: str) -> Iterator[str]:
    """Yield a note if a row has scores at several positions, as in a recognizer of text or a segmentation."""
    info = _graph.find_value_info(model, scores)
    dims = info.type.tensor_type.shape.dim if info is not None else ()
    if sum(dim.dim_value != 1 for dim in dims) > 2:
        # ONNX's inference of shapes names free dimensions unk__0, unk__1, ...
        names = [dim.dim_value or dim.dim_param or "?" for dim in dims]
        shape = ", ".join("?" if str(name).startswith("unk__") else str(name) for name in names)
        yield f"the scores {scores} have the shape [{shape}]: the labels are a class for each position of a row, not one per row"


def _axis_of(model: onnx.ModelProto, found: Classifier, scores: str, classes: int) -> int:
    """Return the dimension of the scores with the classes: 1, or -1 for the last one.

    Raises
    ------
    ValueError
        When the scores do not have the new number of classes, or have it in another dimension.
    """
    usual = 1 if found.node.op_type in ("Conv", "Gemm") else -1
    info = _graph.find_value_info(model, scores)
    if info is None or not info.type.tensor_type.HasField("shape"):
        return usual
    dims = info.type.tensor_type.shape.dim
    axes = [axis for axis, dim in enumerate(dims) if dim.dim_value == classes]
    unknown = [axis for axis, dim in enumerate(dims) if not dim.HasField("dim_value")]
    for axis in (usual % len(dims) if dims else 0, 1, len(dims) - 1):
        if axis in axes or (not axes and axis in unknown):
            return 1 if axis == 1 else -1
    shape = [dim.dim_value or dim.dim_param or "?" for dim in dims]
    behind = ", ".join(f"{node.op_type} {node.name or node.output[0]}" for node in found.carriers)
    raise ValueError(
        f"head: expected {counted(classes, 'class')} in the second or last dimension of the scores {scores!r}, found shape "
        f"[{', '.join(map(str, shape))}]; between the new classifier and the scores are: {behind or 'no nodes'}"
    )


# ----------------------------------------------------------------------------------------------------------------------
# What is trained.


def trained_with(model: onnx.ModelProto, head: Head, new: NewHead) -> list[str]:
    """Return the parameters that are trained with a new head, itself among them.

    Raises
    ------
    ValueError
        When a pattern of ``train`` stands for nothing.
    """
    selection = Selection(model)
    if not isinstance(head.train, str):
        named = selection.resolve("Head.train", names_of("Head.train", head.train))
        return list(dict.fromkeys([*named, *new.parameters]))
    count = head.last_layers()
    layers = [layer for layer in selection.layers() if not set(layer) & set(new.parameters)]
    chosen = layers if count is None else layers[max(0, len(layers) - count + 1) :] if count > 1 else []
    return [*(name for layer in chosen for name in layer), *new.parameters]


def freeze_body(model: onnx.ModelProto, trained: Sequence[str], new: NewHead | None) -> None:
    """Switch what is not trained to inference, in place.

    That is batch normalization whose scale and bias are fixed, and Dropout before the first trained layer. Dropout directly
    before the classifier belongs to it, and stays.
    """
    reached = set(trained)
    for node in model.graph.node:
        if not reached.isdisjoint(node.input):
            reached.update(node.output)
    producers = {name: node for node in model.graph.node for name in node.output}
    layer = next((node for node in model.graph.node if new is not None and new.weight in node.input), None)
    before = producers.get(layer.input[0]) if layer is not None else None
    while before is not None and before.op_type in _PASSING:
        reached.update(before.output)
        before = producers.get(before.input[0])

    def is_fixed(node: onnx.NodeProto) -> bool:
        if node.op_type == "Dropout":
            return reached.isdisjoint(node.output) and not is_added(node)
        return set(trained).isdisjoint(node.input[1:3])

    set_evaluation_mode(model, is_fixed)
