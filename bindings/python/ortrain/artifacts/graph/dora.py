"""DoRA: the norms of the weights of each output are trained beside a low-rank adapter.

With the norms ``n = |W + s B A|``, a layer computes ``m / n (W x + s B A x)``. As in PEFT, ``n`` counts as a constant in
gradients. The norms are those of the rows of a matrix, of the kernels of a convolution for each output channel, and of the
columns of an embedding table, which are its outputs.

With dropout, a train step computes ``W x + (m / n - 1) W d + m / n s B A d`` as PEFT does, where ``d`` is x after dropout. Here
that is ``m / n (W x + s B A d) + (1 - m / n) W (x - d)``, whose last term is zero, and removed, where nothing is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain._graph.evaluation import ADDS_DROPPED
from ortrain.artifacts.graph.stored_weights import Stored
from ortrain.artifacts.graph.targets import LOOK_UPS, attributes_of

Array = npt.NDArray[Any]

ROWS = 4096
"""The number of rows of a table in codes that a step decodes at once, at most."""
UNIT = 2.0**-40
"""Norms are held at multiples of this number, which is also the least norm."""
#: Layers that add a bias themselves, and the index of the input with the bias.
OWN_BIASES = {"Conv": 2, "DynamicQuantizeMatMul": 4, "Gemm": 2, "MatMulNBits": 5}


@dataclass
class Nodes:
    """Nodes that are added beside a layer."""

    module: str
    free: Callable[[str], str]
    """Returns a name that is free, given the name that is wanted."""
    dtype: np.dtype[Any]
    made: list[onnx.NodeProto] = field(default_factory=list)

    def add(self, operator: str, inputs: list[str], what: str, **attributes: Any) -> str:
        """Add a node and return its result."""
        output = self.free(f"{self.module}/lora/{what}")
        self.made.append(onnx.helper.make_node(operator, inputs, [output], output, **attributes))
        return output

    def constant(self, value: Array, what: str) -> str:
        """Add a constant."""
        return self.add("Constant", [], what, value=onnx.numpy_helper.from_array(value))

    def number(self, value: float, what: str, kind: Any = None) -> str:
        """Add a constant number, by default of the type in which the layer computes."""
        return self.constant(np.array(value, kind or self.dtype), what)

    def shaped(self, value: str, shape: list[int], what: str) -> str:
        """Add a Reshape."""
        return self.add("Reshape", [value, self.constant(np.array(shape), f"{what}_shape")], what)


@dataclass(frozen=True)
class Magnitude:
    """What a layer with DoRA needs besides the nodes of its adapter."""

    layer: onnx.NodeProto
    decoder: onnx.NodeProto | None
    """The node that decodes what a look-up returns, if there is one."""
    squares: Array
    """The squared norms of the weights, ``[outputs]``."""
    shape: tuple[int, ...]
    """The shape of the trained norms."""
    a: str
    b: str
    magnitude: str
    r: int
    inputs: int
    """The number of weights of an output."""
    scale: float

    def rescaled(self, nodes: Nodes, total: str, dropped: tuple[str, str] | None = None) -> str:
        """Add nodes that multiply ``W x + s B A x + b`` by m / n, except for the bias b; return the result.

        With dropout, `dropped` names x and x after dropout.
        """
        norms, magnitude, outputs = self._norms(nodes), self.magnitude, len(self.squares)
        if len(self.shape) > 1:
            magnitude = nodes.shaped(magnitude, [outputs], "magnitudes")
        ratio = nodes.add("Div", [magnitude, norms], "ratio_of_norms")
        rest = ""
        if self._has_bias or dropped is not None:
            rest = nodes.add("Sub", [nodes.number(1, "one"), ratio], "rest_of_ratio")
        shift = self._shift(nodes, rest) if self._has_bias else ""
        result = self._times(nodes, total, ratio, shift, "rescaled")
        if dropped is None:
            return result
        difference = nodes.add("Sub", list(dropped), "dropped_part")
        product = self._applied(nodes, difference, "dropped_product")
        correction = self._times(nodes, product, rest, "", "dropped_rest")
        return nodes.add("Add", [result, correction], ADDS_DROPPED)

    def _times(self, nodes: Nodes, value: str, factors: str, addends: str, what: str) -> str:
        """Add nodes that multiply each output by a factor and add addends, if there are any."""
        if self.layer.op_type == "Conv":
            # A convolution keeps the layout in which convolutions store values; a Mul does not.
            outputs = len(self.squares)
            kernels = nodes.shaped(factors, [outputs, 1, *self.shape[2:]], f"kernels_{what}")
            inputs = [value, kernels, *([addends] if addends else [])]
            return nodes.add("Conv", inputs, what, group=outputs)
        result = nodes.add("Mul", [value, factors], what)
        return nodes.add("Add", [result, addends], "with_bias") if addends else result

    @property
    def _has_bias(self) -> bool:
        place = OWN_BIASES.get(self.layer.op_type, 0)
        return 0 < place < len(self.layer.input) and bool(self.layer.input[place])

    def _shift(self, nodes: Nodes, rest: str) -> str:
        """Add nodes for the part of the bias that the ratio would remove, ``(1 - ratio) b``."""
        bias = str(self.layer.input[OWN_BIASES[self.layer.op_type]])
        beta = attributes_of(self.layer).get("beta", 1)
        if beta != 1:
            bias = nodes.add("Mul", [bias, nodes.number(beta, "beta")], "scaled_bias")
        return nodes.add("Mul", [bias, rest], "rest_of_bias")

    def _norms(self, nodes: Nodes) -> str:
        """Add nodes for the norms of W + s B A, ``[outputs]``.

        Their squares are the sum of the squared norms of W and of the diagonals of 2 s B (A Wᵀ) and s² B (A Aᵀ) Bᵀ. So a step
        needs no matrix of the size of W, and W may be quantized.
        """
        squares = nodes.constant(self.squares.astype(nodes.dtype), "squares")
        a, b, turned = self.a, self.b, [1, 0]
        if self.layer.op_type == "Conv":
            b = nodes.shaped(b, [-1, self.r], "b_rows")
            a = nodes.shaped(a, [self.r, -1], "a_rows") if self._groups == 1 else self._parts_of_a(nodes)
            turned = turned if self._groups == 1 else [0, 2, 1]
        through = self._through_weights(nodes, a) if self._groups == 1 else self._through_groups(nodes, a)
        columns = nodes.add("Transpose", [b], "b_columns", perm=[1, 0])
        gram = nodes.add("MatMul", [a, nodes.add("Transpose", [a], "a_columns", perm=turned)], "gram")
        mixed = nodes.add("Mul", [through, nodes.number(2 * self.scale, "twice")], "mixed")
        through_gram = nodes.add("MatMul", [gram, columns], "gram_b")
        own = nodes.add("Mul", [through_gram, nodes.number(self.scale**2, "scale_squared")], "own")
        terms = nodes.add("Mul", [nodes.add("Add", [mixed, own], "mixed_and_own"), columns], "terms")
        ones = nodes.constant(np.ones((1, self.r), nodes.dtype), "ones")
        sums = nodes.add("MatMul", [ones, terms], "sums")
        if self._groups > 1:
            sums = nodes.add("Transpose", [sums], "sums_by_output", perm=[2, 0, 1])
        change = nodes.shaped(sums, [-1], "change")
        total = nodes.add("Add", [squares, change], "all_squares")
        # A channel whose weights are all zero has m = 0 as well: 0 / 0 would be NaN.
        least = nodes.number(max(UNIT**2, 2.0**-24 if nodes.dtype == np.float16 else 0), "least_square")
        return _held(nodes, nodes.add("Sqrt", [nodes.add("Max", [total, least], "positive_squares")], "norm"))

    # With g groups, PEFT takes the norms of W + s M, where M is the product of B as outputs / g rows and A as r rows, in the
    # shape of W: the row p of B and the part c of A, of g parts, give the output p g + c. So a layer computes here what it
    # computes there. Before training M is zero.

    @property
    def _groups(self) -> int:
        return int(attributes_of(self.layer).get("group", 1)) if self.layer.op_type == "Conv" else 1

    def _parts_of_a(self, nodes: Nodes) -> str:
        """Add nodes that return the parts of A, ``[g, r, inputs of a kernel]``."""
        parts = nodes.shaped(self.a, [self.r, self._groups, -1], "a_rows")
        return nodes.add("Transpose", [parts], "parts_of_a", perm=[1, 0, 2])

    def _through_groups(self, nodes: Nodes, parts: str) -> str:
        """Add nodes that compute the products of the parts of A with the kernels, ``[g, r, outputs / g]``."""
        kernels = nodes.shaped(self.layer.input[1], [-1, self._groups, self.inputs], "kernels")
        columns = nodes.add("Transpose", [kernels], "kernel_columns", perm=[1, 2, 0])
        return nodes.add("MatMul", [parts, columns], "a_through_weights")

    def _through_weights(self, nodes: Nodes, a: str) -> str:
        """Add nodes that compute A Wᵀ, ``[r, outputs]``, from the weights that the layer reads."""
        node = self.layer
        if node.op_type in LOOK_UPS:
            return self._through_table(nodes)
        if node.op_type == "Conv":
            kernels = nodes.shaped(node.input[1], [-1, self.inputs], "kernels")
            return nodes.add("Gemm", [a, kernels], "a_through_weights", transB=1)
        if node.op_type == "DynamicQuantizeMatMul":
            # The layer rounds its input, and the rounding of A would change the norms.
            kind = onnx.helper.np_dtype_to_tensor_dtype(nodes.dtype)
            codes = nodes.add("Cast", [node.input[1]], "codes", to=kind)
            if len(node.input) > 3 and node.input[3]:
                zeros = nodes.add("Cast", [node.input[3]], "zeros", to=kind)
                codes = nodes.add("Sub", [codes, zeros], "centered_codes")
            product = nodes.add("MatMul", [a, codes], "a_through_codes")
            return nodes.add("Mul", [product, node.input[2]], "a_through_weights")
        return self._applied(nodes, self.a, "a_through_weights")

    def _applied(self, nodes: Nodes, value: str, what: str) -> str:
        """Add a node that applies the layer, without its bias, to a value."""
        node = self.layer
        bias = OWN_BIASES.get(node.op_type)
        others = [name for place, name in enumerate(node.input) if place and place != bias]
        domain = {"domain": node.domain} if node.domain else {}
        return nodes.add(node.op_type, [value, *others], what, **domain, **attributes_of(node))

    def _through_table(self, nodes: Nodes) -> str:
        """Add nodes that compute A W for the table W of a look-up."""
        node, rows = self.layer, self.inputs
        if node.op_type == "Gather" and self.decoder is None:
            return nodes.add("MatMul", [self.a, node.input[0]], "a_through_weights")
        # Some rows at a time, because the decoded table may be larger than all other memory of a step. The indices depend on A,
        # for otherwise the rows would be decoded once and kept.
        first = nodes.add("ReduceMax", [self.a], "largest", keepdims=0)
        never = nodes.add("Less", [first, first], "never")
        zero = nodes.add("Cast", [never], "zero", to=onnx.TensorProto.INT64)
        found = ""
        for start in range(0, rows, ROWS):
            end = min(start + ROWS, rows)
            some = nodes.constant(np.arange(start, end), "indices")
            indices = nodes.add("Add", [some, zero], "rows")
            inputs = [node.input[0], indices, *node.input[2:]]
            domain = {"domain": node.domain} if node.domain else {}
            table = nodes.add(node.op_type, inputs, "table", **domain, **attributes_of(node))
            if self.decoder is not None:
                settings = attributes_of(self.decoder)
                table = nodes.add("DequantizeLinear", [table, *self.decoder.input[1:]], "decoded", **settings)
            limits = [nodes.constant(np.array([limit]), "limit") for limit in (start, end, 1)]
            part = nodes.add("Slice", [self.a, *limits], "part_of_a")
            product = nodes.add("MatMul", [part, table], "a_through_rows")
            found = nodes.add("Add", [found, product], "a_through_weights") if found else product
        return found


def squares_of(stored: Stored) -> Array:
    """Return the squared norms of the weights of each output in double precision, ``[outputs]``."""
    values = stored.values
    axes = list(range(values.ndim))
    sums = np.einsum(values, axes, values, axes, [stored.outputs], dtype=np.float64, casting="same_kind")
    return np.asarray(stored.factor**2 * sums)


def shape_of(operator: str, outputs: int, rank: int) -> tuple[int, ...]:
    """Return the shape of the trained norms: PEFT's, which broadcasts against what the layer returns."""
    return (1, outputs, *[1] * (rank - 2)) if operator == "Conv" else (outputs,)


