"""Steps for a batch with a known number of rows, and shorter steps for a single row.

With one row x and one gradient d of the outputs, the gradient of a matrix is the product of the column d and the row x, and its
squares are the product of d² and x². A Gemm can add either product to the kept share of a moving average, so that no node
computes only the gradient or only its squares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx
from onnx import helper, numpy_helper

from ortrain import _graph
from ortrain._support.counts import counted
from ortrain.step._nodes import Nodes


def fix_rows(model: onnx.ModelProto, batch: Iterable[str], rows: int) -> None:
    """Give the free first axis of each input of the batch, and the axes of the same name, a number of rows.

    Raises
    ------
    ValueError
        When an input has another number of rows, or no input has a dimension for rows.
    """
    symbols: set[str] = set()
    found = False
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if value.name not in set(batch) or not dims:
            continue
        if dims[0].HasField("dim_value") and dims[0].dim_value != rows:
            raise ValueError(
                f"rows: the input {value.name!r} has {counted(dims[0].dim_value, 'row')}, expected {rows}"
            )
        symbols |= {dims[0].dim_param} - {""}
        dims[0].dim_value = rows
        found = True
    if not found:
        raise ValueError(f"rows: expected inputs with {counted(rows, 'row')}, found none with an axis")
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = rows


def use_products(model: onnx.ModelProto, batch: Iterable[str], nodes: Nodes) -> None:
    """Replace nodes that read the product of a column and a row by products of a column and a row.

    Parameters
    ----------
    model : onnx.ModelProto
        The step model.
    batch : iterable of str
        The inputs with the batch.
    nodes : Nodes
        Adds nodes to the model's graph.
    """
    first = [value.type.tensor_type.shape.dim[:1] for value in model.graph.input if value.name in set(batch)]
    if any(dims[0].dim_value == 1 for dims in first if dims):
        _Products(model, nodes).write()


class _Products:
    def __init__(self, model: onnx.ModelProto, nodes: Nodes) -> None:
        self._graph, self._nodes = model.graph, nodes
        inferred = onnx.shape_inference.infer_shapes(model).graph
        self._rows = {
            value.name
            for value in (*inferred.input, *inferred.value_info)
            if len(dims := value.type.tensor_type.shape.dim) == 2 and dims[0].dim_value == 1
        }
        self._inputs = {value.name for value in self._graph.input}
        self._numbers = {
            tensor.name: float(numpy_helper.to_array(tensor))
            for tensor in self._graph.initializer
            if not tensor.dims and tensor.data_type == onnx.TensorProto.FLOAT  # attributes are floats, too
        }
        self._first_axis = {
            tensor.name
            for tensor in self._graph.initializer
            if tensor.data_type == onnx.TensorProto.INT64 and numpy_helper.to_array(tensor).tolist() == [0]
        }
        self._made: dict[str, onnx.NodeProto] = {}

    def write(self) -> None:
        """Rewrite the nodes of the graph."""
        given = list(self._graph.node)
        del self._graph.node[:]
        for node in given:
            rewritings = (self._squares, self._multiple, self._sum, self._sum_of_rows)
            if not any(rewrite(node) for rewrite in rewritings):
                self._graph.node.append(node)
            self._made |= {name: self._graph.node[-1] for name in node.output}
        _drop_unread(self._graph, {name for node in given for name in node.input})

    def _product(self, name: str) -> onnx.NodeProto | None:
        """Return the node that computes a value if the value is the product of a column and a row, and nothing else."""
        node = self._made.get(name)
        if node is None or node.op_type != "Gemm" or len(node.input) != 2:
            return None
        transposed = {entry.name: entry.i for entry in node.attribute}
        is_outer = transposed.get("transA") and not transposed.get("transB") and set(node.input) <= self._rows
        return node if is_outer else None

    def _gemm(self, inputs: list[str], node: onnx.NodeProto, alpha: float, beta: float = 1.0) -> bool:
        """Add the product that computes the result of `node`."""
        made = helper.make_node("Gemm", inputs, node.output, name=node.name, transA=1, alpha=alpha, beta=beta)
        self._graph.node.append(made)
        return True

    def _squares(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Mul" or node.input[0] != node.input[1]:
            return False
        if (product := self._product(node.input[0])) is None:
            return False
        squares = [self._nodes.add("Mul", [name, name]) for name in product.input]
        self._rows |= set(squares)
        return self._gemm(squares, node, _alpha(product) ** 2)

    def _multiple(self, node: onnx.NodeProto) -> bool:
        if node.op_type != "Mul":
            return False
        for value, number in (node.input, node.input[::-1]):
            if number in self._numbers and (product := self._product(value)) is not None:
                return self._gemm(list(product.input), node, _alpha(product) * self._numbers[number])
        return False

    def _sum(self, node: onnx.NodeProto) -> bool:
        """Write the kept share of an average, which is an input, plus a product."""
        if node.op_type != "Add":
            return False
        for kept, value in (node.input, node.input[::-1]):
            product, (before, share) = self._product(value), self._kept(kept)
            if product is not None and before in self._inputs:
                return self._gemm([*product.input, before], node, _alpha(product), share)
        return False

    def _sum_of_rows(self, node: onnx.NodeProto) -> bool:
        """Write the sum over the only row, the gradient of a bias, as that row."""
        if node.op_type != "ReduceSum" or len(node.input) != 2 or node.input[0] not in self._rows:
            return False
        is_kept = any(entry.name == "keepdims" and entry.i for entry in node.attribute)
        if is_kept or not node.attribute or node.input[1] not in self._first_axis:
            return False
        self._graph.node.append(helper.make_node("Squeeze", node.input, node.output, name=node.name))
        return True

    def _kept(self, name: str) -> tuple[str, float]:
        """Return a value and the number by which it is multiplied."""
        node = self._made.get(name)
        if node is not None and node.op_type == "Mul":
            for value, number in (node.input, node.input[::-1]):
                if number in self._numbers:
                    return value, self._numbers[number]
        return name, 1.0


def _alpha(node: onnx.NodeProto) -> float:
    return next((entry.f for entry in node.attribute if entry.name == "alpha"), 1.0)


def _drop_unread(graph: onnx.GraphProto, read_before: set[str]) -> None:
    """Remove nodes whose results were read before and are no longer read."""
    read = Counter(name for node in _graph.walk(graph) for name in node.input)
    read.update(value.name for value in graph.output)
    for node in reversed(list(graph.node)):
        if not any(read[name] for name in node.output) and any(name in read_before for name in node.output):
            graph.node.remove(node)
            read.subtract(node.input)
