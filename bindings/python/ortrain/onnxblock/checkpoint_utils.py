"""Checkpoints from parameters, and parameters from checkpoints."""

from __future__ import annotations

import os
from collections.abc import Sequence

import onnx

from ortrain._files.weights import array_of
from ortrain._support.counts import counted
from ortrain.onnxblock import _core_tools


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Write parameters to a checkpoint file.

    Parameters
    ----------
    parameters : tuple of two lists of onnx.TensorProto
        Trainable and frozen parameters, from :meth:`TrainingBlock.parameters`.
    path_to_checkpoint : str or os.PathLike
        The file; an existing one is replaced atomically.
    nominal_checkpoint : bool, default: False
        Whether to write names, types and shapes without the values, for programs that get the values
        later.

    Raises
    ------
    TypeError
        When ``parameters`` is not such a tuple.
    RuntimeError
        When the file cannot be written.
    """
    if parameters is None or len(parameters) != 2:
        raise TypeError(
            "parameters must be a tuple of trainable and frozen parameters, "
            "as returned by TrainingBlock.parameters()"
        )
    trainable, frozen = parameters
    tensors = [*trainable, *frozen]
    _core_tools.save_checkpoint(
        [tensor.name for tensor in tensors],
        map(array_of, tensors),
        [True] * len(trainable) + [False] * len(frozen),
        os.fspath(path_to_checkpoint),
        nominal_checkpoint,
    )


def load_checkpoint_to_model(path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto) -> None:
    """Put the parameters of a checkpoint into a model, in place.

    Initializers get the values of the parameters with the same names. Inputs with the name of a parameter,
    as in eval models, become initializers.

    Parameters
    ----------
    path_to_checkpoint : str or os.PathLike
        The checkpoint.
    model : onnx.ModelProto
        The model.

    Raises
    ------
    RuntimeError
        When the file cannot be read.
    ValueError
        When a parameter has another type or shape in the model, or no parameter is in the model.
    """
    values = _core_tools.load_checkpoint(os.fspath(path_to_checkpoint))
    graph = model.graph
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input}
    found = [name for name in values if name in initializers or name in inputs]
    if values and not found:
        raise ValueError(
            f"none of the {counted(len(values), 'parameter')} of checkpoint {os.fspath(path_to_checkpoint)!r} "
            f"is in the model; the checkpoint has {', '.join(list(values)[:5])}, "
            f"the model {', '.join(list(initializers)[:5]) or 'no initializers'}"
        )
    tensors = {name: onnx.numpy_helper.from_array(values[name], name) for name in found}
    for name, tensor in tensors.items():
        if name in initializers:
            dtype, shape = initializers[name].data_type, list(initializers[name].dims)
        else:
            stated = inputs[name].type.tensor_type
            dtype = stated.elem_type
            shape = [dim.dim_value for dim in stated.shape.dim]
        if dtype != tensor.data_type or shape != list(tensor.dims):
            raise ValueError(
                f"parameter {name!r} is {_describe(tensor.data_type, list(tensor.dims))} in the checkpoint, "
                f"but {_describe(dtype, shape)} in the model"
            )
    for name, tensor in tensors.items():
        if name in initializers:
            initializers[name].CopyFrom(tensor)
        else:
            graph.initializer.append(tensor)
    remaining = [value for value in graph.input if value.name not in tensors or value.name in initializers]
    del graph.input[:]
    graph.input.extend(remaining)


def _describe(dtype: int, shape: list[int]) -> str:
    return f"{onnx.TensorProto.DataType.Name(dtype).lower()} {shape}"
