"""Trained weights in the model that they came from."""

from __future__ import annotations

import math

import onnx

from ortrain import _graph
from ortrain._graph.initializers import is_read
from ortrain._support.values import StrPath
from ortrain.artifacts.graph.adapters import adapters_in
from ortrain.artifacts.graph.restore import with_weights_restored
from ortrain.artifacts.loading import load


def with_weights_of(model: onnx.ModelProto | StrPath, trained: onnx.ModelProto | StrPath) -> onnx.ModelProto:
    """Return a model with the weights of an export that was trained from it.

    Use it when training changed more than the weights, for example removed the key-value cache of a language model.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike
        The model before training, or the path of its file. It is not changed.
    trained : onnx.ModelProto or str or os.PathLike
        The exported model, or the path of its file. If it has adapters, the result has them too.

    Returns
    -------
    onnx.ModelProto
        The model, with each initializer of `trained` in place of its initializer of that name. Large weights that are external
        data of the given files stay in their files.

    Raises
    ------
    ValueError
        When one of the models has weights that the other lacks, or has with another shape or type.
    """
    loaded, path = load(model, apart=True)
    given = onnx.ModelProto()
    given.CopyFrom(loaded)
    # Artifacts are made from a model whose weights were restored in the same way.
    changed, _ = with_weights_restored(given, path, None, None, None)
    source, _ = load(trained, apart=True)
    if (adapters := adapters_in(source)) is not None:
        adapters.add_to(changed)
    own = {tensor.name: tensor for tensor in changed.graph.initializer}
    others = {tensor.name: tensor for tensor in source.graph.initializer}
    for name in own.keys() & others.keys():
        _check_form(own[name], others[name])
        own[name].CopyFrom(others[name])
    where = path or "the model"
    _check_names(source, own, f"the trained model has weights that {where} lacks")
    _check_names(changed, others, f"the trained model lacks weights that {where} has")
    return changed


def _check_names(model: onnx.ModelProto, others: dict[str, onnx.TensorProto], problem: str) -> None:
    """Reject weights without a counterpart in the other model.

    Single numbers may be constants of one model, and exports have no weights that no node reads.
    """
    missing = [
        tensor.name
        for tensor in model.graph.initializer
        if tensor.name not in others
        and tensor.data_type in _graph.FLOATING
        and math.prod(tensor.dims) > 1
        and is_read(model, tensor.name)
    ]
    if missing:
        shown = f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}"
        raise ValueError(f"{problem}, {shown}: expected the model that was trained")


def _check_form(own: onnx.TensorProto, trained: onnx.TensorProto) -> None:
    if list(own.dims) != list(trained.dims) or own.data_type != trained.data_type:
        expected, found = (
            f"{onnx.TensorProto.DataType.Name(tensor.data_type).lower()} {list(tensor.dims)}"
            for tensor in (trained, own)
        )
        raise ValueError(f"the weight {own.name}: expected {expected}, as it was trained, found {found}")
