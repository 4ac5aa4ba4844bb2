"""Runs single nodes of a model on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain._graph.queries import graphs_in
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions

Array = npt.NDArray[Any]

_SMALL = 64  # elements; smaller inputs become constants, from which the session derives shapes


class NodeRunner:
    """Runs nodes of a model, each in a separate session.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, whose operator sets the nodes have.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._opsets = list(model.opset_import)
        self._ir_version = model.ir_version
        self._options = SessionOptions()
        self._options.intra_op_num_threads = 1

    def run(self, node: onnx.NodeProto, values: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a node by name.

        Parameters
        ----------
        node : onnx.NodeProto
            The node.
        values : mapping of str to array
            The values that the node and its subgraphs read. Other values are ignored.

        Raises
        ------
        OrtrainError
            When the node is invalid for these values.
        NotImplementedError
            When an output is not an array.
        """
        names = inputs_of(node)
        fed = {name: np.ascontiguousarray(values[name]).reshape(values[name].shape) for name in names}
        constants = {name for name in names if fed[name].size <= _SMALL}
        outputs = [name for name in node.output if name]
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(fed[name].dtype), fed[name].shape
                )
                for name in names
                if name not in constants
            ],
            [onnx.ValueInfoProto(name=name) for name in outputs],
            [onnx.numpy_helper.from_array(fed[name], name) for name in names if name in constants],
        )
        model = onnx.helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        session = InferenceSession(model.SerializeToString(), self._options)
        found = session.run(outputs, {name: fed[name] for name in names if name not in constants})
        if not all(isinstance(value, np.ndarray) for value in found):
            raise NotImplementedError("its result is not a tensor")
        return dict(zip(outputs, found, strict=True))


def inputs_of(node: onnx.NodeProto) -> list[str]:
    """Return the names of the values that a node reads, including values that its subgraphs take from outside."""
    names = [name for name in node.input if name]
    for graph in graphs_in(node):
        names += _captured(graph)
    return list(dict.fromkeys(names))


def _captured(graph: onnx.GraphProto) -> Sequence[str]:
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    read: list[str] = []
    for node in graph.node:
        read += [name for name in inputs_of(node) if name not in own]
        own.update(node.output)
    return [*read, *(value.name for value in graph.output if value.name not in own)]
