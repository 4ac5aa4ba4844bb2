"""Functions on models under the names by which programs for onnxruntime import them from its inner module."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import onnx

from ortrain import _graph

_numbers = itertools.count(1)


def get_output_from_output_name(onnx_model: onnx.ModelProto, output_name: str) -> onnx.ValueInfoProto:
    """Return the output of a model with a name.

    Raises
    ------
    LookupError
        When there is none.
    """
    return _named(onnx_model.graph.output, output_name, "output")


def get_input_from_input_name(onnx_model: onnx.ModelProto, input_name: str) -> onnx.ValueInfoProto:
    """Return the input of a model with a name.

    Raises
    ------
    LookupError
        When there is none.
    """
    return _named(onnx_model.graph.input, input_name, "input")


def _named(values: Iterable[onnx.ValueInfoProto], name: str, what: str) -> onnx.ValueInfoProto:
    by_name = {value.name: value for value in values}
    if name not in by_name:
        raise LookupError(f"the model has no {what} {name!r}; its {what}s: {', '.join(by_name) or 'none'}")
    return by_name[name]


def generate_graph_name(token: str) -> str:
    """Return a name that this function never returned before in this process.

    Blocks of this package use names that are new to the model instead, so that building a model again gives
    the same names.
    """
    return f"onnx::{token}::{next(_numbers)}"


def register_graph_outputs(model: onnx.ModelProto, output_names: list[str] | str) -> None:
    """Make values the outputs of the model, in the given order.

    Raises
    ------
    LookupError
        When the model does not have one of the values; the message names it.
    """
    _graph.register_outputs(model, [output_names] if isinstance(output_names, str) else output_names)


def node_arg_exists(model: onnx.ModelProto, node_arg_name: str) -> bool:
    """Return whether a node of the main graph reads or writes a value with this name."""
    return any(node_arg_name in node.input or node_arg_name in node.output for node in model.graph.node)
