"""From a Keras model to an ONNX model for training."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import keras
import numpy as np
import onnx

from ortrain._frameworks import weights_as_inputs
from ortrain.keras._messages import reason_of
from ortrain.keras._names import variables_of

_log = logging.getLogger(__name__)

_OPSET = 18  # the newest opset that tf2onnx writes


def export(
    model: Any,
    path: str | os.PathLike[str],
    args: Any = None,
    dynamic: Literal["batch"] | None = "batch",
    training: bool = True,
) -> weights_as_inputs.ExportReport:
    """Write a Keras model as an ONNX model that trains like it.

    Every variable is an initializer under its path, such as ``sequential/dense/kernel``, with its shape and value. None
    is merged with another or folded into one. The file records which of them train. Dropout is a Dropout node, and
    BatchNormalization a node whose running statistics follow the batches. LSTM and GRU layers are nodes of that name;
    with activations other than the defaults, or with a mask, they are a Loop.

    Parameters
    ----------
    model : keras.Model
        The model. The variables of a model that was never called are created.
    path : str or os.PathLike
        The file to write.
    args : array, tuple or mapping, optional
        Example arguments of the model: one argument, or positional arguments in a tuple. Only types and shapes matter. A dict
        is one argument, as in Keras. Models that do not know their inputs need ``args``: subclasses of ``keras.Model``, and
        sequential models without ``keras.Input``.
    dynamic : {"batch", None}, default: "batch"
        With "batch", the first dimension of every input is free. With None it is the dimension of ``args``, or 1.
    training : bool, default: True
        Whether Dropout and BatchNormalization are written as in training. :func:`ortrain.artifacts.generate_artifacts`
        switches them to inference for the eval model. With False they are written as in inference: nothing is dropped, and the
        running statistics do not change.

    Returns
    -------
    ExportReport
        The names of inputs, outputs and weights.

    Raises
    ------
    RuntimeError
        When the backend of Keras is not TensorFlow.
    TypeError
        When ``model`` is not a Keras model.
    ValueError
        When an argument is wrong, the inputs of the model are not known, or tf2onnx cannot write one of its operations;
        the message names the operation and the layer.
    OSError
        When the file cannot be written.
    """
    return weights_as_inputs.save(*exported(model, args, dynamic, training), path)


def exported(
    model: Any,
    args: Any = None,
    dynamic: Literal["batch"] | None = "batch",
    training: bool = True,
) -> tuple[onnx.ModelProto, weights_as_inputs.ExportReport]:
    """Return the model that :func:`export` would write, and a report without a path."""
    if not isinstance(model, keras.Model):
        raise TypeError(f"expected a keras.Model, found {type(model).__name__}")
    if dynamic not in ("batch", None):
        raise ValueError(f"dynamic: expected 'batch' or None, found {dynamic!r}")
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"ortrain.keras exports with TensorFlow, but the backend of Keras is {keras.backend.backend()}. Save the "
            "model (model.save('model.keras')), and load and export it in a process with KERAS_BACKEND=tensorflow"
        )
    call = _call_of(model, args, dynamic == "batch")
    variables = variables_of(model)
    from ortrain.keras import _conversion  # TensorFlow takes seconds to import

    converted, updated = _conversion.convert(model, call.signature, call.arguments, training, _OPSET)
    _name_dimensions(converted, call.names)
    identities = {id(variable) for variable in updated}
    weights = weights_as_inputs.Weights(
        values={name: np.asarray(keras.ops.convert_to_numpy(v)) for name, v in variables.items()},
        trained=frozenset(name for name, v in variables.items() if v.trainable),
        updated=frozenset(name for name, v in variables.items() if id(v) in identities),
    )
    inputs = {f"weight_{position}": name for position, name in enumerate(variables)}
    inputs |= {f"input_{position}": name for position, name in enumerate(call.names)}
    outputs = _output_names(model, len(converted.graph.output))
    exporter = f"tf2onnx {version('tf2onnx')} of Keras {keras.__version__}"
    report = weights_as_inputs.finish(converted, inputs, outputs, weights, "keras", exporter)
    converted.graph.name, converted.graph.doc_string = model.name, ""
    _warn_of_regularization(model, variables)
    if report.unused:
        _log.warning("the outputs of the model do not depend on %s", ", ".join(report.unused))
    return converted, report


def _warn_of_regularization(model: Any, variables: Mapping[str, Any]) -> None:
    """Warn about regularizers and constraints of the Keras model, which the exported model does not have."""
    regularized = [name for name, v in variables.items() if getattr(v, "regularizer", None) is not None]
    regularized += [layer.path for layer in model._flatten_layers() if layer.activity_regularizer is not None]
    constrained = [name for name, v in variables.items() if getattr(v, "constraint", None) is not None]
    if regularized:
        _log.warning(
            "the model is exported without its regularizers, of %s; AdamW has a weight decay",
            ", ".join(regularized),
        )
    if constrained:
        _log.warning("the model is exported without its constraints, of %s", ", ".join(constrained))


def _name_dimensions(model: onnx.ModelProto, names: list[str]) -> None:
    """Give names to the free dimensions of inputs and outputs, in place; tf2onnx only numbers these dimensions."""
    for position, name in enumerate(names):
        (value,) = (value for value in model.graph.input if value.name == f"input_{position}")
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if not dimension.HasField("dim_value"):
                dimension.dim_param = "batch" if axis == 0 else f"{name}_{axis}"
    for value in model.graph.output:
        for dimension in value.type.tensor_type.shape.dim:
            if not dimension.HasField("dim_value"):
                dimension.Clear()
    inferred = onnx.shape_inference.infer_shapes(model)
    for value, known in zip(model.graph.output, inferred.graph.output, strict=True):
        value.CopyFrom(known)


@dataclass(frozen=True)
class _Call:
    """The arguments of a model."""

    signature: list[tuple[tuple[int | None, ...], str]]
    """Shape and type of each input."""
    names: list[str]
    arguments: Any
    """The structure of the positional arguments, with the position of each input instead of the input."""


def _call_of(model: Any, args: Any, dynamic: bool) -> _Call:
    if args is not None:
        structure, flat = _symbols(model, args, dynamic)
        given = [""] * len(flat)
        arguments = _argument_names(model, structure)
    elif getattr(model, "inputs", None):
        flat = list(model.inputs)
        single = flat[0] if len(flat) == 1 else flat
        # the argument of a functional model may be a dict
        structure = (getattr(model, "_inputs_struct", single),)
        given = ["" if re.fullmatch(r"keras_tensor(_\d+)?", t.name) else t.name for t in flat]
        arguments = ["input"]
    else:
        remedy = "; or begin it with keras.Input(shape)" if isinstance(model, keras.Sequential) else ""
        raise ValueError(
            f"the model {model.name!r} does not know its inputs; pass example arguments as args, such as "
            f"args=(x[:1],){remedy}"
        )
    signature = []
    for value in flat:
        batch, *others = (None if size is None else int(size) for size in value.shape)
        fixed = 1 if batch is None else batch
        kind = keras.backend.standardize_dtype(value.dtype)
        signature.append(((None if dynamic else fixed, *others), kind))
    names = weights_as_inputs.names_in_order("input", _names(structure, arguments, given))
    return _Call(signature, names, keras.tree.pack_sequence_as(structure, list(range(len(flat)))))


def _symbols(model: Any, args: Any, dynamic: bool) -> tuple[Any, list[Any]]:
    """Call the model with symbols; return the structure of its arguments, and the symbol of each array in it.

    The call creates the variables of a model that was never called.
    """
    structure = args if isinstance(args, tuple) else (args,)
    flat = keras.tree.flatten(structure)
    wrong = [type(value).__name__ for value in flat if not hasattr(value, "dtype")]
    if wrong or not flat:
        raise TypeError(
            f"args: expected arrays or tensors, found {', '.join(dict.fromkeys(wrong)) or 'none'}"
        )
    if any(not value.shape for value in flat):
        raise ValueError("args: expected arrays with a batch dimension, found a single number")

    def symbol(value: Any) -> Any:
        shape = (None if dynamic else value.shape[0], *value.shape[1:])
        return keras.KerasTensor(shape, keras.backend.standardize_dtype(value.dtype))

    symbols = [symbol(value) for value in flat]
    known = getattr(model, "inputs", None) or symbols
    for found, expected in zip(symbols, known, strict=False):
        if len(found.shape) != len(
            expected.shape
        ):  # Keras appends missing dimensions of 1, and rejects other shapes later
            raise ValueError(f"args: expected the shape {expected.shape}, found {found.shape}")
    try:
        model(*keras.tree.pack_sequence_as(structure, symbols))
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"args: the model {model.name!r} cannot be called with them: {reason_of(error)}"
        ) from error
    return structure, symbols


def _argument_names(model: Any, structure: tuple[Any, ...]) -> list[str]:
    """Return the name of each positional argument. A single argument is named ``input``, as in other models."""
    names = list(inspect.signature(model.call).bind(*structure).arguments)
    return names if len(names) == len(structure) > 1 else ["input"] * len(structure)


def _names(structure: tuple[Any, ...], arguments: list[str], given: list[str]) -> list[str]:
    """Return the names of the arrays in the arguments: given names, else the keys of a dict, else the argument's name."""
    found = []
    for (path, _), name in zip(keras.tree.flatten_with_path(structure), given, strict=True):
        argument, keys = arguments[path[0]], path[1:]
        in_dict = bool(keys) and isinstance(keys[0], str)
        found.append(name or "_".join(map(str, keys if in_dict else [argument, *keys])))
    return found


def _output_names(model: Any, count: int) -> list[str]:
    names = list(getattr(model, "output_names", None) or ())
    return weights_as_inputs.names_in_order("output", names if len(names) == count > 1 else [""] * count)
