# mypy: disable-error-code="import-not-found"
"""Training with JAX: one jitted step whose buffers are donated, from the weights of the exported ONNX model.

The models are those of `benchmarks.models`, written as functions of their weights. Images have channels last inside,
which XLA's convolutions prefer on a CPU.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.cases import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Case, model_files
from benchmarks.contestants import Step

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

    def convolution(path: str, first: int, x: Any, stride: int = 1, pad: int = 0, groups: int = 1) -> Any:
        y = norm(f"{path}{first + 1}", conv(w, f"{path}{first}", x, stride, pad, groups))
        return jnp.clip(y, 0, 6)

    x = convolution("backbone.", 0, images(x), 2, 1)
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
            stride, path, layer, y = first_stride if i == 0 else 1, f"backbone.{at}.body.", 0, x
            if expansion > 1:
                y, layer = convolution(path, 0, y), 3
            y = convolution(path, layer, y, stride, 1, y.shape[-1])
            y = norm(f"{path}{layer + 4}", conv(w, f"{path}{layer + 3}", y))
            x = x + y if stride == 1 and x.shape[-1] == outputs else y
            at += 1
    x = convolution("backbone.", at, x)
    return dense(w, "head", x.mean((1, 2))), running


def bert_mini(w: Arrays, running: Arrays, ids: Any) -> tuple[Any, Arrays]:
    heads = 4
    x = layer_norm(w, "norm", w["tokens.weight"][ids] + w["positions"])
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
    return dense(w, "classifier", jnp.tanh(dense(w, "pooler", x[:, 0]))), running


MODELS: dict[str, Model] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet18,
    "bert-mini": bert_mini,
    "mobilenet-v2": mobilenet_v2,
}


def train(
    model: Model,
    frozen: Arrays,
    trained: Arrays,
    moments: Arrays,
    running: Arrays,
    count: Any,
    x: Any,
    labels: Any,
) -> tuple[Arrays, Arrays, Arrays, Any]:
    """Return the new weights, moments and running statistics, and the loss."""

    def loss_of(trained: Arrays) -> tuple[Any, Arrays]:
        logits, statistics = model({**frozen, **trained}, running, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)
        return -chosen.mean(), statistics

    (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained)
    beta1, beta2 = BETAS
    correction1, correction2 = 1 - beta1**count, jnp.sqrt(1 - beta2**count)
    weights: Arrays = {}
    sums: Arrays = {}
    for name, gradient in gradients.items():
        m, v = moments[name]
        m, v = beta1 * m + (1 - beta1) * gradient, beta2 * v + (1 - beta2) * jnp.square(gradient)
        # Epsilon is added before the bias of the second moment is corrected, as in AdamWOptimizer.
        change = m / correction1 / ((jnp.sqrt(v) + EPSILON) / correction2)
        weights[name] = trained[name] * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE * change
        sums[name] = (m, v)
    return weights, sums, statistics, loss


class JaxTrainer:
    """Trains with `jax.jit`; weights, moments and running statistics are donated to each step."""

    def __init__(self, _: Any) -> None:
        self.version = f"jax {jax.__version__}"

    def make_artifacts(self, case: Case, cache: Any) -> None:
        """Do nothing: JAX trains from Python code."""

    def prepare(self, case: Case, cache: Any, threads: int) -> Step:
        # XLA has as many threads as the process has processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
        files = model_files(cache, case)
        with np.load(files.weights) as stored:
            weights = {name: stored[name] for name in stored.files}
        running = {name: jnp.asarray(v) for name, v in weights.items() if ".running_" in name}
        weights = {
            name: jnp.asarray(v.transpose(2, 3, 1, 0) if v.ndim == 4 else v)
            for name, v in weights.items()
            if name not in running
        }
        kept = ("backbone.",) if case.model == "mobilenet-v2" else ()
        frozen = {name: v for name, v in weights.items() if name.startswith(kept)} if kept else {}
        trained = {name: v for name, v in weights.items() if name not in frozen}
        moments = {name: (jnp.zeros_like(v), jnp.zeros_like(v)) for name, v in trained.items()}
        compiled = jax.jit(partial(train, MODELS[case.model]), donate_argnums=(1, 2, 3))
        count = 0

        def step(x: Any, labels: Any) -> float:
            nonlocal trained, moments, running, count
            count += 1
            trained, moments, running, loss = compiled(
                frozen, trained, moments, running, np.float32(count), x, labels.astype(np.int32)
            )
            return float(loss)

        return step
