"""Removing the key-value cache of a language model, for training."""

from __future__ import annotations

import onnx

from ortrain._files.weights import write_copy
from ortrain._support.values import StrPath
from ortrain.artifacts.graph.cache import remove_cache
from ortrain.artifacts.loading import load


def without_cache(
    model: onnx.ModelProto | StrPath, path: StrPath | None = None, *, external_data: bool | None = None
) -> onnx.ModelProto:
    """Remove the key-value cache of a language model.

    Exports for generation take the keys and values of earlier tokens as the inputs ``past_...`` and return them as the outputs
    ``present...``. Training reads whole texts. The result takes the tokens alone; its scores are those of the model with an
    empty cache.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike
        The model, or the path of its file. It is not changed.
    path : str or os.PathLike, optional
        Where the result is written.
    external_data : bool, optional
        Whether weights are written to a file next to the model, with its name and the ending ``.data``. By default they are if
        one file could not hold the model, or if those of the given model are external data.

    Returns
    -------
    onnx.ModelProto
        The model without its cache. If the given model is a file, large weights that are external data stay in their files.

    Raises
    ------
    ValueError
        When the model has no cache, or one whose batch size no other input has.
    FileNotFoundError
        When there is no model at the path.
    OSError
        When the file cannot be written.
    """
    loaded, source = load(model, apart=True)
    changed = onnx.ModelProto()
    changed.CopyFrom(loaded)
    if not remove_cache(changed):
        raise ValueError(
            f"{source or 'the model'} has no key-value cache: expected floating-point inputs whose names begin with past, found "
            f"the inputs {', '.join(value.name for value in changed.graph.input)}"
        )
    if path is not None:
        write_copy(changed, path, external_data)
    return changed
