"""Replacements of layers during the trace of an export: a layer becomes a node if ONNX has an operator for it."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import keras.src.backend
import tensorflow as tf

from ortrain.keras._nodes import Nodes

_log = logging.getLogger(__name__)


class RandomNumbersError(Exception):
    """A layer draws random numbers for another purpose than dropout."""


class UnsupportedLayerError(Exception):
    """A layer computes what tf2onnx writes wrongly."""


class Tracing:
    """The replacements of parts of Keras while a model is traced.

    Attributes
    ----------
    nodes : Nodes
        The nodes that were added.
    updated : list
        The variables with running statistics that training updates.
    left_out : list of str
        The paths of other variables that layers update when they are called. An exported model does not update them.
    """

    def __init__(self, training: bool, noise: bool = True) -> None:
        """Prepare a trace.

        Parameters
        ----------
        training : bool
            Whether layers behave as in training.
        noise : bool, default: True
            Whether layers that this class does not replace behave as in training, too.
        """
        self.nodes = Nodes()
        self.updated: list[Any] = []
        self.left_out: list[str] = []
        self._training, self._noise = training, noise

    @property
    def flag(self) -> bool:
        """The argument ``training`` for the call of the model."""
        return self._training and self._noise

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Replace layers and functions of Keras."""
        backend = keras.src.backend
        with contextlib.ExitStack() as stack:

            def replace(owner: Any, name: str, make: Any) -> None:
                original = getattr(owner, name)
                stack.callback(setattr, owner, name, original)
                setattr(
                    owner, name, functools.partialmethod(make, original) if isinstance(owner, type) else make
                )

            tracing = self

            def normalize(
                layer: Any, original: Any, inputs: Any, training: Any = None, mask: Any = None
            ) -> Any:
                return tracing._normalize(layer, original, inputs, training, mask)

            def drop(layer: Any, original: Any, inputs: Any, training: Any = False) -> Any:
                return original(layer, inputs, training=tracing._training)

            replace(keras.layers.BatchNormalization, "call", normalize)
            replace(backend.nn, "conv", functools.partial(_convolve, backend.nn.conv))
            replace(backend, "lstm", self._lstm)
            replace(backend, "gru", self._gru)
            replace(backend.random, "dropout", self._dropout)
            for name in ("uniform", "normal", "truncated_normal", "randint", "gamma", "binomial", "beta"):
                replace(backend.random, name, _refuse_random_numbers)
            if not self._noise:
                dropouts = [keras.layers.Dropout, keras.layers.SpatialDropout1D.__mro__[1]]
                for kind in dropouts:
                    replace(kind, "call", drop)
            yield

    def _normalize(self, layer: Any, original: Any, inputs: Any, training: Any, mask: Any) -> Any:
        """Compute BatchNormalization by the node of that name."""
        training = (
            bool(self._training if training is None or not self._noise else training) and layer.trainable
        )
        if layer.renorm or (training and mask is not None):
            _log.warning(
                "%s is exported with fixed statistics: ONNX has no batch normalization with %s",
                layer.path, "renorm" if layer.renorm else "a mask",
            )  # fmt: skip
            return original(layer, inputs, training=False, mask=mask)
        x = tf.cast(inputs, keras.src.backend.result_type(inputs.dtype, "float32"))
        rank, count = len(x.shape), layer.moving_mean.shape[0]
        axis = layer.axis % rank
        order = [0, axis, *(i for i in range(1, rank) if i != axis)]
        if axis > 1:
            x = tf.transpose(x, order)
        scale = tf.convert_to_tensor(layer.gamma) if layer.scale else tf.ones(count, x.dtype)
        offset = tf.convert_to_tensor(layer.beta) if layer.center else tf.zeros(count, x.dtype)
        statistics = [tf.convert_to_tensor(v) for v in (layer.moving_mean, layer.moving_variance)]
        (result,) = self.nodes.add(
            "BatchNormalization",
            [x, scale, offset, *statistics],
            [x.shape],
            epsilon=float(layer.epsilon),
            momentum=float(layer.momentum),
        )
        if training:
            self.updated += [layer.moving_mean, layer.moving_variance]
        if axis > 1:
            result = tf.transpose(result, [order.index(i) for i in range(rank)])
        return tf.cast(result, layer.compute_dtype)

    def _dropout(self, inputs: Any, rate: float, noise_shape: Any = None, seed: Any = None) -> Any:
        del seed
        inputs = tf.convert_to_tensor(inputs)
        if noise_shape is None:
            return self._drop(inputs, rate)
        sizes = tf.shape(inputs)
        shape = [sizes[i] if size is None else size for i, size in enumerate(noise_shape)]
        return inputs * self._drop(tf.ones(tf.stack(shape), inputs.dtype), rate)

    def _drop(self, x: Any, rate: float) -> Any:
        ratio, training = tf.constant(rate, tf.float32), tf.constant(True)
        return self.nodes.add("Dropout", [x, ratio, training], [x.shape])[0]

    def _lstm(self, inputs: Any, state_h: Any, state_c: Any, mask: Any, **layer: Any) -> Any:
        """Replace ``keras.backend.lstm``, which gets the weights and settings of the layer as keywords."""
        # Keras has the gates in the order i, f, c, o; ONNX in i, o, f, c.
        return self._recurrent("LSTM", inputs, [state_h, state_c], mask, [0, 3, 1, 2], layer)

    def _gru(self, inputs: Any, state: Any, mask: Any, reset_after: bool = True, **layer: Any) -> Any:
        """Replace ``keras.backend.gru``."""
        if layer["bias"] is not None and reset_after:
            layer["bias"], layer["recurrent_bias"] = tf.unstack(tf.convert_to_tensor(layer["bias"]))
        linear = int(reset_after)
        return self._recurrent("GRU", inputs, [state], mask, [0, 1, 2], layer, linear_before_reset=linear)

    def _recurrent(
        self,
        operator: str,
        inputs: Any,
        states: list[Any],
        mask: Any,
        gates: list[int],
        layer: Mapping[str, Any],
        **attributes: Any,
    ) -> tuple[Any, Any, list[Any]]:
        """Return the results of the backend's functions: the last output, all outputs, and the states."""
        _require_node(mask, layer["activation"], layer["recurrent_activation"])
        batch, steps, _ = inputs.shape
        units = states[0].shape[-1]
        x = tf.transpose(inputs, [1, 0, 2])
        if layer["go_backwards"]:
            x = tf.reverse(x, [0])
        first = [tf.convert_to_tensor(state)[None] for state in states]
        last = [1, batch, units]
        made = self.nodes.add(
            operator,
            [x, *_weights(layer, gates), None, *first],
            [[steps, 1, batch, units], *([last] * len(states))],
            hidden_size=units,
            **attributes,
        )
        ends = [tf.squeeze(state, 0) for state in made[1:]]
        if not layer["return_sequences"]:
            return ends[0], ends[0][:, None], ends
        return ends[0], tf.transpose(tf.squeeze(made[0], 1), [1, 0, 2]), ends


