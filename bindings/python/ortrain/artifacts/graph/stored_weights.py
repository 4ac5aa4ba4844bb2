"""The weights of a layer as its model stores them: float numbers or codes, read through the nodes that copy or decode them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._files.weights import Spill, array_of
from ortrain._graph.initializers import add_initializer, free_name
from ortrain._support.counts import counted
from ortrain.artifacts.graph.coders import (
    BlockCoder,
    CodebookCoder,
    Coder,
    FloatCoder,
    LinearCoder,
    Parts,
    RoundedCoder,
)
from ortrain.artifacts.graph.targets import COPIES, WEIGHTS, attributes_of

Array = npt.NDArray[Any]

#: Layers that read codes themselves, and the indices of the inputs with codes, scales and zero points.
_OF_CODES = {
    "DynamicQuantizeMatMul": (1, 2, 3),
    "GatherBlockQuantized": (0, 2, 3),
    "MatMulBnb4": (1, 2),
    "MatMulNBits": (1, 2, 3),
}
#: Types of codes: the number of bits, and whether they have a sign.
INTEGERS: dict[int, tuple[int, bool]] = {
    onnx.TensorProto.INT4: (4, True),
    onnx.TensorProto.INT8: (8, True),
    onnx.TensorProto.INT16: (16, True),
    onnx.TensorProto.UINT4: (4, False),
    onnx.TensorProto.UINT8: (8, False),
    onnx.TensorProto.UINT16: (16, False),
}


@dataclass(frozen=True)
class Stored:
    """The weights of a layer.

    Attributes
    ----------
    layer : onnx.NodeProto
        The node of the layer.
    places : tuple of (onnx.NodeProto, int)
        Where nodes read the tensors: codes, scales and zero points.
    copies : tuple of onnx.NodeProto
        The nodes between the layer and the first tensor, the one that the layer reads first.
    parts, coder
        The tensors, and their form.
    twins : tuple of (onnx.NodeProto, int)
        Where another node reads the scales and zero points, too.
    """

    layer: onnx.NodeProto
    places: tuple[tuple[onnx.NodeProto, int], ...]
    copies: tuple[onnx.NodeProto, ...]
    parts: Parts
    coder: Coder
    twins: tuple[tuple[onnx.NodeProto, int], ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether the weights are float numbers."""
        return isinstance(self.coder, FloatCoder)

    @property
    def name(self) -> str:
        """The initializer with the numbers or codes."""
        node, slot = self.places[0]
        return str(node.input[slot])

    @property
    def decoder_of_results(self) -> onnx.NodeProto | None:
        """The node that decodes what a look-up of codes returns; None if the layer itself returns numbers."""
        readers = (node for node, _ in self.places if node.output[0] != self.layer.output[0])
        return next(readers, None) if self.layer.op_type == "Gather" and not self.copies else None

    @property
    def values(self) -> Array:
        """The numbers as the layer reads them."""
        return self.values_of(self.parts)

    def values_of(self, parts: Parts) -> Array:
        """Return the numbers that the layer would read from tensors."""
        values = self.coder.decode(parts)
        for node in reversed(self.copies):
            if node.op_type == "Transpose":
                values = values.transpose(attributes_of(node).get("perm"))
        return values

    @property
    def outputs(self) -> int:
        """The axis of the numbers with an index for each output of the layer."""
        kind, attributes = self.layer.op_type, attributes_of(self.layer)
        if kind in ("Conv", "MatMulNBits"):
            return 0
        return 0 if attributes.get("transB", kind == "MatMulBnb4") else 1

    @property
    def factor(self) -> float:
        """The factor by which the layer multiplies its weights."""
        is_product = self.layer.op_type in ("FusedMatMul", "Gemm", "TransposeMatMul")
        return float(attributes_of(self.layer).get("alpha", 1)) if is_product else 1.0

    def parts_of(self, values: Array) -> Parts:
        """Return the tensors for other numbers."""
        for node in self.copies:
            if node.op_type == "Transpose":
                order = attributes_of(node).get("perm")
                values = values.transpose(None if order is None else np.argsort(order))
        return self.coder.encode(values, self.parts)


