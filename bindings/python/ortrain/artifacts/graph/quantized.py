"""Weights of few bits in place of float ones: MatMul and Gemm become MatMulNBits, look-ups GatherBlockQuantized.

Fused operators of onnxruntime are written as their parts first. Those whose weights stay float are put together again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import array_of
from ortrain._graph.initializers import add_initializer, free_name, is_read, remove_initializers
from ortrain._support.counts import counted, sized
from ortrain.artifacts.choice.export_record import PATH, module_of
from ortrain.artifacts.graph.adapters import is_added
from ortrain.artifacts.graph.block_codes import Codes, Coding, decode, encode
from ortrain.artifacts.graph.fused import FusedLayer, Part, refuse, replace_nodes, unfuse

DOMAIN = "com.microsoft"
_WEIGHTS = {"MatMul": 1, "Gemm": 1, "Gather": 0}
#: Fused operators that have such a layer as a part.
_FUSED = ("Attention", "FusedGemm", "GemmFastGelu")
_FUSED_EMBEDDINGS = ("EmbedLayerNormalization",)
#: Operators whose weights are codes.
_QUANTIZED = ("GatherBlockQuantized", "MatMulBnb4", "MatMulNBits")
_COPIES = ("Transpose", "Identity")
#: The types in which runtimes have the operators.
_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)

_LITTLE = 0.5
"""Where less of the change of training is left, the report advises against the result."""
_ADVICE = (
    "; rounding removed the rest, so the model may compute what it computed before training: keep the adapters instead "
    "(--adapters inside or apart)"
)


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer with quantized weights."""

    module: str
    """The path of the module, or the name of the node."""
    operator: str
    """The operator of the layer before quantization."""
    weight: str
    """The initializer with the float weights."""
    shape: tuple[int, ...]
    bits: int
    error: float
    """The root mean square of the changes of the weights, divided by the root mean square of the weights."""
    largest: float
    """The largest change of a weight."""
    bytes_before: int
    bytes_after: int
    change: float | None = None
    """For weights with a merged adapter: the root mean square of what training changed, divided by that of the weights."""
    kept: float | None = None
    """The part of that change that the new weights contain: 1 for all of it, about 0 if rounding removed it."""

    def __str__(self) -> str:
        if self.change is not None and self.kept is not None:
            return (
                f"{self.module} ({self.operator} {list(self.shape)}): training changed the weights by {self.change:.2%}, "
                f"rounding by {self.error:.2%}; {self.kept:.0%} of the training's change is left"
            )
        size = f"{sized(self.bytes_before)} -> {sized(self.bytes_after)}"
        return f"{self.module} ({self.operator} {list(self.shape)}): error {self.error:.2%}, largest {self.largest:.2g}, {size}"


@dataclass(frozen=True)
class Quantization:
    """What became of the layers of a model.

    Attributes
    ----------
    layers : tuple of QuantizedLayer
        The layers with quantized weights.
    skipped : tuple of str
        The others that have a matrix of weights, with the reason.
    model : onnx.ModelProto
        The model with quantized weights.
    """

    layers: tuple[QuantizedLayer, ...]
    skipped: tuple[str, ...]
    model: onnx.ModelProto = field(repr=False)

    @property
    def error(self) -> float:
        """The relative error of all quantized weights together."""
        squares = sum((layer.error**2) * layer.bytes_before for layer in self.layers)
        return float(np.sqrt(squares / max(1, sum(layer.bytes_before for layer in self.layers))))

    @property
    def kept(self) -> float | None:
        """The part of the change of training that is left in all layers together; None without merged adapters."""
        found = [
            (layer.kept, (layer.change or 0) ** 2 * layer.bytes_before)
            for layer in self.layers
            if layer.kept is not None
        ]
        total = sum(weight for _, weight in found)
        return sum(kept * weight for kept, weight in found) / total if total else None

    def __str__(self) -> str:
        before, after = (
            sum(getattr(layer, f"bytes_{w}") for layer in self.layers) for w in ("before", "after")
        )
        lines = [str(layer) for layer in self.layers]
        lines += [f"skipped     {reason}" for reason in self.skipped]
        if (kept := self.kept) is not None:
            lines.append(
                f"requantized {counted(len(self.layers), 'layer')}, rounding changed the weights by {self.error:.2%}; {kept:.0%} "
                f"of the training's change is left{_ADVICE if kept < _LITTLE else ''}"
            )
            return "\n".join(lines)
        lines.append(
            f"quantized   {counted(len(self.layers), 'layer')}, {sized(before)} -> {sized(after)}, mean error "
            f"{self.error:.2%}"
        )
        return "\n".join(lines)