def norms_of(weight: Array) -> Array:
    """Return the norms of the weights of each output, which is an index of the first axis."""
    return np.asarray(np.sqrt((weight.astype(np.float64) ** 2).sum(tuple(range(1, weight.ndim)))))


def without_groups(weight: Array, groups: int) -> Array:
    """Return kernels that read all channels: zero for channels of other groups."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    whole = np.zeros((weight.shape[0], groups * inputs, *weight.shape[2:]), weight.dtype)
    for group in range(groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        whole[rows, group * inputs : (group + 1) * inputs] = weight[rows]
    return whole


def with_norms(weight: Array, outputs: int, norms: Array) -> Array:
    """Return weights scaled so that those of each output have a given norm. `outputs` is the axis of the outputs."""
    others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
    found = np.sqrt((weight.astype(np.float64) ** 2).sum(others, keepdims=True))
    wanted = norms.reshape([-1 if axis == outputs else 1 for axis in range(weight.ndim)])
    return np.asarray(weight * (wanted / np.maximum(found, UNIT)))


def _held(nodes: Nodes, norm: str) -> str:
    """Add nodes that return a value without its gradient.

    No gradient flows through integers. The conversion keeps all bits of a float32 for numbers above 2^-17.
    """
    unit = nodes.number(1 / UNIT, "unit", np.float64)
    wide = nodes.add("Cast", [norm], "norm_wide", to=onnx.TensorProto.DOUBLE)
    whole = nodes.add(
        "Cast", [nodes.add("Mul", [wide, unit], "norm_units")], "norm_whole", to=onnx.TensorProto.INT64
    )
    back = nodes.add("Cast", [whole], "norm_back", to=onnx.TensorProto.DOUBLE)
    held = nodes.add("Div", [back, unit], "norm_held_wide")
    return nodes.add("Cast", [held], "norm_held", to=onnx.helper.np_dtype_to_tensor_dtype(nodes.dtype))
