"""What Keras and ortrain compute for one model: the oracle of this folder."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import ortrain.keras
import tensorflow as tf
from ortrain import artifacts
from training import Training

STEPS = 10
BATCH = 8
CLASSES = 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# TensorFlow's rewriting of traced functions changes gradients of MobileNetV2 by a fifth, in float32 and in float64. Without it,
# traced functions give the bits of eager ones.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@dataclass
class Comparison:
    """How far ortrain is from Keras. Differences are relative to the largest value of what is compared."""

    report: ortrain.keras.ExportReport
    trained: list[str]
    """What the artifacts train."""
    loss: float
    gradients: dict[str, float]
    """The differences of the gradients from those of the model in float64."""
    gradients_of_keras: dict[str, float]
    """The same for Keras in float32."""
    losses: float
    """The largest difference of the losses of all steps."""
    losses_of_keras: float
    """The same between Keras in float32 and in float64."""
    weights: dict[str, float]
    """The differences of the weights, running statistics among them, after all steps."""


def relative(found: Any, expected: Any, floor: float = 0.0) -> float:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"shape {found.shape}, expected {expected.shape}"
    scale = max(float(np.abs(expected).max(initial=0.0)), floor)
    error = float(np.abs(found - expected).max(initial=0.0))
    return error / scale if scale else error


def made(make: Any, dtype: str) -> Any:
    """Return a new model, always with the same weights."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype)
    try:
        return make()
    finally:
        keras.config.set_dtype_policy(policy)


def wider(make: Any, model: Any) -> Any:
    """Return the model in float64."""
    wide = made(make, "float64")
    for a, b in zip(wide.variables, model.variables, strict=True):
        assert a.path == b.path
        a.assign(keras.ops.cast(b.value, a.dtype))
    return wide


def differentiated(model: Any, x: Any, y: Any) -> Any:
    """Return a function that computes the loss and its gradients.

    It is traced once: outside of a traced function, Keras compiles a convolution with groups in each call, which takes
    almost all of the time of a ConvNeXt.
    """

    @tf.function
    def compute() -> Any:
        with tf.GradientTape() as tape:
            loss = LOSS(y, model(x, training=True))
        return loss, tape.gradient(loss, model.trainable_variables)

    return compute


def gradients_of(model: Any, compute: Any) -> tuple[float, dict[str, Any]]:
    loss, found = compute()
    return float(loss), {
        v.path: tf.convert_to_tensor(g).numpy() for v, g in zip(model.trainable_variables, found, strict=True)
    }


def train(model: Any, compute: Any, rate: float) -> list[float]:
    optimizer, losses = keras.optimizers.SGD(rate), []
    for _ in range(STEPS):
        loss, found = compute()
        optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
        losses.append(float(loss))
    return losses


def batch_of(model: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    shape = model.inputs[0].shape[1:]
    if model.inputs[0].dtype.startswith("int"):
        x = rng.integers(0, 20, (BATCH, *shape)).astype(model.inputs[0].dtype)
    else:
        x = rng.normal(size=(BATCH, *shape)).astype(np.float32)
    return x, rng.integers(0, CLASSES, BATCH)


def compare(make: Any, folder: pathlib.Path, rate: float = 0.05) -> Comparison:
    """Export a model, train it in both, and compare."""
    model = made(make, "float32")
    x, y = batch_of(model)
    report = ortrain.keras.export(model, folder / "model.onnx")
    about = artifacts.generate_artifacts(
        folder / "model.onnx",
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    wide = wider(make, model)
    starts = [np.array(v) for v in model.variables]
    in_double, in_single = differentiated(wide, x, y), differentiated(model, x, y)
    _, exact = gradients_of(wide, in_double)
    first, narrow = gradients_of(model, in_single)
    for a, b, start in zip(wide.variables, model.variables, starts, strict=True):
        a.assign(keras.ops.cast(start, a.dtype))
        b.assign(start)
    losses_in_double = train(wide, in_double, rate)
    expected = train(model, in_single, rate)

    training = Training(folder)
    training.optimizer.set_learning_rate(rate)
    loss = training.loss(x, y)
    found = training.gradients()
    training.module.lazy_reset_grad()
    training = Training(folder)
    training.optimizer.set_learning_rate(rate)
    losses = [training.step(x, y) for _ in range(STEPS)]
    after = training.parameters()
    scale = 1e-3 * max(float(np.abs(g).max(initial=0.0)) for g in exact.values())
    return Comparison(
        report=report,
        trained=list(about.trained),
        loss=relative(loss, first),
        gradients={n: relative(found[n], exact[n], scale) for n in exact},
        gradients_of_keras={n: relative(narrow[n], exact[n], scale) for n in exact},
        losses=relative(losses, losses_in_double),
        losses_of_keras=relative(expected, losses_in_double),
        weights={v.path: relative(after[v.path], v, 1e-2) for v in wide.variables if v.path in after},
    )
