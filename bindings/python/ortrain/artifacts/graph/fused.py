"""Fused operators of onnxruntime with weights: replaced by separate layers, and restored when adapters are merged.

onnxruntime's optimizers fuse a layer with its surroundings: Attention has the products for queries, keys and values, FusedGemm
an activation, EmbedLayerNormalization three look-ups. An adapter belongs beside a single layer, so such a node is replaced by
its parts, and the parts get adapters like any other layer. A merged model has the fused node again.

Attention becomes MatMul, Split and MultiHeadAttention. The alternative, Attention of the computed weights ``W + s B
A``, keeps the node, but its gradient passes through the sum: each step computes a matrix of the size of ``W`` (hidden x
3 hidden), as if ``W`` were trained. With separate products, a step computes only the gradients of ``A`` and ``B``: for
1024 tokens of 256 numbers, a step of an Attention took 14 instead of 18 ms of processor time, with about as much
memory. Nothing is lost: the core runs Attention as these nodes in any case, and onnxruntime has a kernel for each.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from ortrain import _graph
from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer, free_name, is_read, remove_initializers
from ortrain.artifacts.graph.classifier import Constants
from ortrain.artifacts.graph.targets import ALL_LINEAR, WEIGHTS, attributes_of, fits, heads_of, path_of

Array = npt.NDArray[Any]

DOMAIN = "com.microsoft"

#: Fused operators, the indices of their inputs with weights, and the operator of the part that reads these inputs.
_FUSED = {
    "Attention": ((1,), "MatMul"),
    "EmbedLayerNormalization": ((2, 3, 4), "Gather"),
    "FusedConv": ((1,), "Conv"),
    "FusedGemm": ((1,), "Gemm"),
    "FusedMatMulActivation": ((1,), "FusedMatMul"),
    "GemmFastGelu": ((1,), "MatMul"),
}
#: The names that networks give to the layers for queries, keys and values, which Attention has in one matrix.
_PROJECTIONS = tuple(
    (letter, (letter, word, f"{letter}_proj", f"{letter}_lin", f"to_{letter}", f"{word}_proj", f"w{letter}"))
    for letter, word in (("q", "query"), ("k", "key"), ("v", "value"))
)
#: Activations of FusedGemm and FusedMatMulActivation, with their attributes. In the fused node, the names of the attributes
#: have a prefix.
_ACTIVATIONS = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softmax": ("axis",),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
#: Activations of FusedConv, with the attributes to which the numbers in activation_params belong.
_CONV_ACTIVATIONS = {
    "Clip": ("min", "max"),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
}
_SINCE_AXES_AS_INPUT = (
    13  # the opset in which Split, Squeeze, Unsqueeze and ReduceSum take sizes and axes as inputs
)
_SINCE_BOUNDS_AS_INPUT = 11  # the opset in which Clip takes its bounds as inputs


@dataclass(frozen=True)
class Part:
    """A layer that was part of a fused operator."""

    module: str
    """The path of the layer's module."""
    node: str
    """The name of the fused node."""
    operator: str
    """The fused operator."""
    entries: tuple[str, ...]
    """The targets that name the layer."""


@dataclass(frozen=True)
class FusedLayer:
    """A fused node that was written as its parts."""

    node: str
    """The serialized node in base64. JSON is not possible: protobuf cannot read the lowest float, a usual mask, back from its
    JSON."""
    parts: list[str]
    """The names of the nodes that replace the fused node, in the order of their execution."""
    weights: dict[str, list[str]]
    """For each input with weights, by its index: the parts that read it. If there are several, each reads a range of the
    columns."""
    biases: dict[str, list[str]] = field(default_factory=dict)
    """For each bias, by the index of its input: the initializers into which it was divided."""


