# mypy: disable-error-code="import-not-found"
"""The models of `benchmarks.more_models` in JAX, as functions of their weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.models_jax import (
    Arrays,
    BatchStatistics,
    Model,
    conv,
    dense,
    encoder,
    images,
    mobilenet_v2_features,
)


def mobilenet_v2_all(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    norm = BatchStatistics(running)
    features = mobilenet_v2_features(w, lambda name, x: norm(w, name, x), "0.", x)
    return dense(w, "1", features), norm.running


def lstm(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    def step(state: Any, gates: Any) -> tuple[Any, None]:
        h, c = state
        i, f, g, o = jnp.split(gates + h @ w["layer.weight_hh_l0"].T + w["layer.bias_hh_l0"], 4, 1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    gates = x.transpose(1, 0, 2) @ w["layer.weight_ih_l0"].T + w["layer.bias_ih_l0"]
    zero = jnp.zeros((x.shape[0], 128), x.dtype)
    (h, _), _ = lax.scan(step, (zero, zero), gates)
    return dense(w, "head", h), running


def gru(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    def step(h: Any, gates: Any) -> tuple[Any, None]:
        r, z, n = jnp.split(gates, 3, 1)
        r_h, z_h, n_h = jnp.split(h @ w["layer.weight_hh_l0"].T + w["layer.bias_hh_l0"], 3, 1)
        r, z = jax.nn.sigmoid(r + r_h), jax.nn.sigmoid(z + z_h)
        return (1 - z) * jnp.tanh(n + r * n_h) + z * h, None

    gates = x.transpose(1, 0, 2) @ w["layer.weight_ih_l0"].T + w["layer.bias_ih_l0"]
    h, _ = lax.scan(step, jnp.zeros((x.shape[0], 128), x.dtype), gates)
    return dense(w, "head", h), running


def conv1d(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    x = x.transpose(0, 2, 1)
    for name, pad in (("0", 3), ("2", 2), ("4", 1)):
        y = lax.conv_general_dilated(
            x, w[f"{name}.weight"], (2,), [(pad, pad)], dimension_numbers=("NWC", "WIO", "NWC")
        )
        x = jax.nn.relu(y + w[f"{name}.bias"])
    return dense(w, "8", x.mean(1)), running


def unet(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    def twice(name: str, x: Any) -> Any:
        return jax.nn.relu(conv(w, f"{name}.2", jax.nn.relu(conv(w, f"{name}.0", x, pad=1)), pad=1))

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def up(name: str, x: Any) -> Any:  # stored as height, width, results, channels
        y = jnp.einsum("nhwc,abdc->nhawbd", x, w[f"{name}.weight"])
        n, h, a, v, b, d = y.shape
        return y.reshape(n, h * a, v * b, d) + w[f"{name}.bias"]

    first = twice("down1", images(x))
    second = twice("down2", pool(first))
    x = up("up2", twice("bottom", pool(second)))
    x = up("up1", twice("join2", jnp.concatenate((x, second), 3)))
    x = conv(w, "classes", twice("join1", jnp.concatenate((x, first), 3)))
    return x.transpose(0, 3, 1, 2), running


def vit(w: Arrays, running: Arrays, x: Any) -> tuple[Any, Arrays]:
    x = conv(w, "patches", images(x), stride=4)
    tokens = x.reshape(x.shape[0], 64, -1) + w["positions"]
    return dense(w, "head", encoder(w, tokens, heads=3).mean(1)), running


def recommender(w: Arrays, running: Arrays, ids: Any) -> tuple[Any, Arrays]:
    x = w["values.weight"][ids].reshape(ids.shape[0], -1)
    x = jax.nn.relu(dense(w, "dense.3", jax.nn.relu(dense(w, "dense.1", x))))
    return dense(w, "dense.5", x), running


MORE_MODELS: dict[str, Model] = {
    "mobilenet-v2-all": mobilenet_v2_all,
    "lstm": lstm,
    "gru": gru,
    "conv1d": conv1d,
    "unet": unet,
    "vit": vit,
    "recommender": recommender,
}
