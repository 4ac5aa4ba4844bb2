"""Low-rank adapters: a trained product of two small matrices beside each layer, whose own weights are not trained.

For a layer ``y = W x``, the model computes ``y = W x + s B A x`` with ``A`` of ``r`` rows and ``B`` of ``r`` columns. Source:
E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021. Names and shapes of ``A`` and ``B`` are those of PEFT.

With DoRA the norm of the weights of each output is trained too; see `ortrain.artifacts.graph.dora`. Source: S. Liu et al.,
"DoRA: Weight-Decomposed Low-Rank Adaptation", 2024.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of, pieces_of
from ortrain._graph.initializers import add_initializer, free_name
from ortrain._support.checks import names_of
from ortrain._support.counts import counted, sized
from ortrain.artifacts.choice.export_record import module_of
from ortrain.artifacts.choice.selection import Selection
from ortrain.artifacts.graph.classifier import Constants
from ortrain.artifacts.graph.dora import OWN_BIASES, Magnitude, Nodes, shape_of, squares_of
from ortrain.artifacts.graph.dynamic_products import join_dynamic_products
from ortrain.artifacts.graph.fused import FusedLayer, Unfused, replace_nodes, unfuse
from ortrain.artifacts.graph.stored_weights import INTEGERS, Stored, stored_weights
from ortrain.artifacts.graph.targets import (
    ALL_LINEAR,
    COPIES,
    LINEAR,
    LOOK_UPS,
    WEIGHTS,
    WITHOUT_ADAPTERS,
    attributes_of,
    decoded_look_ups,
    fits,
    heads_of,
    path_of,
    readers_of,
)

Array = npt.NDArray[Any]

KEY = "ortrain.adapter"
"""The key of the record of the adapters in a model's metadata, and in the properties of a checkpoint."""
BASE = "ortrain.adapter_base"
"""The key of the digest of the base there. Training sessions compare the two."""

#: Operators that read codes of weights, and the index of the input.
_READERS_OF_CODES = {
    "DequantizeLinear": 0,
    "DynamicQuantizeMatMul": 1,
    "Gather": 0,
    "GatherBlockQuantized": 0,
    "MatMulBnb4": 1,
    "MatMulInteger": 1,
    "MatMulNBits": 1,
}
_BIASES = ("none", "all", "lora_only")
#: Operators that add a bias to the result of a layer: the indices of inputs that may be the result, and of inputs that may be
#: the bias.
_ADDITIONS = {
    "Add": ((0, 1), (0, 1)),
    "BiasGelu": ((0,), (1,)),
    "FastGelu": ((0,), (1,)),
    "SkipLayerNormalization": ((0, 1), (4,)),
    "SkipSimplifiedLayerNormalization": ((0, 1), (3,)),
}