def quantize(
    model: onnx.ModelProto, coding: Coding, skip: Sequence[str] = (), embeddings: bool = False
) -> Quantization:
    """Quantize the weights of layers of a model, in place.

    Raises
    ------
    ValueError
        When no layer can have them, an entry of `skip` fits no layer, or a weight is not finite.
    """
    unfused = unfuse(model, _FUSED + (_FUSED_EMBEDDINGS if embeddings else ()))
    editor = _Quantizer(model, coding, unfused.parts)
    chosen, skipped = editor.choose(skip, embeddings)
    skipped += unfused.skipped
    layers = tuple(dict.fromkeys(editor.replace(node, name, transposed) for node, name, transposed in chosen))
    if not layers:
        raise ValueError(
            "no layer can be quantized"
            + (
                f": {'; '.join(skipped[:8])}"
                if skipped
                else "; the model has no MatMul or Gemm with constant weights"
            )
        )
    editor.finish([layer for layer in unfused.layers if not editor.has_replaced(layer)])
    return Quantization(layers, tuple(skipped), model)


def _matrix_read(
    node: onnx.NodeProto, tensors: dict[str, onnx.TensorProto], producers: dict[str, onnx.NodeProto]
) -> tuple[onnx.TensorProto, bool] | None:
    if node.op_type not in _WEIGHTS or node.domain not in ("", "ai.onnx"):
        return None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    name, transposed = (
        node.input[_WEIGHTS[node.op_type]],
        node.op_type != "Gather" and not attributes.get("transB"),
    )
    while (source := producers.get(name)) is not None and source.op_type in _COPIES:
        transposed ^= source.op_type == "Transpose" and _exchanges(source)
        name = source.input[0]
    tensor = tensors.get(name)
    return (tensor, transposed) if tensor is not None and len(tensor.dims) == 2 else None


def difference(exact: npt.NDArray[Any], codes: Codes) -> tuple[float, float]:
    """Return the relative error of codes, and the largest difference of a number."""
    squares, of_changes, largest = 0.0, 0.0, 0.0
    for rows in codes.parts():
        numbers = exact[rows].astype(np.float32)
        found = decode(codes.of(rows)) - numbers
        squares += float(np.linalg.norm(numbers)) ** 2
        of_changes += float(np.linalg.norm(found)) ** 2
        largest = max(largest, float(np.abs(found).max(initial=0)))
    return float(np.sqrt(of_changes / squares)) if squares else 0.0, largest


