"""The networks of this folder, of flax.linen, of flax.nnx and without Flax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

CLASSES = 3


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.gelu(nn.LayerNorm()(nn.relu(nn.Dense(8)(x)))))


class CNN(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.Conv(4, (3, 3), strides=2, use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        x = nn.Dropout(0.0, deterministic=not train)(x.reshape((x.shape[0], -1)))
        return nn.Dense(CLASSES)(x)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2)(y, y)
        x = x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))
        return nn.Dense(CLASSES)(x.mean(1))


class Recurrent(nn.Module):
    cell: Any

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES)(nn.RNN(self.cell(5))(x)[:, -1])


class Embedding(nn.Module):
    @nn.compact
    def __call__(self, tokens):
        return nn.Dense(CLASSES)(nn.Embed(10, 4)(tokens).mean(1))


class NnxMLP(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = nnx.Linear(5, 8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)
        self.norm, self.drop = nnx.BatchNorm(8, rngs=rngs), nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x):
        return self.second(self.drop(nnx.relu(self.norm(self.first(x)))))


class NnxCNN(nnx.Module):
    def __init__(self, rngs):
        self.conv, self.norm = nnx.Conv(2, 4, (3, 3), rngs=rngs), nnx.BatchNorm(4, rngs=rngs)
        self.head = nnx.Linear(64, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.head(x.reshape(x.shape[0], -1))


class NnxAttention(nnx.Module):
    def __init__(self, rngs):
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(8, rngs=rngs), nnx.Linear(8, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x + self.attention(x)).mean(1))


class NnxRecurrent(nnx.Module):
    def __init__(self, rngs, cell=nnx.GRUCell):
        self.layer = nnx.RNN(cell(4, 5, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(5, CLASSES, rngs=rngs)

    def __call__(self, x):
        return self.head(self.layer(x)[:, -1])


def two_layers(params, x):
    for weight, bias in params["hidden"]:
        x = jnp.tanh(x @ weight + bias)
    return x @ params["head"]


def two_layers_params():
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "hidden": [(jax.random.normal(k, (5, 5)) / 2, jnp.zeros(5)) for k in keys[:2]],
        "head": jax.random.normal(keys[2], (5, CLASSES)),
    }


LINEN = {
    "MLP": (MLP, (5,), {}),
    "CNN": (CNN, (8, 8, 2), {"train": True}),
    "attention": (Attention, (6, 8), {}),
    "LSTM": (lambda: Recurrent(nn.OptimizedLSTMCell), (6, 4), {}),
    "GRU": (lambda: Recurrent(nn.GRUCell), (6, 4), {}),
    "embedding": (Embedding, (6,), {}),
}
NNX = {
    "nnx MLP": (NnxMLP, (5,)),
    "nnx CNN": (NnxCNN, (8, 8, 2)),
    "nnx attention": (NnxAttention, (6, 8)),
    "nnx GRU": (NnxRecurrent, (6, 4)),
    "nnx LSTM": (lambda rngs: NnxRecurrent(rngs, nnx.OptimizedLSTMCell), (6, 4)),
}