@dataclass(frozen=True)
class Unfused:
    """The fused nodes of a model that have weights: which were replaced, and which were not."""

    parts: dict[str, Part]
    """The layers that were part of a fused node, by the name of their result."""
    layers: tuple[FusedLayer, ...]
    """The fused nodes that were replaced by their parts."""
    skipped: tuple[str, ...]
    """The nodes that a target names but that were not replaced, with the reason."""
    known: tuple[str, ...]
    """The modules of the nodes that were not replaced, with their operator."""


def unfuse(model: onnx.ModelProto, entries: Sequence[str]) -> Unfused:
    """Write the fused nodes that have a layer which a target names as their parts, in place.

    Parameters
    ----------
    model : onnx.ModelProto
        The model with the shapes of its values.
    entries : sequence of str
        The targets, as those of :class:`ortrain.artifacts.LoRA`. A target that names a whole Attention gives all of its
        weights one adapter, as PEFT does for ``c_attn`` of GPT-2. One that names the layer for queries, keys or values there
        (``"q"``, ``"query"``, ``"q_proj"``, and so on) divides the weights into three matrices.
    """
    unfuser = _Unfuser(model, entries)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes += unfuser.replaced(node)
    unfuser.finish(nodes)
    return Unfused(unfuser.parts, tuple(unfuser.layers), tuple(unfuser.skipped), tuple(unfuser.known))