class _Quantizer:
    def __init__(self, model: onnx.ModelProto, coding: Coding, parts: Mapping[str, Part]) -> None:
        self._model, self._coding, self._parts = model, coding, parts
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._taken = _graph.names_in_use(model)
        self._made: dict[tuple[str, bool, bool], tuple[list[str], QuantizedLayer]] = {}
        self._nodes: dict[str, list[onnx.NodeProto]] = {}

    # ---- which layers ----

    def choose(
        self, skip: Sequence[str], embeddings: bool
    ) -> tuple[list[tuple[onnx.NodeProto, str, bool]], list[str]]:
        """Return the layers to quantize and reasons why others keep their weights.

        A layer comes with its initializer, and with True if the initializer has a row for each input.
        """
        chosen, skipped, used, names = [], [], set(), []
        for node in self._model.graph.node:
            found = self._weight(node)
            if node.op_type in _QUANTIZED:
                skipped.append(
                    f"{node.name or node.output[0]} ({node.op_type}): its weights are quantized already"
                )
            if found is None:
                continue
            name, transposed = found
            entries = [entry for entry in skip if self._fits(node, name, entry)]
            used.update(entries)
            names.append(self._module(node, name))
            reason = "named in skip" if entries else self._obstacle(node, name, transposed, embeddings)
            if reason is None:
                chosen.append((node, name, transposed))
            else:
                skipped.append(f"{names[-1]} ({self._operator(node)}): {reason}")
        unused = [entry for entry in skip if entry not in used]
        if unused:
            raise ValueError(
                f"skip: {unused[0]!r} fits no layer with a matrix of weights; there are {', '.join(names[:12]) or 'none'}"
            )
        return chosen, skipped

    def _weight(self, node: onnx.NodeProto) -> tuple[str, bool] | None:
        found = _matrix_read(node, self._tensors, self._producers)
        return None if found is None else (found[0].name, found[1])

    def _operator(self, node: onnx.NodeProto) -> str:
        part = self._parts.get(node.output[0])
        return node.op_type if part is None else part.operator

    def _module(self, node: onnx.NodeProto, name: str) -> str:
        part = self._parts.get(node.output[0])
        if part is not None:
            return part.module
        return (
            name.rpartition(".")[0]
            if PATH.fullmatch(name)
            else module_of(node) or node.name or node.output[0]
        )

    def _fits(self, node: onnx.NodeProto, name: str, entry: str) -> bool:
        part = self._parts.get(node.output[0])
        return any(
            fnmatchcase(known, entry) or known.startswith(f"{entry}.") or known.endswith(f".{entry}")
            for known in (self._module(node, name), node.name if part is None else part.node, name)
        )

    def _obstacle(self, node: onnx.NodeProto, name: str, transposed: bool, embeddings: bool) -> str | None:
        """Return why a layer keeps its weights; None if it does not."""
        if is_added(node):
            return "it belongs to an adapter"
        tensor = self._tensors[name]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        columns = tensor.dims[0 if transposed else 1]
        if tensor.data_type not in _TYPES:
            return f"its weights are {onnx.TensorProto.DataType.Name(tensor.data_type).lower()}"
        if node.op_type == "Gather":
            if not embeddings:
                return "it is an embedding"
            if attributes.get("axis") or transposed:
                return "it does not look up rows of a matrix"
            if columns % self._coding.block:
                return f"its rows have {counted(columns, 'number')}, not a multiple of the block size {self._coding.block}"
            return None
        if node.op_type == "Gemm" and (attributes.get("transA") or attributes.get("alpha", 1) != 1):
            return "its input is transposed or scaled"
        if node.op_type == "Gemm" and len(node.input) > 2 and attributes.get("beta", 1) != 1:
            return "its bias is scaled"
        if columns < self._coding.block:
            return (
                f"its rows of {counted(columns, 'number')} are shorter than a block of {self._coding.block}"
            )
        return None

    # ---- one layer ----

    def replace(self, node: onnx.NodeProto, name: str, transposed: bool) -> QuantizedLayer:
        """Note the nodes that replace a layer, and return a description of the layer."""
        gathers = node.op_type == "Gather"
        inputs, layer = self._encoded(node, name, transposed, gathers)
        shared: dict[str, Any] = {
            "bits": self._coding.bits,
            "block_size": self._coding.block,
            "domain": DOMAIN,
        }
        if gathers:
            data, *rest = inputs
            made = onnx.helper.make_node(
                "GatherBlockQuantized",
                [data, node.input[1], *rest],
                node.output,
                node.name,
                gather_axis=0,
                quantize_axis=1,
                **shared,
            )
            nodes = [made]
        else:
            rows, columns = self._shape(name, transposed)
            has_bias = node.op_type == "Gemm" and len(node.input) > 2 and bool(node.input[2])
            product = self._free(f"{node.output[0]}_product") if has_bias else node.output[0]
            made = onnx.helper.make_node(
                "MatMulNBits", [node.input[0], *inputs], [product], node.name, N=rows, K=columns, **shared
            )
            nodes = [made]
            if has_bias:
                label = f"{node.name}/bias" if node.name else ""
                nodes.append(onnx.helper.make_node("Add", [product, node.input[2]], node.output, label))
        for new in nodes:
            new.metadata_props.extend(node.metadata_props)
        self._nodes[node.output[0]] = nodes
        return layer

    def _shape(self, name: str, transposed: bool) -> tuple[int, int]:
        rows, columns = self._tensors[name].dims[::-1] if transposed else self._tensors[name].dims
        return int(rows), int(columns)

    def _encoded(
        self, node: onnx.NodeProto, name: str, transposed: bool, gathers: bool
    ) -> tuple[list[str], QuantizedLayer]:
        """Return the initializers with codes, scales and zero points of a matrix; layers that share the matrix share them."""
        key = name, transposed, gathers
        if key in self._made:
            return self._made[key]
        matrix = array_of(self._tensors[name])
        if not np.isfinite(matrix).all():
            raise ValueError(f"cannot quantize {name!r}: it has numbers that are not finite")
        exact = matrix.T if transposed else matrix
        codes = encode(exact, self._coding)
        packed = codes.packed.reshape(len(exact), -1) if gathers else codes.packed
        values = {"": packed, "_scales": codes.scales, "_zeros": codes.zeros}
        base = f"{name}_q{self._coding.bits}{'_rows' if gathers else ''}"
        inputs = []
        for suffix, value in values.items():
            if value is not None:
                inputs.append(self._free(base + suffix))
                add_initializer(self._model, inputs[-1], value)
        error, largest = difference(exact, codes)
        layer = QuantizedLayer(
            self._module(node, name),
            self._operator(node),
            name,
            tuple(matrix.shape),
            self._coding.bits,
            error,
            largest,
            matrix.nbytes,
            codes.bytes,
        )
        self._made[key] = inputs, layer
        return self._made[key]

    def _free(self, name: str) -> str:
        found = free_name(name, self._taken)
        self._taken.add(found)
        return found

    def has_replaced(self, layer: FusedLayer) -> bool:
        """Whether a part of a fused node got quantized weights."""
        replaced = {node.name for nodes in self._nodes.values() for node in nodes}
        return any(name in replaced for names in layer.weights.values() for name in names)

    def finish(self, unchanged: Sequence[FusedLayer]) -> None:
        """Replace the layers by the new nodes, put unchanged fused nodes together again, and remove unread initializers."""
        graph = self._model.graph
        replace_nodes(graph, [new for node in graph.node for new in self._nodes.get(node.output[0], [node])])
        refuse(self._model, unchanged)
        _graph.import_domain(self._model, DOMAIN, 1)
        for name in {key[0] for key in self._made}:
            _remove_unread(self._model, name)
        _graph.infer_shapes(self._model)


def _exchanges(node: onnx.NodeProto) -> bool:
    """Whether a transpose of a matrix exchanges its axes."""
    return all(list(a.ints) != [0, 1] for a in node.attribute if a.name == "perm")


def _remove_unread(model: onnx.ModelProto, name: str) -> None:
    """Remove an initializer if no node reads it, or if only transposes of it read it whose results no node reads."""
    graph = model.graph
    for place in reversed(range(len(graph.node))):
        node = graph.node[place]
        if node.op_type in _COPIES and node.input[0] == name and not is_read(model, node.output[0]):
            gone = node.output[0]
            del graph.node[place]
            remove_initializers(model, [gone])
    if not is_read(model, name):
        remove_initializers(model, [name])
