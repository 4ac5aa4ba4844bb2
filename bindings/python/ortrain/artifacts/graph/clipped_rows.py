"""Training models whose gradient is the sum of the gradients of rows, each clipped to a norm.

DP-SGD needs this sum, and the model computes it in one step.

A training model computes ``dW = sum_i dW_i`` for each weight, where ``dW_i = a_iᵀ e_i`` belongs to row ``i``: ``a_i`` is the
input of the layer, and ``e_i`` is the gradient of its result. The model computes both in any case. So the norm of the gradient
of each row over all weights follows without a backward pass for each row, and the clipped sum is the same product with ``e_i``
multiplied by ``c_i = min(1, clip / norm_i)``. One forward and one backward pass remain.

- A product of one position: ``|dW_i|² = |a_i|² |e_i|²``. Source: I. Goodfellow, "Efficient Per-Example Gradient Computations",
  2015. Of several positions ``t`` and ``s``: ``sum <a_t, a_s> <e_t, e_s>``. Source: X. Li et al., "Large Language Models Can Be
  Strong Differentially Private Learners", 2021 (ghost clipping).
- An embedding: the same, where ``<a_t, a_s>`` is 1 if both look up the same row of the table. If the output layer shares the
  matrix of the embedding, the inner product of the two gradients is added, by the same formula.
- Convolutions, normalizations and biases: ``dW_i`` itself, of all rows at once; that of a convolution is the gradient of a
  convolution with a group for each row. Z. Bu et al., "Scalable and Efficient Training of Large Convolutional Neural Networks
  with Differential Privacy", 2022, compare this with the norms of products, which take less memory where images are small.
- No second backward pass: Z. Bu et al., "Differentially Private Optimization on Large Model at Small Cost", 2022 (book-keeping).

The number of rows of a step is fixed, because groups of a convolution are. Steps with fewer rows repeat some rows with a mask
of 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._graph.initializers import free_name
from ortrain.artifacts.graph.fused import replace_nodes
from ortrain.artifacts.graph.targets import attributes_of

Array = npt.NDArray[Any]

MASK, CLIP = "row_mask", "clip_norm"
"""The first inputs of such a model, both float32: 1 for each row that counts and 0 for other rows, ``[rows]``; the maximum
norm, ``[1]``."""
NORMS, LOSSES = "row_norms", "row_losses"
"""Outputs of such a model: the norm of the gradient of each row before it is clipped, and the loss of each row; ``[rows]``."""

_DOMAIN = "com.microsoft"
_ACCUMULATOR = "InPlaceAccumulatorV2"
#: The most weights of a convolution whose gradients by row are kept until all norms are known. For a larger convolution, a
#: second gradient node computes the clipped sum, which takes longer and less memory.
_KEPT = 1 << 16
_SINCE_AXES_AS_INPUT = 13
_SINCE_REDUCED_AXES_AS_INPUT = 18


def with_clipped_rows(model: onnx.ModelProto, rows: int) -> onnx.ModelProto:
    """Return a training model whose gradients are sums over rows, each clipped.

    The result has the inputs `MASK` and `CLIP` before all others, and the outputs `NORMS` and `LOSSES` before those of the
    gradients. The gradient that a step adds to the buffers is ``sum_i mask_i min(1, clip / norm_i) g_i``, where ``g_i`` is the
    gradient of the loss of row ``i`` alone.

    Parameters
    ----------
    model : onnx.ModelProto
        The training model, whose loss is a mean over rows. It is not changed.
    rows : int
        The number of rows of each step, 2 or more.

    Raises
    ------
    ValueError
        When a parameter is trained whose gradients by row this module cannot compute, or the loss is not a mean over rows; the
        message names the parameter and the node.
    """
    if rows < 2:
        raise ValueError(f"rows: expected 2 or more, found {rows}")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    _Clipper(changed, rows).run()
    return changed


@dataclass(frozen=True)
class _Factors:
    """The gradients of rows as ``sum_t left_t right_tᵀ`` over positions ``t``."""

    left: str
    """``[rows, positions, n]``; for a look-up, whose vectors contain a single 1, the index of this 1: ``[rows, positions]``."""
    right: str
    """``[rows, positions, m]``."""
    looks_up: bool = False


class _Clipper:
    def __init__(self, model: onnx.ModelProto, rows: int) -> None:
        self._model, self._rows = model, rows
        self._opset = _graph.opset_of(model) or 1
        self._producers = {name: node for node in model.graph.node for name in node.output if name}
        self._taken = _graph.names_in_use(model)
        self._shapes = {
            value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        self._made: list[onnx.NodeProto] = []  # nodes of the norms, and after them nodes of the clipped sums
        self._last: list[onnx.NodeProto] = []
        self._squares: list[str] = []
        self._gone: set[str] = set()  # values that new nodes compute; the old nodes lose these outputs
        self._constants: dict[str, str] = {}

    def run(self) -> None:
        """Change the model."""
        graph = self._model.graph
        for node in graph.node:
            mode = attributes_of(node).get("training_mode", 1 if len(node.output) > 1 else 0)
            if node.op_type.startswith("BatchNorm") and mode:
                raise ValueError(
                    f"clipping by row: {node.op_type} {node.name} mixes rows; train with fixed statistics, as beside a new head"
                )
        accumulators = [node for node in graph.node if node.op_type == _ACCUMULATOR]
        if not accumulators:
            raise ValueError("clipping by row: expected a training model with gradients, found none")
        kinds = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        for node in accumulators:
            if kinds[node.input[0]] != onnx.TensorProto.FLOAT:
                found = onnx.TensorProto.DataType.Name(kinds[node.input[0]]).lower()
                raise ValueError(
                    f"clipping by row: expected float gradients, found {node.input[0]!r} of {found}"
                )
        losses, factor = self._losses()
        pending = [self._gradient(node) for node in accumulators]
        losses = self._add("Identity", [losses], output=self._free(LOSSES))
        norms = self._norms(factor)
        weights = self._weights(norms, factor)
        for write in pending:
            write(weights)
        self._place(accumulators, norms, losses)

    # ---- nodes ----

    def _add(
        self, operator: str, inputs: Sequence[str], domain: str = "", output: str = "", **attributes: Any
    ) -> str:
        """Add a node, and return its first output."""
        name = self._free(f"by_row/{operator}")
        made = output or self._free(f"{name}_output")
        settings = attributes | ({"domain": domain} if domain else {})
        self._made.append(onnx.helper.make_node(operator, list(inputs), [made], name, **settings))
        return made

    def _free(self, name: str) -> str:
        found = free_name(name, self._taken)
        self._taken.add(found)
        return found

    def _constant(self, value: Any, kind: Any = np.int64) -> str:
        array = np.asarray(value, kind)
        key = f"{array.dtype} {array.shape} {array.tolist()}"
        if key not in self._constants:
            self._constants[key] = self._free("by_row/constant")
            self._model.graph.initializer.append(onnx.numpy_helper.from_array(array, self._constants[key]))
        return self._constants[key]

    def _shaped(self, value: str, shape: Sequence[int], output: str = "") -> str:
        return self._add("Reshape", [value, self._constant(list(shape))], output=output)

    def _reduced(self, operator: str, value: str, axes: Sequence[int]) -> str:
        since = _SINCE_AXES_AS_INPUT if operator == "ReduceSum" else _SINCE_REDUCED_AXES_AS_INPUT
        if self._opset < since:
            return self._add(operator, [value], axes=list(axes), keepdims=0)
        return self._add(operator, [value, self._constant(list(axes))], keepdims=0)

    # ---- the loss ----

    def _losses(self) -> tuple[str, str]:
        """Return the loss of each row, and the factor by which its part of the mean's gradient is multiplied; each ``[rows]``."""
        loss = self._model.graph.output[0].name
        node = self._producers.get(loss)
        attributes = attributes_of(node) if node is not None else {}
        rows = self._constant([float(self._rows)], np.float32)
        if node is not None and node.op_type == "ReduceMean":
            whole = not attributes.get("axes") and (len(node.input) < 2 or not node.input[1])
            if whole:
                each = self._shaped(node.input[0], [self._rows, -1])
                return self._reduced("ReduceMean", each, [1]), rows
        mean = attributes.get("reduction", b"mean") == b"mean"
        if node is not None and node.op_type == "SoftmaxCrossEntropyLoss" and mean and len(node.input) == 2:
            kept = {key: value for key, value in attributes.items() if key != "reduction"}
            each = self._shaped(
                self._add("SoftmaxCrossEntropyLoss", node.input, reduction="none", **kept), [self._rows, -1]
            )
            total = self._reduced("ReduceSum", each, [1])
            labels = self._shaped(node.input[1], [self._rows, -1])
            ignored = self._add(
                "Cast",
                [self._constant(attributes.get("ignore_index", -(2**31)))],
                to=self._kind_of(node.input[1]),
            )
            counted = self._add("Not", [self._add("Equal", [labels, ignored])])
            count = self._reduced("ReduceSum", self._add("Cast", [counted], to=onnx.TensorProto.FLOAT), [1])
            own = self._add("Max", [count, self._constant(1, np.float32)])
            factor = self._add("Div", [self._reduced("ReduceSum", count, [0]), own])
            return self._add("Div", [total, own]), factor
        found = f"{node.op_type} {node.name or loss}" if node is not None else loss
        raise ValueError(
            "clipping by row: expected a loss that is the mean of the losses of rows (ReduceMean over all dimensions, or "
            f"SoftmaxCrossEntropyLoss with the reduction 'mean' and no weights), found {found}"
        )

    def _kind_of(self, name: str) -> int:
        return _graph.element_type(self._model, name)

    # ---- gradients ----

    def _gradient(self, accumulator: onnx.NodeProto) -> Callable[[str], None]:
        """Add the squared norms of the gradient of a parameter; return a function that writes the clipped sum."""
        parameter = accumulator.input[0].removesuffix("_grad.accumulation.buffer")
        whole = self._shapes[accumulator.input[0]]
        node, value, shape, is_transposed = self._before_transposes(accumulator.input[1], whole)
        if node is None or node.op_type not in ("Add", "Sum"):
            return self._part(parameter, node, value, shape)[0]
        # The network uses the parameter several times: the squared norm of a sum contains the products of its parts, too.
        parts = [(*self._before_transposes(name, shape), is_transposed) for name in node.input]
        writers = []
        factors: list[tuple[_Factors, bool]] = []
        for source, name, own_shape, own_turn, outer_turn in parts:
            write, found = self._part(parameter, source, name, own_shape)
            if found is None:
                self._reject(parameter, node, value)
            writers.append(write)
            factors.append((found, own_turn != outer_turn))
        for (one, one_turn), (other, other_turn) in combinations(factors, 2):
            self._squares.append(self._inner(one, other, one_turn != other_turn, 2))

        def write_all(weights: str) -> None:
            for write in writers:
                write(weights)

        return write_all

    def _before_transposes(
        self, value: str, shape: Sequence[int]
    ) -> tuple[onnx.NodeProto | None, str, Sequence[int], bool]:
        """Return the node of a gradient, its value and shape before transposes, and whether it is a transposed matrix."""
        node, is_transposed = self._producers.get(value), False
        while node is not None and node.op_type in ("Identity", "Transpose"):
            if node.op_type == "Transpose":
                transposed = attributes_of(node).get("perm") or range(len(shape))[::-1]
                shape = [int(shape[transposed.index(axis)]) for axis in range(len(shape))]
                is_transposed ^= list(transposed) == [1, 0]
            value = node.input[0]  # a transpose changes no norm, and stays after the clipped sum
            node = self._producers.get(value)
        return node, value, shape, is_transposed

    def _part(
        self, parameter: str, node: onnx.NodeProto | None, value: str, shape: Sequence[int]
    ) -> tuple[Callable[[str], None], _Factors | None]:
        """Add the squared norms of a node's result.

        Return a function that writes the clipped sum, and the factors of a product.
        """
        writers = {
            ("", "Gemm"): self._product,
            ("", "ReduceSum"): self._bias,
            (_DOMAIN, "ConvGrad"): self._convolution,
            (_DOMAIN, "GatherGrad"): self._embedding,
            (_DOMAIN, "LayerNormalizationGrad"): self._normalization,
        }
        write = writers.get((node.domain, node.op_type)) if node is not None else None
        if node is None or write is None:
            self._reject(parameter, node, value)
        self._gone.add(value)
        made = write(node, value, shape)
        return made if isinstance(made, tuple) else (made, None)

    def _reject(self, parameter: str, node: onnx.NodeProto | None, value: str) -> NoReturn:
        found = f"{node.op_type} {node.name}" if node is not None else f"the value {value}"
        raise ValueError(
            f"clipping by row: the gradient of {parameter!r} is computed by {found}; expected a matrix "
            "product, an embedding, a convolution, a layer normalization or a bias, for which gradients by row exist; freeze it"
        )

    def _inner(self, one: _Factors, other: _Factors, is_transposed: bool, times: float) -> str:
        """Return, for each row, a multiple of the inner product of two gradients, one of which may be transposed."""
        if other.looks_up and not one.looks_up:
            one, other = other, one
        left, right = (other.right, other.left) if is_transposed else (other.left, other.right)
        if one.looks_up and other.looks_up:
            places = [[self._rows, -1, 1], [self._rows, 1, -1]]
            same = self._add(
                "Equal", [self._shaped(v, p) for v, p in zip((one.left, other.left), places, strict=True)]
            )
            lefts = self._add("Cast", [same], to=onnx.TensorProto.FLOAT)
        elif one.looks_up:
            columns = self._add("Transpose", [left], perm=[0, 2, 1])
            wide = self._add("Cast", [self._shaped(one.left, [self._rows, -1, 1])], to=onnx.TensorProto.INT64)
            lefts = self._add("GatherND", [columns, wide], batch_dims=1)
        else:
            lefts = self._add("MatMul", [one.left, self._add("Transpose", [left], perm=[0, 2, 1])])
        rights = self._add("MatMul", [one.right, self._add("Transpose", [right], perm=[0, 2, 1])])
        both = self._add("Mul", [lefts, rights])
        if times != 1:
            both = self._add("Mul", [both, self._constant(times, np.float32)])
        return self._reduced("ReduceSum", both, [1, 2])

    def _instances(self, gradients: str, value: str, shape: Sequence[int]) -> Callable[[str], None]:
        """Handle a parameter by the gradients of all rows, ``[rows, elements]``."""
        self._squares.append(self._reduced("ReduceSumSquare", gradients, [1]))

        def write(weights: str) -> None:
            total = self._add("MatMul", [self._shaped(weights, [1, self._rows]), gradients])
            self._shaped(total, shape, output=value)

        return write

    def _product(
        self, node: onnx.NodeProto, value: str, shape: Sequence[int]
    ) -> tuple[Callable[[str], None], _Factors]:
        """Handle a gradient that is a product ``aᵀ e`` over rows and positions."""
        attributes = attributes_of(node)
        if (
            attributes.get("transB")
            or not attributes.get("transA")
            or (len(node.input) > 2 and node.input[2])
        ):
            raise ValueError(f"clipping by row: the product {node.name} is not the gradient of weights")
        alpha = float(attributes.get("alpha", 1))
        sides = []
        for name, width in zip(node.input[:2], shape, strict=True):
            source = self._producers.get(name)
            whole = source.input[0] if source is not None and source.op_type == "Flatten" else name
            sides.append(self._shaped(whole, [self._rows, -1, width]))
        if alpha != 1:
            sides[0] = self._add("Mul", [sides[0], self._constant(alpha, np.float32)])
        factors = _Factors(sides[0], sides[1])
        self._squares.append(self._inner(factors, factors, False, 1))

        def write(weights: str) -> None:
            scaled = self._add("Mul", [sides[1], self._shaped(weights, [self._rows, 1, 1])])
            flat = [
                self._shaped(side, [-1, width]) for side, width in zip((sides[0], scaled), shape, strict=True)
            ]
            self._add("Gemm", flat, output=value, transA=1)

        return write, factors

    def _bias(self, node: onnx.NodeProto, value: str, shape: Sequence[int]) -> Callable[[str], None]:
        """Handle a gradient that is a sum over rows and positions."""
        axes = attributes_of(node).get("axes") or self._numbers(node.input[1] if len(node.input) > 1 else "")
        if axes is None or 0 not in axes:
            raise ValueError(f"clipping by row: the sum {node.name} is not over rows")
        size = int(np.prod(shape))
        # the first dimensions; one dimension may contain both rows and positions
        if sorted(axes) == list(range(len(axes))):
            apart = self._shaped(node.input[0], [self._rows, -1, size])
            gradients = self._reduced("ReduceSum", apart, [1])
        else:
            apart = self._reduced("ReduceSum", node.input[0], [axis for axis in axes if axis])
            gradients = self._shaped(apart, [self._rows, size])
        return self._instances(gradients, value, shape)

    def _numbers(self, name: str) -> list[int] | None:
        for tensor in self._model.graph.initializer:
            if tensor.name == name:
                return [int(number) for number in onnx.numpy_helper.to_array(tensor).ravel()]
        node = self._producers.get(name)
        if node is not None and node.op_type == "Constant":
            return [int(number) for number in onnx.numpy_helper.to_array(node.attribute[0].t).ravel()]
        return None

    def _convolution(self, node: onnx.NodeProto, value: str, shape: Sequence[int]) -> Callable[[str], None]:
        """Handle the gradient of the weights or of the bias of a convolution."""
        e, x, w = node.input
        if value in node.output[2:]:
            spatial = self._shaped(e, [self._rows, shape[0], -1])
            return self._instances(self._reduced("ReduceSum", spatial, [2]), value, shape)
        attributes = attributes_of(node)
        groups, keep = int(attributes.get("group", 1)), [0] * (len(shape) - 2)
        grouped = {key: v for key, v in attributes.items() if key != "group"} | {"group": self._rows * groups}
        kernels = self._add(
            "Expand", [self._shaped(w, [1, *shape]), self._constant([self._rows, *(1 for _ in shape)])]
        )
        inputs = [
            self._shaped(e, [1, self._rows * shape[0], *keep]),
            self._shaped(x, [1, self._rows * shape[1] * groups, *keep]),
            self._shaped(kernels, [self._rows * shape[0], *shape[1:]]),
        ]
        name = self._free("by_row/ConvGrad")
        made = self._free(f"{name}_output")
        self._made.append(
            onnx.helper.make_node("ConvGrad", inputs, ["", made], name, domain=_DOMAIN, **grouped)
        )
        gradients = self._shaped(made, [self._rows, -1])
        if int(np.prod(shape)) <= _KEPT:
            return self._instances(gradients, value, shape)
        self._squares.append(self._reduced("ReduceSumSquare", gradients, [1]))

        def write(weights: str) -> None:
            scaled = self._add("Mul", [e, self._shaped(weights, [self._rows, 1, *(1 for _ in keep)])])
            name = self._free("by_row/ConvGrad")
            made = onnx.helper.make_node(
                "ConvGrad", [scaled, x, w], ["", value], name, domain=_DOMAIN, **attributes
            )
            self._made.append(made)

        return write

    def _embedding(
        self, node: onnx.NodeProto, value: str, shape: Sequence[int]
    ) -> tuple[Callable[[str], None], _Factors]:
        """Handle the gradient of a table in which each position of a row looks up a vector."""
        if attributes_of(node).get("axis") or len(shape) != 2:
            raise ValueError(f"clipping by row: {node.name} does not look up rows of a matrix")
        sizes, ids, e = node.input
        source = self._producers.get(e)
        if source is not None and source.op_type == "ReduceSum":  # all rows look up the same positions
            axes = attributes_of(source).get("axes") or self._numbers(source.input[1])
            if axes != [0]:
                raise ValueError(f"clipping by row: {node.name} reads a sum over dimensions other than rows")
            e = source.input[0]
            places = self._add("Expand", [self._shaped(ids, [1, -1]), self._constant([self._rows, 1])])
        else:
            places = self._shaped(ids, [self._rows, -1])
        each = self._shaped(e, [self._rows, -1, shape[1]])
        factors = _Factors(places, each, looks_up=True)
        self._squares.append(self._inner(factors, factors, False, 1))

        def write(weights: str) -> None:
            scaled = self._add("Mul", [each, self._shaped(weights, [self._rows, 1, 1])])
            self._add("GatherGrad", [sizes, places, scaled], domain=_DOMAIN, output=value, axis=0)

        return write, factors

    def _normalization(self, node: onnx.NodeProto, value: str, shape: Sequence[int]) -> Callable[[str], None]:
        """Handle the gradient of the scale or the bias of a layer normalization over the last dimension."""
        if attributes_of(node).get("axis", -1) != -1 or len(shape) != 1:
            raise ValueError(f"clipping by row: {node.name} normalizes more than the last dimension")
        e, x, _, mean, deviation = node.input
        if value == node.output[1]:
            normal = self._add("Mul", [self._add("Sub", [x, mean]), deviation])
            e = self._add("Mul", [e, normal])
        apart = self._shaped(e, [self._rows, -1, shape[0]])
        return self._instances(self._reduced("ReduceSum", apart, [1]), value, shape)

    # ---- the norms ----

    def _norms(self, factor: str) -> str:
        """Return the norm of the gradient of each row."""
        squares = self._squares[0] if len(self._squares) == 1 else self._add("Sum", self._squares)
        # Rounding may make a sum of products of positions negative where it should be 0.
        positive = self._add("Max", [squares, self._constant(0, np.float32)])
        return self._add("Mul", [self._add("Sqrt", [positive]), factor], output=self._free(NORMS))

    def _weights(self, norms: str, factor: str) -> str:
        """Return the factor for the part of each row in the gradient of the mean."""
        smallest = self._constant(np.finfo(np.float32).tiny, np.float32)
        ratio = self._add("Div", [CLIP, self._add("Max", [norms, smallest])])
        clipped = self._add("Min", [ratio, self._constant(1, np.float32)])
        return self._add("Mul", [self._add("Mul", [clipped, MASK]), factor])

    def _place(self, accumulators: Sequence[onnx.NodeProto], norms: str, losses: str) -> None:
        """Put the nodes, and the new inputs and outputs, in the graph."""
        graph = self._model.graph
        behind = self._behind()
        for node in graph.node:
            node.output[:] = ["" if name in self._gone else name for name in node.output]
        kept = [
            node
            for node in graph.node
            if any(node.output) and not any(node is each for each in (*accumulators, *behind))
        ]
        replace_nodes(
            graph, _without_idle(graph, [*kept, *self._made, *behind, *accumulators], [norms, losses])
        )
        info = onnx.helper.make_tensor_value_info
        given = list(graph.input)
        del graph.input[:]
        graph.input.extend(
            [
                info(MASK, onnx.TensorProto.FLOAT, [self._rows]),
                info(CLIP, onnx.TensorProto.FLOAT, [1]),
                *given,
            ]
        )
        outputs = list(graph.output)
        first = next(i for i, output in enumerate(outputs) if output.name.endswith("_grad.accumulation.out"))
        del graph.output[:]
        made = [info(name, onnx.TensorProto.FLOAT, [self._rows]) for name in (norms, losses)]
        graph.output.extend([*outputs[:first], *made, *outputs[first:]])

    def _behind(self) -> list[onnx.NodeProto]:
        """Return the nodes between clipped sums and accumulators."""
        found, known = [], set(self._gone)
        for node in self._model.graph.node:
            if node.op_type != _ACCUMULATOR and any(name in known for name in node.input):
                found.append(node)
                known.update(node.output)
        return found


def _without_idle(
    graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto], outputs: Iterable[str]
) -> list[onnx.NodeProto]:
    """Return the nodes of which a result is read."""
    read = {value.name for value in graph.output} | set(outputs)
    kept = []
    for node in reversed(nodes):
        inner = {name for each in _graph.graphs_in(node) for n in _graph.walk(each) for name in n.input}
        if not read.isdisjoint(name for name in node.output if name):
            kept.append(node)
            read.update(node.input, inner)
    return kept[::-1]