@dataclass(frozen=True)
class LoRA:
    """Low-rank adapters for a model whose weights are not trained.

    Parameters
    ----------
    r : int, default 8
        The rank: rows of A and columns of B.
    alpha : float, default 16
        The product is scaled by ``alpha / r``, or by ``alpha / sqrt(r)`` with ``use_rslora``.
    targets : str or list of str, default "all-linear"
        The layers: patterns, paths of modules or their ends (``"q_proj"``), names of nodes, or operators (``"Conv"``,
        ``"Gather"`` and ``"GatherBlockQuantized"`` for embeddings). ``"all-linear"`` stands for every matrix product with
        weights, also those in fused operators of onnxruntime such as Attention, except one that computes the output. The fused
        weights of an Attention have one adapter, or, where targets name parts (``["q", "v"]``, ``["query", "value"]``,
        ``["q_proj", "v_proj"]``), one for each of these.
    dropout : float, default 0.0
        The probability with which a train step drops an element of the input of A.
    bias : {"none", "all", "lora_only"}, default "none"
        Biases that are trained as well: none, all biases of the model, or those of the layers with adapters.
    use_rslora : bool, default False
        Whether the scale is that of rank-stabilized LoRA (D. Kalajdzievski, 2023).
    use_dora : bool, default False
        Whether the norm of the weights of each output is trained too (DoRA): of the rows of a matrix, of the kernels of an output
        channel, or of the columns of an embedding table.
    seed : int, default 0
        Seed of the initial A, which is uniform in ±1/sqrt(inputs); B is zero. For embeddings A is zero and B is normal.
    values : mapping of str to array, optional
        Initial values by name, such as ``"encoder.fc.lora_A.weight"``, as :func:`ortrain.artifacts.read_peft` returns them.
    """

    r: int = 8
    alpha: float = 16
    targets: str | Sequence[str] = "all-linear"
    dropout: float = 0.0
    bias: str = "none"
    use_rslora: bool = False
    use_dora: bool = False
    seed: int = 0
    values: Mapping[str, Array] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Reject invalid settings."""
        if isinstance(self.r, bool) or not isinstance(self.r, (int, np.integer)):
            raise TypeError(f"LoRA: expected a whole number as rank r, found {self.r!r}")
        for name, number in (("alpha", self.alpha), ("dropout", self.dropout)):
            if isinstance(number, bool) or not isinstance(number, (int, float, np.number)):
                raise TypeError(f"LoRA: expected a number as {name}, found {number!r}")
        if self.r < 1:
            raise ValueError(f"LoRA: expected a rank r of 1 or more, found {self.r}")
        if not math.isfinite(self.alpha):
            raise ValueError(f"LoRA: expected a finite alpha, found {self.alpha}")
        if not self.entries:
            raise ValueError("LoRA: expected at least one target, found none")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"LoRA: expected dropout of at least 0 and less than 1, found {self.dropout}")
        if self.bias not in _BIASES:
            raise ValueError(f"LoRA: expected bias to be one of {', '.join(_BIASES)}, found {self.bias!r}")

    @property
    def scale(self) -> float:
        """The factor of the product."""
        return float(self.alpha / (np.sqrt(self.r) if self.use_rslora else self.r))

    @property
    def entries(self) -> list[str]:
        """The targets as a list."""
        return [self.targets] if isinstance(self.targets, str) else names_of("LoRA.targets", self.targets)


@dataclass(frozen=True)
class AdaptedLayer:
    """A layer with an adapter."""

    module: str
    """The path of the module, or the name of the node."""
    operator: str
    weight: str
    """The value with the weights that the layer reads."""
    a: str
    """The parameter A, ``[r, inputs]``; for a convolution with its kernel."""
    b: str
    """The parameter B, ``[outputs, r]``."""
    parameters: int
    """The number of elements of A, B and the magnitudes."""
    magnitude: str = ""
    """The parameter m of DoRA, ``[outputs]``; for a convolution ``[1, outputs, 1, ...]``."""
    fused: str = ""
    """The operator that the layer was fused into, such as ``Attention``."""


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model.

    Attributes
    ----------
    model, base : str
        The name of the given model's file or graph, and the digest of its weights and nodes.
    layers : tuple of AdaptedLayer
        The layers with adapters.
    skipped : tuple of str
        Layers that a target names and that cannot have one, with the reason.
    biases : tuple of str
        The biases that are trained.
    base_parameters : int
        The number of elements of the floating-point initializers of the given model, and of its matrices in codes.
    r, alpha, scale, dropout, bias, use_rslora, use_dora
        The settings.
    fused : tuple of FusedLayer
        The fused operators that were written as their parts; :func:`ortrain.artifacts.merged` puts them back.
    prefix : str or None
        The start of the modules' paths that the names of the given values do not have; None without given values.
    """

    model: str
    base: str
    layers: tuple[AdaptedLayer, ...]
    skipped: tuple[str, ...]
    biases: tuple[str, ...]
    base_parameters: int
    r: int
    alpha: float
    scale: float
    dropout: float
    bias: str
    use_rslora: bool
    use_dora: bool = False
    fused: tuple[FusedLayer, ...] = ()
    prefix: str | None = None

    @property
    def parameters(self) -> list[str]:
        """The names of what is trained."""
        names = [name for layer in self.layers for name in (layer.a, layer.b, layer.magnitude) if name]
        return names + list(self.biases)

    @property
    def count(self) -> int:
        """The number of elements of all A, B and magnitudes."""
        return sum(layer.parameters for layer in self.layers)

    def add_to(self, model: onnx.ModelProto) -> None:
        """Add the same adapters to a model with the same layers, in place, with initial values."""
        lora = LoRA(
            r=self.r,
            alpha=self.alpha,
            targets=list(dict.fromkeys(layer.module for layer in self.layers)),
            bias=self.bias,
            use_rslora=self.use_rslora,
            use_dora=self.use_dora,
        )
        add_adapters(model, lora, self.model, {(layer.module, layer.operator) for layer in self.layers})

    def to_json(self) -> str:
        """Return the record, which `adapters_of` reads."""
        return json.dumps(asdict(self))

    def __str__(self) -> str:
        """Return the lines of the report."""
        lines = [
            f"{'adapter':<10}  {layer.module} ({layer.fused or layer.operator}): {counted(layer.parameters, 'element', ',')}"
            for layer in self.layers
        ]
        lines += [f"{'adapter':<10}  left out: {reason}" for reason in self.skipped]
        share = 100 * self.count / max(1, self.base_parameters)
        lines.append(
            f"{'adapter':<10}  {counted(len(self.layers), 'layer')}, {counted(self.count, 'element', ',')}, {share:.2f} % of the "
            f"model's {self.base_parameters:,}; with gradients and two moments {sized(16 * self.count)} instead of "
            f"{sized(16 * self.base_parameters)}"
        )
        return "\n".join(lines)


