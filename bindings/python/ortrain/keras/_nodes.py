"""Nodes that ortrain puts into a graph of TensorFlow for tf2onnx to write unchanged.

TensorFlow has no operator for an LSTM layer or for batch normalization of any rank, and draws random numbers with a
generator that ONNX lacks. A ``PyFunc`` operator with a token takes the place of such a node while a model is traced.
It is never executed: the handler here turns it into the node of ONNX.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import tensorflow as tf


@dataclass
class _Node:
    operator: str
    attributes: dict[str, Any]
    inputs: list[int | None]
    """For each input of the node, the position of its value; None for an input that is left out."""


@dataclass
class Nodes:
    """The nodes that one export adds."""

    _nodes: dict[str, _Node] = field(default_factory=dict)

    def add(
        self, operator: str, inputs: Sequence[Any], shapes: Sequence[Sequence[int | None]], **attributes: Any
    ) -> list[Any]:
        """Add a node of ONNX to the graph that is being traced.

        Parameters
        ----------
        operator : str
            The type of the node.
        inputs : sequence of tf.Tensor or None
            The inputs; None for one that is left out.
        shapes : sequence of sequence of int or None
            The shape of each output, with None for unknown dimensions. All outputs have the type of the first input.
        **attributes
            The attributes of the node.

        Returns
        -------
        list of tf.Tensor
            The outputs.
        """
        token = f"ortrain:{len(self._nodes)}"
        given = [value for value in inputs if value is not None]
        positions = itertools.count()
        slots = [None if value is None else next(positions) for value in inputs]
        self._nodes[token] = _Node(operator, attributes, slots)
        made = tf.raw_ops.PyFunc(input=given, token=token, Tout=[given[0].dtype] * len(shapes))
        return [tf.ensure_shape(value, shape) for value, shape in zip(made, shapes, strict=True)]

    def handlers(self) -> dict[str, tuple[Callable[..., None], list[Any]]]:
        """Return the argument ``custom_op_handlers`` of tf2onnx."""
        return {"PyFunc": (self._write, []), "Erfc": (_write_erfc, []), "ReverseV2": (_write_reverse, [])}

    def _write(self, graph: Any, node: Any, name: str, _: Any) -> None:
        made = self._nodes.get(node.get_attr_value("token").decode())
        if made is None:
            raise NotImplementedError(f"{name} calls Python code, which cannot be exported")
        inputs = ["" if slot is None else node.input[slot] for slot in made.inputs]
        outputs = list(node.output)
        shapes = [graph.get_shape(output) for output in outputs]
        types = [graph.get_dtype(output) for output in outputs]
        graph.remove_node(node.name)
        graph.make_node(
            made.operator,
            inputs,
            name=name,
            outputs=outputs,
            shapes=shapes,
            dtypes=types,
            attr=made.attributes,
        )


def _write_erfc(graph: Any, node: Any, name: str, _: Any) -> None:
    """Write Erfc, which ONNX does not have, as 1 - Erf."""
    (output,), shape, kind = node.output, graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    source = node.input[0]
    graph.remove_node(node.name)
    one = graph.make_const(f"{name}/one", np.array(1, onnx.helper.tensor_dtype_to_np_dtype(kind)))
    erf = graph.make_node("Erf", [source], name=f"{name}/Erf", shapes=[shape], dtypes=[kind])
    graph.make_node(
        "Sub", [one.output[0], erf.output[0]], name=name, outputs=[output], shapes=[shape], dtypes=[kind]
    )


def _write_reverse(graph: Any, node: Any, name: str, _: Any) -> None:
    """Write ReverseV2 as a Slice with steps of -1: tf2onnx writes two Transposes and a ReverseSequence."""
    axes = [int(axis) for axis in np.atleast_1d(node.inputs[1].get_tensor_value(as_list=False))]
    (output,), shape, kind = node.output, graph.get_shape(node.output[0]), graph.get_dtype(node.output[0])
    source = node.input[0]
    graph.remove_node(node.name)
    bounds = {"starts": -1, "ends": -(2**63) + 1, "axes": None, "steps": -1}
    values = [
        graph.make_const(
            f"{name}/{key}", np.array(axes if value is None else [value] * len(axes), np.int64)
        ).output[0]
        for key, value in bounds.items()
    ]
    graph.make_node("Slice", [source, *values], name=name, outputs=[output], shapes=[shape], dtypes=[kind])