class _Unfuser:
    def __init__(self, model: onnx.ModelProto, entries: Sequence[str]) -> None:
        self._model, self._entries = model, entries
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._constants = Constants(model, self._producers)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._read = {name for node in _graph.walk(model.graph) for name in node.input}
        self._read |= {value.name for value in model.graph.output}
        self._heads = heads_of(model)
        self._taken = _graph.names_in_use(model)
        self._pieces: dict[tuple[str, str], str] = {}
        self.parts: dict[str, Part] = {}
        self.layers: list[FusedLayer] = []
        self.skipped: list[str] = []
        self.known: list[str] = []

    # ---- which nodes ----

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return the parts of a fused node that a target names; for any other node, the node."""
        if node.domain != DOMAIN or node.op_type not in _FUSED:
            return [node]
        slots = [
            slot
            for slot in _FUSED[node.op_type][0]
            if slot < len(node.input) and node.input[slot] and self._constants.has(node.input[slot])
        ]
        if not slots:
            return [node]
        wanted = self._wanted(node, slots)
        named = [part for part in wanted.values() if part.entries]
        described = f"{path_of(node, node.input[slots[0]], self._producers)} ({node.op_type})"
        reason = self._obstacle(node, wanted) if named else None
        if reason is not None:
            self.skipped.append(f"{described}: {reason}")
        if reason is not None or not named:
            self.known.append(described)
            return [node]
        writer = _Writer(node, self._taken, _graph.opset_of(self._model) or 1)
        _WRITERS[node.op_type](self, writer, wanted)
        writer.nodes[-1].metadata_props.extend(node.metadata_props)
        self.layers.append(
            FusedLayer(
                base64.b64encode(node.SerializeToString()).decode(),
                [part.name for part in writer.nodes],
                writer.weights,
                writer.biases,
            )
        )
        return writer.nodes

    def _wanted(self, node: onnx.NodeProto, slots: Sequence[int]) -> dict[str, Part]:
        """Return the layers of a fused node by the index of their input; the layers of Attention by q, k and v."""
        if node.op_type != "Attention":
            parts = {}
            for slot in slots:
                path = path_of(node, node.input[slot], self._producers)
                parts[str(slot)] = self._part(node, path, [path, node.name])
            return parts
        path = path_of(node, node.input[1], self._producers)
        whole = self._part(node, path, [path, node.name])
        if whole.entries:
            return {"1": whole}
        return {letter: self._projection(node, path, aliases) for letter, aliases in _PROJECTIONS}

    def _part(self, node: onnx.NodeProto, path: str, names: Sequence[str]) -> Part:
        operators = node.op_type, _FUSED[node.op_type][1]
        is_linear = operators[1] in ("MatMul", "Gemm", "FusedMatMul") and node.output[0] not in self._heads
        entries = [
            entry
            for entry in self._entries
            if (entry == ALL_LINEAR and is_linear) or entry in operators or fits(entry, names)
        ]
        return Part(path, node.name, node.op_type, tuple(entries))

    def _projection(self, node: onnx.NodeProto, path: str, aliases: Sequence[str]) -> Part:
        """Return the layer for queries, keys or values, with the name that targets use for it."""
        fitting = {
            alias: [
                entry for entry in self._entries if fits(entry, [f"{path}.{alias}", f"{node.name}.{alias}"])
            ]
            for alias in aliases
        }
        name = next((alias for alias in aliases if fitting[alias]), aliases[0])
        entries = dict.fromkeys(entry for found in fitting.values() for entry in found)
        return Part(f"{path}.{name}", node.name, node.op_type, tuple(entries))

    def _obstacle(self, node: onnx.NodeProto, wanted: Mapping[str, Part]) -> str | None:
        """Return why a node cannot be written as its parts; None if it can."""
        attributes = attributes_of(node)
        if node.op_type == "Attention":
            if attributes.get("do_rotary") or attributes.get("past_present_share_buffer"):
                return "it rotates its operands, or keeps keys and values in a shared buffer"
            if len(node.input) > 6 and node.input[6]:
                return "it keeps keys and values in a shared buffer"
            if self._sizes(node) is None:
                return "the sizes of queries, keys and values are unknown"
            apart = "1" not in wanted
            if apart and any(name not in self._tensors for name in node.input[1:3] if name):
                return "its weights or its bias are not initializers; name the whole layer"
        known = _CONV_ACTIVATIONS if node.op_type == "FusedConv" else _ACTIVATIONS
        name = _text(attributes.get("activation", ""))
        return f"its activation {name!r} is unknown" if name and name not in known else None

    def _sizes(self, node: onnx.NodeProto) -> list[int] | None:
        """Return the numbers of columns for queries, keys and values; None if they are not known."""
        given = list(attributes_of(node).get("qkv_hidden_sizes", []))
        shape = self._constants.shape(node.input[1])
        if shape is None or len(shape) != 2:
            return None
        if not given and shape[1] % 3 == 0:
            given = [shape[1] // 3] * 3
        return given if len(given) == 3 and sum(given) == shape[1] else None

    # ---- the parts ----

    def attention(self, w: _Writer, wanted: Mapping[str, Part]) -> None:
        """Write Attention as products, and MultiHeadAttention of their results."""
        node, sizes = w.node, self._sizes(w.node) or []
        past = w.given(4)
        if "1" in wanted:
            product = self._linear(w, 1, "MatMul", [node.input[0], node.input[1]], wanted["1"])
            if w.given(2):
                product = w.add("Add", [product, node.input[2]], "sum")
            operands = w.split(product, sizes)
        else:
            bounds, operands = np.cumsum([0, *sizes]), []
            for (letter, part), first, last in zip(wanted.items(), bounds[:-1], bounds[1:], strict=True):
                columns = slice(int(first), int(last))
                matrix = self._piece(node.input[1], letter, columns, f"{part.module}.weight")
                product = self._linear(w, 1, "MatMul", [node.input[0], matrix], part, letter)
                if w.given(2):
                    bias = self._piece(node.input[2], letter, columns, f"{part.module}.bias")
                    w.biases.setdefault("2", []).append(bias)
                    product = w.add("Add", [product, bias], f"{letter}_sum")
                operands.append(product)
        operands += ["", w.given(3), w.given(5)]
        if past:
            operands += [
                w.add("Gather", [past, w.constant(np.array(i), f"place{i}")], f"past{i}", axis=0)
                for i in (0, 1)
            ]
        kept = {
            name: value
            for name, value in attributes_of(node).items()
            if name in ("mask_filter_value", "num_heads", "scale", "unidirectional")
        }
        present = node.output[1] if len(node.output) > 1 and node.output[1] in self._read else ""
        # onnxruntime ignores the past if no node reads the present keys and values.
        outputs = ("present_key", "present_value") if past or present else ()
        made = [node.output[0], *map(w.free, outputs)]
        w.emit("MultiHeadAttention", operands, made, "MultiHeadAttention", domain=DOMAIN, **kept)
        if present:
            both = [w.unsqueeze(name, 0) for name in made[1:]]
            w.emit("Concat", both, [present], "present", axis=0)

    def gemm(self, w: _Writer, wanted: Mapping[str, Part]) -> None:
        """Write FusedGemm or FusedMatMulActivation as a product and its activation."""
        attributes = attributes_of(w.node)
        name = _text(attributes.get("activation", ""))
        kept = {key: value for key, value in attributes.items() if not key.startswith("activation")}
        inner = _FUSED[w.node.op_type][1]
        domain = DOMAIN if inner == "FusedMatMul" else ""
        product = self._linear(w, 1, inner, list(w.node.input), wanted["1"], domain=domain, **kept)
        settings = {
            key: attributes[f"activation_{key}"]
            for key in _ACTIVATIONS.get(name, ())
            if f"activation_{key}" in attributes
        }
        w.emit(name or "Identity", [product], list(w.node.output[:1]), "activation", **settings)

    def gemm_fast_gelu(self, w: _Writer, wanted: Mapping[str, Part]) -> None:
        """Write GemmFastGelu as MatMul and FastGelu, which adds the bias."""
        product = self._linear(w, 1, "MatMul", list(w.node.input[:2]), wanted["1"])
        inputs = [name for name in (product, w.given(2)) if name]
        w.emit("FastGelu", inputs, list(w.node.output[:1]), "FastGelu", domain=DOMAIN)

    def conv(self, w: _Writer, wanted: Mapping[str, Part]) -> None:
        """Write FusedConv as Conv, the addition of its last input and the activation."""
        attributes = attributes_of(w.node)
        name = _text(attributes.get("activation", ""))
        kept = {key: value for key, value in attributes.items() if not key.startswith("activation")}
        inputs = [x for x in w.node.input[:3] if x]
        result = self._linear(w, 1, "Conv", inputs, wanted["1"], **kept)
        if w.given(3):
            result = w.add("Add", [result, w.given(3)], "sum")
        settings = dict(
            zip(_CONV_ACTIVATIONS.get(name, ()), attributes.get("activation_params", ()), strict=False)
        )
        operands = [result]
        if name == "Clip" and w.opset >= _SINCE_BOUNDS_AS_INPUT:
            operands += [w.constant(np.array(value, np.float32), key) for key, value in settings.items()]
            settings = {}
        w.emit(name or "Identity", operands, list(w.node.output[:1]), "activation", **settings)

    def embeddings(self, w: _Writer, wanted: Mapping[str, Part]) -> None:
        """Write EmbedLayerNormalization as look-ups and SkipLayerNormalization, which adds and normalizes their results."""
        node, unnamed = w.node, Part("", w.node.name, w.node.op_type, ())
        words = self._linear(w, 2, "Gather", [node.input[2], node.input[0]], wanted.get("2", unnamed), axis=0)
        places = w.given(8) or w.positions(node.input[0])
        at = self._linear(w, 3, "Gather", [node.input[3], places], wanted.get("3", unnamed), axis=0)
        if w.given(4):
            inputs = [node.input[4], node.input[1]]
            segments = self._linear(w, 4, "Gather", inputs, wanted.get("4", unnamed), axis=0)
            words, at = w.add("Add", [words, at], "words_and_positions"), segments
        outputs = [node.output[0]]
        if len(node.output) > 2 and node.output[2]:
            outputs += ["", "", node.output[2]]
        kept = {"epsilon": attributes_of(node).get("epsilon", 1e-12)}
        w.emit(
            "SkipLayerNormalization",
            [words, at, *node.input[5:7]],
            outputs,
            "normalization",
            domain=DOMAIN,
            **kept,
        )
        if len(node.output) > 1 and node.output[1] in self._read:
            mask = w.given(7) or w.add("Sub", [node.input[0], node.input[0]], "no_mask")
            w.reduce_sum(mask, node.output[1])

    def _linear(
        self,
        w: _Writer,
        slot: int,
        operator: str,
        inputs: list[str],
        part: Part,
        what: str = "",
        **attributes: Any,
    ) -> str:
        """Add the node of a layer, which may have an adapter, and return the name of its result."""
        product = w.add(
            operator, inputs, what or f"{operator}{slot if operator == 'Gather' else ''}", **attributes
        )
        w.weights.setdefault(str(slot), []).append(w.nodes[-1].name)
        self.parts[product] = part
        return product

    def _piece(self, name: str, letter: str, columns: slice, wanted: str) -> str:
        """Return an initializer with some columns of another one; equal requests share one initializer."""
        key = name, letter
        if key not in self._pieces:
            piece = free_name(wanted, self._taken)
            self._taken.add(piece)
            array = array_of(self._tensors[name])[..., columns]
            add_initializer(self._model, piece, np.ascontiguousarray(array))
            self._pieces[key] = piece
        return self._pieces[key]

    def finish(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Put the nodes in the model, and remove initializers that no node reads any more."""
        if not self.layers:
            return
        replace_nodes(self._model.graph, nodes)
        gone = {name for name, _ in self._pieces if not is_read(self._model, name)}
        remove_initializers(self._model, gone)
        _graph.infer_shapes(self._model)