def digest_of(model: onnx.ModelProto) -> str:
    """Return a digest of the nodes and initializers of a model."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.name} {tensor.data_type} {tuple(tensor.dims)}".encode())
        for piece in pieces_of(tensor):
            digest.update(piece.tobytes())
    for node in model.graph.node:
        digest.update(f"{node.op_type} {list(node.input)} {list(node.output)}".encode())
    return digest.hexdigest()


def adapters_of(record: str) -> Adapters:
    """Return the adapters that a record describes.

    Raises
    ------
    ValueError
        When the record is damaged.
    """
    try:
        entries = json.loads(record)
        layers = tuple(AdaptedLayer(**layer) for layer in entries.pop("layers"))
        entries |= {name: tuple(entries[name]) for name in ("skipped", "biases")}
        entries["fused"] = tuple(FusedLayer(**layer) for layer in entries.get("fused", ()))
        return Adapters(layers=layers, **entries)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"the record {KEY!r} of the adapters is damaged: {error}") from error


def adapters_in(model: onnx.ModelProto) -> Adapters | None:
    """Return the adapters of a model; None if it has none."""
    record = next((entry.value for entry in model.metadata_props if entry.key == KEY), None)
    return None if record is None else adapters_of(record)


def add_adapters(
    model: onnx.ModelProto, lora: LoRA, name: str, layers_of: Collection[tuple[str, str]] | None = None
) -> Adapters:
    """Add adapters to a model in place. The name is that of its file or graph.

    Only the modules and operators in `layers_of` get an adapter, if it is given.

    Raises
    ------
    ValueError
        When a target fits no layer, or a given value fits no adapter or has another shape.
    """
    base, base_parameters = digest_of(model), _count(model)
    join_dynamic_products(model)
    _graph.infer_shapes(model)
    unfused = unfuse(model, lora.entries)
    editor = _Editor(model, lora, unfused)
    chosen, skipped = editor.choose()
    if layers_of is not None:
        chosen = [node for node in chosen if editor.key(node) in layers_of]
    layers = tuple(dict.fromkeys(editor.adapt(node) for node in chosen))
    unused = editor.unused_values()
    if unused:
        raise ValueError(
            f"LoRA: the values of {counted(len(unused), 'tensor')} fit no adapter: {', '.join(unused[:5])}; the model has "
            "adapters "
            f"for {', '.join(layer.module for layer in layers[:8])}{', ...' if len(layers) > 8 else ''}"
        )
    adapters = Adapters(
        model=name,
        base=base,
        layers=layers,
        skipped=tuple(skipped),
        biases=tuple(editor.trained_biases(chosen)),
        base_parameters=base_parameters,
        r=lora.r,
        alpha=lora.alpha,
        scale=lora.scale,
        dropout=lora.dropout,
        bias=lora.bias,
        use_rslora=lora.use_rslora,
        use_dora=lora.use_dora,
        fused=unfused.layers,
        prefix=editor.prefix,
    )
    editor.finish()
    model.metadata_props.add(key=KEY, value=adapters.to_json())
    model.metadata_props.add(key=BASE, value=base)
    return adapters


def _count(model: onnx.ModelProto) -> int:
    """Return the number of elements of the floating-point initializers, and of the matrices in codes."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    counts = {
        tensor.name: math.prod(tensor.dims)
        for tensor in tensors.values()
        if tensor.data_type in _graph.FLOATING
    }
    for node in model.graph.node:
        slot = _READERS_OF_CODES.get(node.op_type)
        name = "" if slot is None else node.input[slot]
        if name not in tensors or tensors[name].data_type not in INTEGERS:
            continue
        attributes = attributes_of(node)
        size = math.prod(tensors[name].dims)
        if "K" in attributes:
            size = attributes["N"] * attributes["K"]
        elif node.op_type == "GatherBlockQuantized" and tensors[name].data_type == onnx.TensorProto.UINT8:
            size *= 8 // attributes.get("bits", 4)
        counts[name] = size
    return sum(counts.values())


