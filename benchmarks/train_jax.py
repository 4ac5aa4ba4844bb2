# mypy: disable-error-code="import-not-found"
"""Training with JAX, from the weights of the exported ONNX model: one compiled step (`jax.jit`) with donated buffers."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.cases import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Case, model_files
from benchmarks.contestants import Step
from benchmarks.models_jax import MODELS, Arrays, Model
from benchmarks.more_models_jax import MORE_MODELS


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
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, 1), labels[:, None], 1)
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
            name: jnp.asarray(v.transpose(*range(2, v.ndim), 1, 0) if v.ndim > 2 else v)
            for name, v in weights.items()
            if name not in running
        }
        kept = ("backbone.",) if case.model == "mobilenet-v2" else ()
        frozen = {name: v for name, v in weights.items() if name.startswith(kept)} if kept else {}
        trained = {name: v for name, v in weights.items() if name not in frozen}
        moments = {name: (jnp.zeros_like(v), jnp.zeros_like(v)) for name, v in trained.items()}
        compiled = jax.jit(partial(train, {**MODELS, **MORE_MODELS}[case.model]), donate_argnums=(1, 2, 3))
        count = 0

        def step(x: Any, labels: Any) -> float:
            nonlocal trained, moments, running, count
            count += 1
            trained, moments, running, loss = compiled(
                frozen, trained, moments, running, np.float32(count), x, labels.astype(np.int32)
            )
            return float(loss)

        return step
