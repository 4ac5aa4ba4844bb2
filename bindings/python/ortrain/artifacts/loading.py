"""Models from a caller's argument: a file, a model of onnx or a network of a framework."""

from __future__ import annotations

import os
from typing import Any

import onnx
import onnx.inliner

from ortrain._files.models import load_model
from ortrain._files.weights import load_with_weights_apart
from ortrain.artifacts import networks
from ortrain.artifacts.choice.export_record import with_modules
from ortrain.artifacts.graph.constant_inputs import without_constant_inputs


def load(model: object, args: Any = None, apart: bool = False) -> tuple[onnx.ModelProto, str | None]:
    """Return the model with its functions inlined, and the path it came from.

    Its weights are loaded, except for large ones that are external data of a file if they may stay `apart`.
    """
    path: str | None = None
    if networks.is_network(model):
        return networks.export_network(model, args), None
    if args is not None:
        raise TypeError(
            f"args: expected a network with them, of PyTorch, Keras or JAX, not {type(model).__name__}"
        )
    if isinstance(model, onnx.ModelProto):
        loaded = model
        outside = [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        if outside:
            raise ValueError(
                f"the weights {', '.join(outside[:5])}{', ...' if len(outside) > 5 else ''} are outside "
                "the given model; pass the path of the model, or load it with onnx.load"
            )
    elif isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no model at {path!r}")
        if os.path.exists(os.path.join(path, "training_model.onnx")):
            raise ValueError(
                f"expected a model, found {path!r}, a folder of training artifacts; `ortrain export {path} MODEL` writes its "
                "model"
            )
        loaded = load_with_weights_apart(path) if apart else load_model(path)
    else:
        raise TypeError(
            "model must be an onnx.ModelProto, a path, a torch.nn.Module, a keras.Model or a network of JAX, "
            f"not {type(model).__name__}"
        )
    if not loaded.graph.output:
        raise ValueError(
            f"{path or 'the given model'!r} is not an ONNX model with a graph: it has no outputs"
        )
    if loaded.functions:
        loaded = onnx.inliner.inline_local_functions(loaded)
    loaded = with_modules(loaded, may_change=path is not None)
    return without_constant_inputs(_with_free_dimensions(loaded)), path


def _with_free_dimensions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with free dimensions where Paddle's exporter writes the size -1, or one name, "?", for all of them."""

    def free(graph: onnx.GraphProto) -> list[Any]:
        values = (*graph.input, *graph.output, *graph.value_info)
        shapes = [value.type.tensor_type.shape for value in values if value.type.HasField("tensor_type")]
        return [dim for shape in shapes for dim in shape.dim if dim.dim_value < 0 or dim.dim_param == "?"]

    if not free(model.graph):
        return model
    changed: onnx.ModelProto = onnx.ModelProto()
    changed.CopyFrom(model)
    for dim in free(changed.graph):
        dim.Clear()
    return changed
