"""Weights that an exporter did not put among the initializers of the main graph."""

from __future__ import annotations

import onnx

from ortrain import _graph


def with_weights_as_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its weights among the initializers of its main graph.

    Most exporters put them there. PaddlePaddle's stores them in Constant nodes, and some models have them inside
    the branches of If.
    """

    def has_weights(model: onnx.ModelProto) -> bool:
        return any(tensor.data_type in _graph.FLOATING for tensor in model.graph.initializer)

    if has_weights(model):
        return model
    changed: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    _graph.constants_to_initializers(changed, _graph.floating_constants(changed.graph))
    if has_weights(changed):
        return changed
    inner = list(_graph.subgraphs(changed.graph))
    _graph.constants_to_initializers(
        changed, {name for graph in inner for name in _graph.floating_constants(graph)}
    )
    names = [t.name for graph in inner for t in graph.initializer if t.data_type in _graph.FLOATING]
    _graph.lift_initializers(changed, names)
    return changed
