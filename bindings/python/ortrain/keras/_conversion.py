"""The call of a Keras model as ONNX nodes, by TensorFlow and tf2onnx."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import onnx
import onnx.inliner
import tensorflow as tf

from ortrain import _graph
from ortrain.keras._messages import reason_of
from ortrain.keras._names import variables_of
from ortrain.keras._tracing import RandomNumbersError, Tracing, UnsupportedLayerError

vars(np).setdefault("object", object)  # tf2onnx 1.17 reads this name, which NumPy 1.24 removed
try:
    import tf2onnx
    from tf2onnx.optimizer.transpose_optimizer import TransposeOptimizer
except ImportError as error:
    raise ImportError("ortrain.keras.export needs tf2onnx: pip install 'ortrain[keras]'") from error

_log = logging.getLogger(__name__)


def convert(
    model: Any,
    signature: list[tuple[tuple[int | None, ...], str]],
    arguments: Any,
    training: bool,
    opset: int,
) -> tuple[onnx.ModelProto, list[Any]]:
    """Return the model as ONNX with inputs ``weight_0`` ... and ``input_0`` ..., and the statistics that training updates.

    Parameters
    ----------
    model : keras.Model
        The model.
    signature : list of tuple
        Shape and type of each input; None is a free dimension.
    arguments : tuple
        The positional arguments of the model: a structure with the position of each input instead of the input.
    training : bool
        Whether layers behave as in training.
    opset : int
        The version of ONNX's operators.

    Raises
    ------
    ValueError
        When tf2onnx cannot write an operation.
    """
    tracing, traced = _traced_with_noise_or_without(model, signature, arguments, training)
    if tracing.left_out:
        _log.warning(
            "Keras assigns new values to %s whenever the model is called in training; the exported model does not",
            ", ".join(tracing.left_out),
        )
    with _messages() as messages, _without_reshapes():
        try:
            made, _ = tf2onnx.convert.from_function(
                traced, traced.input_signature, opset=opset, custom_op_handlers=tracing.nodes.handlers()
            )
        except Exception as error:  # tf2onnx raises exceptions of several classes
            raise ValueError(_failed(model, [*messages, str(error)])) from error
    if made.functions:
        made = onnx.inliner.inline_local_functions(made)
    if _graph.unknown_nodes(made) and messages:
        raise ValueError(_failed(model, messages))
    _write_constants(made, traced)
    return made, tracing.updated


def _traced_with_noise_or_without(
    model: Any, signature: list[tuple[tuple[int | None, ...], str]], arguments: Any, training: bool
) -> tuple[Tracing, Any]:
    try:
        tracing = Tracing(training)
        try:
            return tracing, _traced(model, signature, arguments, tracing)
        except RandomNumbersError:
            _log.warning(
                "the model has layers that draw random numbers for other purposes than dropout, such as noise or "
                "augmentation; they are exported as in inference"
            )
            tracing = Tracing(training, noise=False)
            return tracing, _traced(model, signature, arguments, tracing)
    except UnsupportedLayerError as error:
        raise ValueError(_failed(model, [reason_of(error)])) from error


def _write_constants(model: onnx.ModelProto, traced: Any) -> None:
    """Turn inputs without a value, which tf2onnx declares for constants that the function captured, into initializers."""
    captured = {
        inner.name: outer
        for outer, inner in traced.get_concrete_function().graph.captures
        if outer.dtype != tf.resource
    }
    for value in list(model.graph.input):
        if value.name in captured:
            array = np.asarray(captured[value.name])
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)


def _traced(
    model: Any, signature: list[tuple[tuple[int | None, ...], str]], arguments: Any, tracing: Tracing
) -> Any:
    """Return the call of the model as a function of TensorFlow whose arguments are the weights and the inputs."""
    variables = list(variables_of(model).values())
    specs = [tf.TensorSpec(v.shape, v.dtype, f"weight_{n}") for n, v in enumerate(variables)]
    specs += [tf.TensorSpec(shape, kind, f"input_{n}") for n, (shape, kind) in enumerate(signature)]
    trained = {id(v): n for n, v in enumerate(variables)}

    def call(*values: Any) -> dict[str, Any]:
        given = values[len(variables) :]
        positional = keras.tree.map_structure(lambda position: given[position], arguments)
        kinds = [
            [values[trained[id(v)]] for v in group]
            for group in (model.trainable_variables, model.non_trainable_variables)
        ]
        keywords = {"training": tracing.flag} if model._call_has_training_arg else {}
        outputs, states = model.stateless_call(*kinds, *positional, **keywords)
        tracing.left_out += [
            variable.path
            for variable, given, found in zip(model.non_trainable_variables, kinds[1], states, strict=True)
            if found is not given and keras.backend.is_float_dtype(variable.dtype)
        ]
        return {f"output_{n:04}": value for n, value in enumerate(keras.tree.flatten(outputs))}

    function = tf.function(call, input_signature=specs, autograph=False)
    with tracing.active(), _without_activity_losses(model):
        function.get_concrete_function()
    return function


@contextlib.contextmanager
def _without_activity_losses(model: Any) -> Iterator[None]:
    """Remove activity regularizers: no output depends on them, and tf2onnx fails on constants that no node reads."""
    layers = [layer for layer in model._flatten_layers() if layer.activity_regularizer is not None]
    regularizers = [layer.activity_regularizer for layer in layers]
    try:
        for layer in layers:
            layer.activity_regularizer = None
        yield
    finally:
        for layer, regularizer in zip(layers, regularizers, strict=True):
            layer.activity_regularizer = regularizer


@contextlib.contextmanager
def _without_reshapes() -> Iterator[None]:
    """Let tf2onnx keep a Transpose of an image of one pixel.

    tf2onnx turns such a Transpose into a Reshape, with the shape from before it moved the Transpose. So layer normalization
    after a convolution whose result is one pixel got a wrong shape and wrong values.
    """
    original = TransposeOptimizer.post_optimize_action
    TransposeOptimizer.post_optimize_action = lambda _: None
    try:
        yield
    finally:
        TransposeOptimizer.post_optimize_action = original


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """Collect the errors that tf2onnx logs, instead of printing them."""
    found: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage().split("\n")[0])

    logger, collector = logging.getLogger("tf2onnx"), Collector(logging.ERROR)
    propagates, logger.propagate = logger.propagate, False
    handlers = list(logger.handlers)
    for handler in handlers:
        logger.removeHandler(handler)
    logger.addHandler(collector)
    try:
        yield found
    finally:
        logger.removeHandler(collector)
        for handler in handlers:
            logger.addHandler(handler)
        logger.propagate = propagates


def _failed(model: Any, reasons: list[str]) -> str:
    return f"tf2onnx {tf2onnx.__version__} cannot write the model {model.name!r} as ONNX:\n  " + "\n  ".join(
        dict.fromkeys(reasons)
    )