_WRITERS: dict[str, Callable[[_Unfuser, _Writer, Mapping[str, Part]], None]] = {
    "Attention": _Unfuser.attention,
    "EmbedLayerNormalization": _Unfuser.embeddings,
    "FusedConv": _Unfuser.conv,
    "FusedGemm": _Unfuser.gemm,
    "FusedMatMulActivation": _Unfuser.gemm,
    "GemmFastGelu": _Unfuser.gemm_fast_gelu,
}


class _Writer:
    """Writes the parts of a fused node."""

    def __init__(self, node: onnx.NodeProto, taken: set[str], opset: int) -> None:
        self.node, self.opset = node, opset
        self._taken = taken
        self._base = f"{node.name or node.output[0]}/unfused"
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, list[str]] = {}
        self.biases: dict[str, list[str]] = {}

    def given(self, slot: int) -> str:
        """Return the name of an input of the fused node; empty if the node does not have that input."""
        return str(self.node.input[slot]) if slot < len(self.node.input) else ""

    def free(self, what: str) -> str:
        """Return a name that is not in use, and reserve it."""
        name = free_name(f"{self._base}/{what}", self._taken)
        self._taken.add(name)
        return name

    def emit(
        self,
        operator: str,
        inputs: list[str],
        outputs: list[str],
        what: str,
        domain: str = "",
        **attributes: Any,
    ) -> None:
        """Add a node that computes values with given names."""
        while inputs and not inputs[-1]:
            inputs.pop()
        settings = attributes | ({"domain": domain} if domain else {})
        self.nodes.append(onnx.helper.make_node(operator, inputs, outputs, self.free(what), **settings))

    def add(self, operator: str, inputs: list[str], what: str, domain: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        output = self.free(f"{what}_output")
        self.emit(operator, inputs, [output], what, domain, **attributes)
        return output

    def constant(self, value: Array, what: str) -> str:
        """Add a constant."""
        return self.add("Constant", [], what, value=onnx.numpy_helper.from_array(value))

    def split(self, value: str, sizes: list[int]) -> list[str]:
        """Divide the last dimension."""
        outputs = [self.free(f"part{place}") for place in range(len(sizes))]
        if self.opset < _SINCE_AXES_AS_INPUT:
            self.emit("Split", [value], list(outputs), "Split", axis=-1, split=sizes)
        else:
            self.emit(
                "Split", [value, self.constant(np.array(sizes), "sizes")], list(outputs), "Split", axis=-1
            )
        return outputs

    def unsqueeze(self, value: str, axis: int) -> str:
        """Add a dimension."""
        if self.opset < _SINCE_AXES_AS_INPUT:
            return self.add("Unsqueeze", [value], "Unsqueeze", axes=[axis])
        return self.add("Unsqueeze", [value, self.constant(np.array([axis]), "axes")], "Unsqueeze")

    def positions(self, ids: str) -> str:
        """Return the indices of the columns of a matrix, from 0."""
        width = self.add(
            "Gather", [self.add("Shape", [ids], "shape"), self.constant(np.array(1), "second")], "width"
        )
        return self.add(
            "Range",
            [self.constant(np.array(0), "first"), width, self.constant(np.array(1), "step")],
            "positions",
        )

    def reduce_sum(self, value: str, output: str) -> None:
        """Add up the rows of a matrix."""
        if self.opset < _SINCE_AXES_AS_INPUT:
            self.emit("ReduceSum", [value], [output], "ReduceSum", axes=[1], keepdims=0)
        else:
            axes = self.constant(np.array([1]), "columns")
            self.emit("ReduceSum", [value, axes], [output], "ReduceSum", keepdims=0)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Make nodes, some of which are in a graph, all nodes of the graph."""
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


# ----------------------------------------------------------------------------------------------------------------------
# Back.


def refuse(model: onnx.ModelProto, layers: Sequence[FusedLayer]) -> None:
    """Put fused nodes in the places of their parts, with the weights that these have now.

    A node stays in parts if one of those that compute its first output is missing.
    """
    nodes = {node.name: node for node in model.graph.node}
    makers = {name: node.name for node in model.graph.node for name in node.output}
    join = _Joiner(model)
    fused: dict[str, onnx.NodeProto] = {}
    gone: set[str] = set()
    for layer in layers:
        node = _decoded(layer.node)
        here = [name for name in layer.parts if name in nodes]
        last = makers.get(node.output[0])
        if last not in layer.parts or not set(layer.parts[: layer.parts.index(last)]) <= set(here):
            continue
        reads = {
            slot: [nodes[name].input[WEIGHTS[nodes[name].op_type]] for name in names]
            for slot, names in layer.weights.items()
        }
        for slot, names in (reads | layer.biases).items():
            node.input[int(slot)] = join(names, node.input[int(slot)])
        gone.update(here)
        fused[here[-1]] = node
    replace_nodes(
        model.graph,
        [
            fused.get(node.name, node)
            for node in model.graph.node
            if node.name not in gone or node.name in fused
        ],
    )


def _decoded(text: str) -> onnx.NodeProto:
    try:
        node: onnx.NodeProto = onnx.NodeProto.FromString(base64.b64decode(text, validate=True))
        return node
    except (ValueError, DecodeError) as error:
        raise ValueError(f"the record of the fused operators with adapters is damaged: {error}") from error


class _Joiner:
    """Joins initializers; equal requests share one result."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model, self._taken = model, _graph.names_in_use(model)
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._made: dict[tuple[str, ...], str] = {}

    def __call__(self, names: Sequence[str], wanted: str) -> str:
        """Return an initializer with the columns of several, under a given name if it is free.

        A single one is returned unchanged.
        """
        if len(names) == 1:
            return names[0]
        key = tuple(names)
        if key not in self._made:
            self._made[key] = free_name(wanted, self._taken)
            self._taken.add(self._made[key])
            pieces = [array_of(self._tensors[name]) for name in names]
            add_initializer(self._model, self._made[key], np.concatenate(pieces, axis=-1))
        return self._made[key]