def _convolve(
    original: Any,
    inputs: Any,
    kernel: Any,
    strides: Any = 1,
    padding: str = "valid",
    data_format: str | None = None,
    dilation_rate: Any = 1,
) -> Any:
    """Replace ``keras.backend.nn.conv``, which calls a compiled function for groups, as tf2onnx reads no such function."""
    rank = len(inputs.shape)
    data_format = keras.src.backend.standardize_data_format(data_format)
    channels = inputs.shape[-1 if data_format == "channels_last" else 1]
    if channels == kernel.shape[-2]:
        return original(inputs, kernel, strides, padding, data_format, dilation_rate)
    if rank == 5:
        raise UnsupportedLayerError(
            "three-dimensional convolutions with groups, of which tf2onnx does not write the groups"
        )
    layout = {"channels_last": "NWC NHWC", "channels_first": "NCW NCHW"}[data_format].split()[rank - 3]
    return tf.nn.convolution(
        inputs, kernel, strides, padding.upper(), data_format=layout, dilations=dilation_rate
    )


def _refuse_random_numbers(*_: Any, **__: Any) -> Any:
    raise RandomNumbersError


def _require_node(mask: Any, activation: Any, recurrent_activation: Any) -> None:
    """Raise NotImplementedError if ONNX has no node for a layer: then Keras computes it step by step, as a Loop."""
    usual = activation is keras.activations.tanh and recurrent_activation is keras.activations.sigmoid
    if mask is not None or not usual:
        raise NotImplementedError


def _weights(layer: Mapping[str, Any], gates: list[int]) -> list[Any]:
    """Return weights, recurrent weights and biases of a layer in the layout of ONNX: [direction, gates, inputs]."""

    def ordered(value: Any) -> Any:
        parts = tf.split(tf.convert_to_tensor(value), len(gates), axis=-1)
        return tf.concat([parts[i] for i in gates], -1) if gates != sorted(gates) else value

    found = [tf.transpose(ordered(layer[name]))[None] for name in ("kernel", "recurrent_kernel")]
    if layer["bias"] is None:
        return [*found, None]
    second = layer.get("recurrent_bias")
    both = [ordered(layer["bias"]), tf.zeros_like(layer["bias"]) if second is None else ordered(second)]
    return [*found, tf.concat(both, 0)[None]]
