# mypy: disable-error-code="import-not-found"
"""The models of `benchmarks.models` in JAX, as functions of their weights.

The models store images with channels last, which is faster for XLA's convolutions on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Arrays = dict[str, Any]
Model = Callable[[Arrays, Arrays, Any], tuple[Any, Arrays]]
"""Logits and new running statistics, from weights, running statistics and a batch."""


def dense(w: Arrays, name: str, x: Any) -> Any:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def conv(w: Arrays, name: str, x: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
    y = lax.conv_general_dilated(
        x,
        w[f"{name}.weight"],
        (stride, stride),
        [(pad, pad), (pad, pad)],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def layer_norm(w: Arrays, name: str, x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * w[f"{name}.weight"] + w[f"{name}.bias"]


def normalize(w: Arrays, name: str, x: Any, mean: Any, variance: Any) -> Any:
    return (x - mean) * (w[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)) + w[f"{name}.bias"]


class BatchStatistics:
    """Normalizes by the statistics of the batch, and collects the new running ones."""

    def __init__(self, running: Arrays) -> None:
        self.running = dict(running)

    def __call__(self, w: Arrays, name: str, x: Any) -> Any:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        count = x.size / x.shape[-1]
        for key, value in (("mean", mean), ("var", variance * count / (count - 1))):
            self.running[f"{name}.running_{key}"] = 0.9 * self.running[
                f"{name}.running_{key}"
            ] + 0.1 * lax.stop_gradient(value)
        return normalize(w, name, x, mean, variance)


def images(x: Any) -> Any:
    return jnp.transpose(x, (0, 2, 3, 1))


def mlp(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    return dense(w, "2", jax.nn.relu(dense(w, "0", x))), running


def lenet(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    x = jax.nn.relu(conv(w, "2", jax.nn.relu(conv(w, "0", images(x)))))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = jnp.transpose(x, (0, 3, 1, 2)).reshape(x.shape[0], -1)
    return dense(w, "8", jax.nn.relu(dense(w, "6", x))), running


def resnet18(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    norm = BatchStatistics(running)
    x = jax.nn.relu(norm(w, "1", conv(w, "0", images(x), pad=1)))
    for i in range(3, 11):
        stride = 2 if i in (5, 7, 9) else 1
        y = jax.nn.relu(norm(w, f"{i}.body.1", conv(w, f"{i}.body.0", x, stride, 1)))
        y = norm(w, f"{i}.body.4", conv(w, f"{i}.body.3", y, 1, 1))
        if stride > 1:
            x = norm(w, f"{i}.shortcut.1", conv(w, f"{i}.shortcut.0", x, stride))
        x = jax.nn.relu(x + y)
    return dense(w, "13", x.mean((1, 2))), norm.running


def mobilenet_v2(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    def norm(name: str, x: Any) -> Any:
        return normalize(w, name, x, running[f"{name}.running_mean"], running[f"{name}.running_var"])

    return dense(w, "head", mobilenet_v2_features(w, norm, "backbone.", x)), running


def mobilenet_v2_features(w: Arrays, norm: Callable[[str, Any], Any], start: str, x: Any) -> Any:
    """Return what the head of MobileNetV2 reads; names of weights begin with `start`."""

    def convolution(path: str, first: int, x: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        y = norm(f"{path}{first + 1}", conv(w, f"{path}{first}", x, stride, pad, groups))
        return jnp.clip(y, 0, 6)

    x = convolution(start, 0, images(x), 2, 1)
    at = 3
    for expansion, outputs, count, first_stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for i in range(count):
            stride, path, layer, y = first_stride if i == 0 else 1, f"{start}{at}.body.", 0, x
            if expansion > 1:
                y, layer = convolution(path, 0, y), 3
            y = convolution(path, layer, y, stride, 1, y.shape[-1])
            y = norm(f"{path}{layer + 4}", conv(w, f"{path}{layer + 3}", y))
            x = x + y if stride == 1 and x.shape[-1] == outputs else y
            at += 1
    return convolution(start, at, x).mean((1, 2))


def bert_mini(w: Arrays, running: Arrays, ids: Any) -> tuple[Any, Arrays]:
    x = encoder(w, layer_norm(w, "norm", w["tokens.weight"][ids] + w["positions"]), heads=4)
    return dense(w, "classifier", jnp.tanh(dense(w, "pooler", x[:, 0]))), running


def encoder(w: Arrays, x: Any, heads: int) -> Any:
    """Four layers of self-attention and feed-forward."""
    batch, length, width = x.shape
    for i in range(4):
        path = f"encoder.{i}."
        q, k, v = (
            dense(w, path + name, x).reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / math.sqrt(width // heads))
        attended = (scores @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = layer_norm(w, path + "norm1", x + dense(w, path + "out", attended))
        hidden = jax.nn.gelu(dense(w, path + "feed_forward.0", x), approximate=False)
        x = layer_norm(w, path + "norm2", x + dense(w, path + "feed_forward.2", hidden))
    return x


MODELS: dict[str, Model] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet18,
    "bert-mini": bert_mini,
    "mobilenet-v2": mobilenet_v2,
}