def stored_weights(model: onnx.ModelProto, node: onnx.NodeProto) -> Stored:
    """Return the weights of a layer; those of a look-up of codes also for the DequantizeLinear that reads the look-up.

    Raises
    ------
    ValueError
        When they are not initializers in one of the known forms. The message is the end of a sentence: what was found.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    producers = {name: other for other in model.graph.node for name in other.output}
    if node.op_type in _OF_CODES:
        places = [(node, slot) for slot in _OF_CODES[node.op_type] if _has(node, slot)]
        parts = _parts(places, tensors)
        return Stored(node, tuple(places), (), parts, _own_coder(node, parts, tensors))
    if node.op_type == "DequantizeLinear":  # behind a look-up of codes
        look_up = producers[node.input[0]]
        places = [(look_up, 0), *((node, slot) for slot in (1, 2) if _has(node, slot))]
        table = tensors[look_up.input[0]]
        coder = _linear_coder(node, table.data_type, len(table.dims))
        return Stored(look_up, tuple(places), (), _parts(places, tensors), coder)
    reader, slot = node, WEIGHTS[node.op_type]
    copies: list[onnx.NodeProto] = []
    while reader.input[slot] not in tensors:
        source = producers.get(reader.input[slot])
        if source is not None and _rounds(source, reader, tensors):
            return _rounded(node, [*copies, source], tensors)
        if source is None or source.op_type not in COPIES or reader.op_type == "DequantizeLinear":
            found = "is an input" if source is None else f"{source.op_type} computes"
            raise ValueError(f"{reader.input[slot]!r}, which {found}")
        copies.append(source)
        reader, slot = source, 0
    if reader.op_type == "DequantizeLinear":
        places = [(reader, place) for place in (0, 1, 2) if _has(reader, place)]
        tensor = tensors[reader.input[0]]
        coder = _linear_coder(reader, tensor.data_type, len(tensor.dims))
        return Stored(node, tuple(places), tuple(copies), _parts(places, tensors), coder)
    tensor = tensors[reader.input[slot]]
    if tensor.data_type not in _graph.FLOATING:
        kind = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
        raise ValueError(f"{tensor.name!r}, whose elements are {kind}")
    places = [(reader, slot)]
    return Stored(node, tuple(places), tuple(copies), _parts(places, tensors), FloatCoder())


def _rounds(node: onnx.NodeProto, reader: onnx.NodeProto, tensors: dict[str, onnx.TensorProto]) -> bool:
    """Whether a node rounds float weights to the codes that a DequantizeLinear reads."""
    return (
        (node.op_type, reader.op_type) == ("QuantizeLinear", "DequantizeLinear")
        and node.input[0] in tensors
        and node.input[1:] == reader.input[1:]
        and node.attribute == reader.attribute
    )


def _rounded(
    layer: onnx.NodeProto, copies: list[onnx.NodeProto], tensors: dict[str, onnx.TensorProto]
) -> Stored:
    """Return the weights of a layer whose copies end with a DequantizeLinear and a QuantizeLinear."""
    decoder, encoder = copies[-2:]
    places = [(encoder, 0), *((decoder, slot) for slot in (1, 2) if _has(decoder, slot))]
    twins = [(encoder, slot) for slot in (1, 2) if _has(encoder, slot)]
    rank = len(tensors[encoder.input[0]].dims)
    kind = tensors[decoder.input[2]].data_type if len(places) > 2 else onnx.TensorProto.UINT8
    coder = RoundedCoder(_linear_coder(decoder, kind, rank))
    return Stored(layer, tuple(places), tuple(copies), _parts(places, tensors), coder, tuple(twins))


def _has(node: onnx.NodeProto, slot: int) -> bool:
    return slot < len(node.input) and bool(node.input[slot])


def _parts(places: list[tuple[onnx.NodeProto, int]], tensors: dict[str, onnx.TensorProto]) -> Parts:
    names = [node.input[slot] for node, slot in places]
    missing = [name for name in names if name not in tensors]
    if missing:
        raise ValueError(f"{missing[0]!r}, which is not an initializer")
    return Parts(*(array_of(tensors[name]) for name in names))


def _own_coder(node: onnx.NodeProto, parts: Parts, tensors: dict[str, onnx.TensorProto]) -> Coder:
    """Return the form of the weights of a layer that reads codes."""
    attributes = attributes_of(node)
    if node.op_type == "DynamicQuantizeMatMul":
        bits, is_signed = INTEGERS[tensors[node.input[1]].data_type]
        return LinearCoder(bits, is_signed, 1)
    if node.op_type == "MatMulBnb4":
        size = (int(attributes["block_size"]), int(attributes["N"]), int(attributes["K"]))
        return CodebookCoder(int(attributes["quant_type"]), *size)
    bits = int(attributes.get("bits", 4))
    if parts.codes.dtype != np.uint8 or bits not in (2, 4, 8):
        raise ValueError(
            f"{node.input[WEIGHTS[node.op_type]]!r}, codes of {counted(bits, 'bit')} in {parts.codes.dtype}"
        )
    if node.op_type == "GatherBlockQuantized":
        if parts.codes.ndim != 2:
            raise ValueError(f"{node.input[0]!r}, a table of shape {list(parts.codes.shape)}")
        rows, size = parts.codes.shape
        return BlockCoder(bits, int(attributes.get("block_size", 128)), rows, size * 8 // bits)
    groups = None
    if _has(node, 4):
        if node.input[4] not in tensors:
            raise ValueError(f"{node.input[4]!r}, which is not an initializer")
        groups = array_of(tensors[node.input[4]])
    rows, columns, block = (int(attributes[key]) for key in ("N", "K", "block_size"))
    return BlockCoder(bits, block, rows, columns, groups)


def _linear_coder(node: onnx.NodeProto, kind: int, rank: int) -> LinearCoder:
    """Return the form of what a DequantizeLinear decodes."""
    attributes = attributes_of(node)
    axis = int(attributes.get("axis", 1))
    bits, is_signed = INTEGERS.get(kind, (0, True))
    block = int(attributes.get("block_size", 0))
    return LinearCoder(bits, is_signed, axis + rank if axis < 0 else axis, block)


def write_weights(
    model: onnx.ModelProto, stored: Stored, parts: Parts, reads: Counter[str], apart: str, spill: Spill
) -> None:
    """Make tensors the weights of a layer, in new initializers if other nodes read the present ones.

    Parameters
    ----------
    model, stored
        The model, and the weights of the layer so far.
    parts : Parts
        The new tensors.
    reads : Counter
        How often nodes read each value.
    apart : str
        The name of a new initializer with float numbers, if it is free.
    spill : Spill
        Where the tensors are stored.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    is_copied = any(reads[node.output[0]] > 1 for node in stored.copies)
    if stored.is_float and (is_copied or reads[stored.name] > 1):
        name = free_name(apart, _graph.names_in_use(model))
        values = stored.values_of(parts)
        for node in reversed(stored.copies):
            if node.op_type == "Cast":
                values = values.astype(onnx.helper.tensor_dtype_to_np_dtype(attributes_of(node)["to"]))
        add_initializer(model, name, spill.moved(np.ascontiguousarray(values)))
        stored.layer.input[WEIGHTS[stored.layer.op_type]] = name
        return
    own = _with_own_copies(model, stored) if is_copied else {}
    numbers = [parts.codes, *(part for part in (parts.scales, parts.zeros) if part is not None)]
    read_here = Counter(node.input[slot] for node, slot in stored.places + stored.twins)
    written: dict[str, str] = {}
    for (node, slot), value in zip(stored.places + stored.twins, numbers + numbers[1:], strict=False):
        name = node.input[slot]
        if name not in written:
            written[name] = name
            made = _shaped(tensors[name], value)
            if not is_copied and reads[name] <= read_here[name]:
                tensors[name].CopyFrom(spill.moved(made))
                tensors[name].name = name
            elif not np.array_equal(_array(made), array_of(tensors[name])):  # layers may share zero points
                written[name] = free_name(f"{name}.merged", _graph.names_in_use(model))
                add_initializer(model, written[name], spill.moved(made))
        own.get(node.output[0], node).input[slot] = written[name]