class _Editor:
    def __init__(self, model: onnx.ModelProto, lora: LoRA, unfused: Unfused) -> None:
        self._model, self._lora, self._unfused = model, lora, unfused
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._readers = readers_of(model)
        self._constants = Constants(model, self._producers)
        self._taken = _graph.names_in_use(model)
        self._rng = np.random.default_rng(lora.seed)
        self._used: set[str] = set()
        self.prefix: str | None = None
        self._paths: set[str] = set()
        self._adapted: dict[tuple[str, str], AdaptedLayer] = {}
        self._added: dict[str, list[onnx.NodeProto]] = {}
        self._decoders = decoded_look_ups(model)
        self._vectors = {tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 1}
        self._sums = {
            node.input[slot]: node
            for node in model.graph.node
            if node.op_type in _ADDITIONS
            for slot in _ADDITIONS[node.op_type][0]
        }

    # ---- which layers ----

    def _module(self, node: onnx.NodeProto) -> str:
        part = self._unfused.parts.get(node.output[0])
        if part:
            return part.module
        return path_of(node, node.input[WEIGHTS[node.op_type]], self._producers, self._readers)

    def key(self, node: onnx.NodeProto) -> tuple[str, str]:
        """Return the module and the operator of a layer, as its record has them."""
        return self._module(node), str(node.op_type)

    def _operator(self, node: onnx.NodeProto) -> str:
        """Return the operator of a layer in the model of the user."""
        part = self._unfused.parts.get(node.output[0])
        return part.operator if part else str(node.op_type)

    def choose(self) -> tuple[list[onnx.NodeProto], list[str]]:
        """Return the layers that the targets name and that get an adapter, and for other named layers the reason why not."""
        heads = heads_of(self._model)
        candidates = [
            node
            for node in self._model.graph.node
            if node.op_type in WEIGHTS and self._constants.has(node.input[WEIGHTS[node.op_type]])
        ]
        fitting = {node.output[0]: self._entries(node, node.output[0] in heads) for node in candidates}
        chosen: list[onnx.NodeProto] = []
        unfit: list[str] = []
        skipped = [*self._unfused.skipped, *self._without_adapters()]
        for node in candidates:
            entries = fitting[node.output[0]]
            reason = self._obstacle(node) if entries else None
            if reason is not None:
                # A target that stands for many layers need not fit each of them.
                reasons = unfit if entries == [ALL_LINEAR] else skipped
                reasons.append(f"{self._module(node)} ({self._operator(node)}): {reason}")
            elif entries:
                chosen.append(node)
        for entry in self._lora.entries:
            if not any(entry in fitting[node.output[0]] for node in chosen):
                every = [f"{self._module(n)} ({self._operator(n)})" for n in candidates]
                known = list(dict.fromkeys([*every, *self._unfused.known]))
                shown = (
                    f"the model has {len(known)}: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}"
                )
                if entry == ALL_LINEAR and (others := sorted({node.op_type for node in candidates})):
                    shown += f"; {ALL_LINEAR} stands for matrix products: to adapt other layers, name the target {others[0]}"
                absent = f"the model has no {', '.join(sorted(LINEAR))}, Conv or Gather with constant weights"
                raise ValueError(
                    f"LoRA: target {entry!r} fits no layer that can have an adapter"
                    f"{''.join(f'; {reason}' for reason in skipped or unfit[:3])}; {shown if known else absent}"
                )
        return chosen, skipped

    def _entries(self, node: onnx.NodeProto, is_head: bool) -> list[str]:
        """Return the targets that name a layer."""
        part = self._unfused.parts.get(node.output[0])
        if part is not None:
            return list(part.entries)
        names = {self._module(node), module_of(node) or "", node.name}
        return [
            entry
            for entry in self._lora.entries
            if (entry == ALL_LINEAR and node.op_type in LINEAR and not is_head)
            or entry == node.op_type
            or fits(entry, names)
        ]

    def _without_adapters(self) -> list[str]:
        """Return the reasons why named nodes get no adapter, for nodes whose operators cannot have one."""
        found = []
        for node in self._model.graph.node:
            slot, reason = WITHOUT_ADAPTERS.get(node.op_type, (0, ""))
            if not reason or slot >= len(node.input) or not self._constants.has(node.input[slot]):
                continue
            module = path_of(node, node.input[slot], self._producers)
            names = {module, module_of(node) or "", node.name}
            if any(entry in (ALL_LINEAR, node.op_type) or fits(entry, names) for entry in self._lora.entries):
                found.append(f"{module} ({node.op_type}): {reason}")
        return found

    def _obstacle(self, node: onnx.NodeProto) -> str | None:
        """Return why a layer cannot have an adapter; None if it can."""
        attributes = attributes_of(node)
        if attributes.get("transA"):
            return "its input is transposed"
        if attributes.get("transBatchA") or attributes.get("transBatchB"):
            return "the dimensions of its batch are transposed"
        if node.op_type in LOOK_UPS and not self._looks_up_rows(node, attributes):
            return "it does not look up rows of a matrix"
        if node.op_type in LOOK_UPS and self._floating(node) is None:
            return "it looks up no floating-point numbers"
        if node.op_type == "Conv" and self._lora.r % attributes.get("group", 1):
            return f"its {counted(attributes['group'], 'group')} do not divide the rank {self._lora.r}"
        if node.op_type in LINEAR and "K" not in attributes and len(self._shape(node) or ()) != 2:
            return "its weights are not a matrix"
        if "K" not in attributes and not self._shape(node):
            return "the shape of its weights is unknown"
        if self._lora.use_dora:
            return self._obstacle_to_dora(node)
        return None

    def _looks_up_rows(self, node: onnx.NodeProto, attributes: Mapping[str, Any]) -> bool:
        quantized_axis = attributes.get("quantize_axis", 1)
        axis = attributes.get("gather_axis" if node.op_type == "GatherBlockQuantized" else "axis", 0)
        return axis in (0, -2) and quantized_axis in (1, -1) and len(self._shape(node) or ()) == 2

    def _obstacle_to_dora(self, node: onnx.NodeProto) -> str | None:
        try:
            self._stored(node)
        except ValueError as found:
            return f"DoRA needs weights in initializers, found {found}"
        return None

    def _shape(self, node: onnx.NodeProto) -> tuple[int, ...] | None:
        return self._constants.shape(node.input[WEIGHTS[node.op_type]])

    def _floating(self, node: onnx.NodeProto) -> np.dtype[Any] | None:
        """Return the element type in which a layer computes: the type of its weights, of their scales or of its input."""
        names = [node.input[slot] for slot in (WEIGHTS[node.op_type], 2, 0) if slot < len(node.input)]
        if node.op_type in LOOK_UPS:
            decoder = self._decoders.get(node.output[0])
            names = [node.input[0] if decoder is None else decoder.input[1], *node.input[2:3]]
        for name in names:
            element = _graph.element_type(self._model, name) if name else 0
            if element in _graph.FLOATING:
                return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
        return None

    # ---- one layer ----

    def adapt(self, node: onnx.NodeProto) -> AdaptedLayer:
        """Add A and B beside a layer."""
        weight = node.input[WEIGHTS[node.op_type]]
        module, kind, attributes = self._module(node), node.op_type, attributes_of(node)
        shape = self._shape(node) or ()
        r, dtype = self._lora.r, self._floating(node) or np.dtype(np.float32)
        key = self._root(weight), kind
        if key in self._adapted:  # the network applies this layer several times
            layer = self._adapted[key]
            self._insert(node, kind, layer, dtype)
            return layer
        looks_up = kind in LOOK_UPS
        prefix, suffix = ("lora_embedding_", "") if looks_up else ("lora_", ".weight")
        path = free_name(module, self._paths)
        self._paths.add(path)
        names = [self._free(f"{path}.{prefix}{letter}{suffix}") for letter in "AB"]
        if "K" in attributes:
            outputs, inputs = (attributes["N"], attributes["K"])[:: 1 if attributes.get("transB", 1) else -1]
        elif kind == "Conv":
            outputs, inputs = shape[0], shape[1] * attributes.get("group", 1)
        elif looks_up:
            inputs, outputs = shape[0], shape[1] * (8 // attributes.get("bits", 4) if kind != "Gather" else 1)
        else:
            outputs, inputs = shape if attributes.get("transB") else shape[::-1]
        kernel = tuple(shape[2:]) if kind == "Conv" else ()
        fan_in = inputs * int(np.prod(kernel))
        if looks_up:
            a = np.zeros((r, inputs))
            b = self._rng.normal(size=(outputs, r))
        else:
            a = self._rng.uniform(-1, 1, (r, inputs, *kernel)) / np.sqrt(fan_in)
            b = np.zeros((outputs, r // attributes.get("group", 1), *(1 for _ in kernel)))
        for name, value in zip(names, (a, b), strict=True):
            add_initializer(self._model, name, self._given(name, value.shape, value).astype(dtype))
        magnitude, count = "", a.size + b.size
        if self._lora.use_dora:
            magnitude, count = self._free(f"{path}.lora_magnitude_vector"), count + outputs
            squares = squares_of(self._stored(node))
            start = np.sqrt(squares).reshape(shape_of(kind, outputs, len(shape)))
            add_initializer(self._model, magnitude, self._given(magnitude, start.shape, start).astype(dtype))
        fused = self._operator(node) if node.output[0] in self._unfused.parts else ""
        self._adapted[key] = AdaptedLayer(module, kind, weight, names[0], names[1], count, magnitude, fused)
        self._insert(node, kind, self._adapted[key], dtype)
        return self._adapted[key]

    def _root(self, name: str) -> str:
        """Return the initializer from which a weight is copied, or the first computed value in the chain of copies."""
        while (source := self._producers.get(name)) is not None and source.op_type in COPIES:
            name = source.input[0]
        return name

    def _given(self, name: str, shape: tuple[int, ...], value: Array) -> Array:
        fitting = [key for key in self._lora.values if name == key or name.endswith(f".{key}")]
        if not fitting:
            return value
        given = self._lora.values[fitting[0]]
        self._used.update(fitting)
        if self.prefix is None:
            self.prefix = name.removesuffix(fitting[0])
        if given.shape != shape:
            raise ValueError(f"LoRA: expected {name} of shape {list(shape)}, found {list(given.shape)}")
        return np.asarray(given)

    def _free(self, name: str) -> str:
        found = free_name(name, self._taken)
        self._taken.add(found)
        return found

    def _insert(self, node: onnx.NodeProto, kind: str, layer: AdaptedLayer, dtype: np.dtype[Any]) -> None:
        """Add the nodes that compute the product and add the product to the result of the layer."""
        names = [layer.a, layer.b]
        nodes = Nodes(names[0].rpartition(".lora_")[0], self._free, dtype)
        add = nodes.add
        scale = nodes.number(self._lora.scale, "scale")
        value = node.input[1 if kind in LOOK_UPS else 0]
        dropped = None
        if self._lora.dropout and kind not in LOOK_UPS:  # as in PEFT
            ratio = nodes.number(self._lora.dropout, "ratio", np.float32)
            training = nodes.constant(np.array(True), "training")
            dropped = value, add("Dropout", [value, ratio, training], "dropped")
            value = dropped[1]
        if kind == "Conv":
            # As in PEFT, A reads all channels, and B has the groups of the layer.
            kept = {k: v for k, v in attributes_of(node).items() if k != "group"}
            low = add("Conv", [value, names[0]], "low", **kept)
            group = attributes_of(node).get("group", 1)
            product = add("Conv", [add("Mul", [low, scale], "scaled"), names[1]], "product", group=group)
        elif kind == "Gemm":
            low = add("Gemm", [value, names[0]], "low", transB=1)
            product = add("Gemm", [add("Mul", [low, scale], "scaled"), names[1]], "product", transB=1)
        else:
            first = add("Transpose", [names[0]], "a", perm=[1, 0])
            low = (
                add("Gather", [first, value], "low")
                if kind in LOOK_UPS
                else add("MatMul", [value, first], "low")
            )
            second = add("Transpose", [names[1]], "b", perm=[1, 0])
            product = add("MatMul", [add("Mul", [low, scale], "scaled"), second], "product")
        last = self._decoders.get(node.output[0], node)
        output = last.output[0]
        last.output[0] = self._free(f"{nodes.module}/lora/without")
        total = add("Add", [last.output[0], product], "sum")
        if layer.magnitude:
            self._magnitude(node, layer).rescaled(nodes, total, dropped)
        nodes.made[-1].output[0] = output
        self._added[last.output[0]] = nodes.made

    def _magnitude(self, node: onnx.NodeProto, layer: AdaptedLayer) -> Magnitude:
        shapes = {tensor.name: tuple(tensor.dims) for tensor in self._model.graph.initializer}
        return Magnitude(
            layer=node,
            decoder=self._decoders.get(node.output[0]),
            squares=squares_of(self._stored(node)),
            shape=shapes[layer.magnitude],
            a=layer.a,
            b=layer.b,
            magnitude=layer.magnitude,
            r=self._lora.r,
            inputs=math.prod(shapes[layer.a][1:]) // attributes_of(node).get("group", 1),
            scale=self._lora.scale,
        )

    def _stored(self, node: onnx.NodeProto) -> Stored:
        return stored_weights(self._model, self._decoders.get(node.output[0], node))

    def unused_values(self) -> list[str]:
        """Set the biases to the given values; return the names of values that belong to no bias."""
        for bias in self.biases():
            tensor = next(tensor for tensor in self._model.graph.initializer if tensor.name == bias)
            shape = tuple(tensor.dims)
            value = self._given(bias, shape, array_of(tensor))
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value.astype(dtype), bias))
        return sorted(set(self._lora.values) - self._used)

    # ---- biases ----

    def biases(self) -> set[str]:
        """Return the names of the model's biases: vectors that layers, or Add nodes after them, add."""
        return {name for node in self._model.graph.node if (name := self._bias(node)) is not None}

    def _bias(self, node: onnx.NodeProto) -> str | None:
        """Return the bias that a layer, or a node after it, adds; None without a bias."""
        place = OWN_BIASES.get(node.op_type, 0)
        if 0 < place < len(node.input) and node.input[place]:
            return node.input[place] if node.input[place] in self._vectors else None
        if node.op_type not in LINEAR:
            return None
        added = self._added.get(node.output[0])
        reader = self._sums.get(added[-1].output[0] if added else node.output[0])
        if reader is None:
            return None
        places = [place for place in _ADDITIONS[reader.op_type][1] if place < len(reader.input)]
        return next((reader.input[place] for place in places if reader.input[place] in self._vectors), None)

    def trained_biases(self, chosen: Sequence[onnx.NodeProto]) -> list[str]:
        """Return the biases that are trained."""
        if self._lora.bias == "none":
            return []
        if self._lora.bias == "all":
            choices = Selection(self._model).resolve("LoRA.bias", ["*bias"])
            return sorted(self.biases() | set(choices))
        found = (self._bias(node) for node in chosen)
        return list(dict.fromkeys(name for name in found if name is not None))

    def finish(self) -> None:
        """Insert the new nodes after their layers."""
        graph = self._model.graph
        replace_nodes(graph, [n for node in graph.node for n in (node, *self._added.get(node.output[0], ()))])
        _graph.infer_shapes(self._model)


def sums_of(graph: onnx.GraphProto, layer: AdaptedLayer) -> list[onnx.NodeProto]:
    """Return the nodes that add a layer's adapter to what it computes: one for each time that the network applies the layer."""
    name = re.compile(re.escape(layer.a.partition(".lora_")[0]) + r"/lora/sum(_\d+)?")
    return [node for node in graph.node if name.fullmatch(node.name)]


def is_added(node: onnx.NodeProto) -> bool:
    """Whether a node belongs to an adapter."""
    return "/lora/" in node.name