def _with_own_copies(model: onnx.ModelProto, stored: Stored) -> dict[str, onnx.NodeProto]:
    """Give a layer its own copies of the nodes that decode its weights; return them by the results of the given nodes."""
    nodes, made = model.graph.node, {}
    reader, slot = stored.layer, WEIGHTS[stored.layer.op_type]
    for node in stored.copies:
        place = next(i for i, other in enumerate(nodes) if other.output[0] == reader.output[0])
        own = onnx.NodeProto()
        own.CopyFrom(node)
        own.output[0] = free_name(f"{node.output[0]}.merged", _graph.names_in_use(model))
        own.name = f"{node.name}.merged" if node.name else ""
        reader.input[slot] = own.output[0]
        nodes.insert(place, own)
        reader, slot = nodes[place], 0
        made[node.output[0]] = reader
    return made


def _shaped(like: onnx.TensorProto, value: Array) -> onnx.TensorProto | Array:
    """Return a value in the type and shape of an initializer."""
    if like.data_type in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4):
        codes = value.astype(np.int8).ravel().view(np.uint8) & 15
        pairs = np.append(codes, np.zeros(codes.size % 2, np.uint8)).reshape(-1, 2)
        packed = pairs[:, 0] | pairs[:, 1] << np.uint8(4)
        return onnx.TensorProto(data_type=like.data_type, dims=like.dims, raw_data=packed.tobytes())
    kind = onnx.helper.tensor_dtype_to_np_dtype(like.data_type)
    return np.ascontiguousarray(value.reshape(tuple(like.dims)), dtype=kind)


def _array(value: onnx.TensorProto | Array) -> Array:
    return array_of(value) if isinstance(value, onnx.TensorProto) else value
