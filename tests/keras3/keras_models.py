"""The models of this folder. None drops anything, so that losses can be compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers as L
from keras.src.applications.convnext import ConvNeXt

CLASSES = 3


def attention() -> Any:
    x = inputs = keras.Input((6, 8))
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x))
    x = L.LayerNormalization()(x + L.Dense(8)(L.Dense(16, activation="gelu")(x)))
    return keras.Model(inputs, L.Dense(CLASSES)(L.GlobalAveragePooling1D()(x)))


def shared() -> Any:
    """A layer, with batch normalization, that is called twice."""
    inputs = keras.Input((5,))
    layer = L.Dense(5, activation="tanh")
    return keras.Model(inputs, L.Dense(CLASSES)(layer(layer(inputs))))


def normalized_anywhere() -> Any:
    """Batch normalization of every rank, on other axes, without scale or offset, and frozen."""
    x = inputs = keras.Input((6, 4))
    x = L.BatchNormalization(axis=1)(L.Conv1D(6, 3, padding="same")(x))
    x = L.BatchNormalization(scale=False, momentum=0.5)(x)
    x = L.BatchNormalization(trainable=False)(x)
    x = L.BatchNormalization(center=False)(L.Flatten()(x))
    return keras.Model(inputs, L.Dense(CLASSES)(x))


def one_pixel() -> Any:
    """Layers that normalize the single pixel which a convolution leaves, with a residual connection."""
    x = inputs = keras.Input((4, 4, 3))
    x = L.LayerNormalization()(L.Conv2D(8, 4)(x))
    y = L.LayerNormalization()(L.Conv2D(8, 7, groups=8, padding="same")(x))
    return keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(x + L.Dense(8, activation="gelu")(y))))


def grouped() -> Any:
    x = inputs = keras.Input((8, 4))
    x = L.Conv1D(8, 3, groups=2, strides=2, padding="same", activation="relu")(x)
    x = L.Conv2D(8, (2, 1), groups=4)(L.Reshape((4, 1, 8))(x))
    return keras.Model(inputs, L.Dense(CLASSES)(L.Flatten()(x)))


def fine_tuned() -> Any:
    """A frozen layer below one that trains."""
    return keras.Sequential(
        [keras.Input((5,)), L.Dense(8, activation="relu", trainable=False), L.Dense(CLASSES)]
    )


def rescaled() -> Any:
    """Statistics of the data, which are constants of the network."""
    scaled = L.Normalization(mean=[1.0, 2.0, 3.0, 4.0, 5.0], variance=[1.0, 2.0, 3.0, 4.0, 5.0])
    return keras.Sequential([keras.Input((5,)), scaled, L.Dense(CLASSES)])


def masked() -> Any:
    """Padded sequences: the layers skip steps, which no ONNX node does."""
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            L.Embedding(20, 4, mask_zero=True),
            L.LSTM(5, return_sequences=True),
            L.GRU(4, activation="relu"),
            L.Dense(CLASSES),
        ]
    )


def application(name: str, size: int = 64, **settings: Any) -> Callable[[], Any]:
    def make() -> Any:
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None, **settings
        )
        for layer in model.layers:
            if isinstance(layer, L.Dropout):
                layer.rate = 0.0
        return model

    return make


def convnext() -> Any:
    """A small ConvNeXt whose last stage sees one pixel; its blocks are not scaled to almost nothing, as they are at first."""
    return ConvNeXt(
        depths=[1, 1, 2, 1],
        projection_dims=[16, 24, 32, 40],
        layer_scale_init_value=1.0,
        default_size=32,
        weights=None,
        input_shape=(32, 32, 3),
        classes=CLASSES,
        classifier_activation=None,
        weights_name="convnext_tiny",
    )


SMALL: dict[str, Callable[[], Any]] = {
    "Dense": lambda: keras.Sequential(
        [keras.Input((5,)), L.Dense(8, activation="relu"), L.Dense(8), L.Dense(CLASSES)]
    ),
    "Conv": lambda: keras.Sequential(
        [
            keras.Input((8, 8, 2)), L.Conv2D(4, 3, padding="same"), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D(),
            L.Conv2D(4, 3, strides=2, padding="same"), L.Flatten(), L.Dense(CLASSES),
        ]
    ),
    "SeparableConv": lambda: keras.Sequential(
        [
            keras.Input((8, 8, 2)), L.SeparableConv2D(4, 3), L.BatchNormalization(), L.ReLU(),
            L.GlobalAveragePooling2D(), L.Dense(CLASSES),
        ]
    ),
    "LSTM": lambda: keras.Sequential(
        [keras.Input((6, 4)), L.LSTM(5, return_sequences=True), L.LSTM(4), L.Dense(CLASSES)]
    ),
    "GRU": lambda: keras.Sequential(
        [
            keras.Input((6, 4)), L.GRU(5, return_sequences=True), L.GRU(4, reset_after=False, use_bias=False),
            L.Dense(CLASSES),
        ]
    ),
    "Bidirectional": lambda: keras.Sequential(
        [
            keras.Input((6, 4)), L.Bidirectional(L.LSTM(5, return_sequences=True)), L.Bidirectional(L.GRU(5)),
            L.Dense(CLASSES),
        ]
    ),
    "attention": attention,
    "shared": shared,
    "normalized": normalized_anywhere,
    "one pixel": one_pixel,
    "grouped": grouped,
    "fine-tuned": fine_tuned,
    "rescaled": rescaled,
    "masked": masked,
}  # fmt: skip

LARGE: dict[str, Callable[[], Any]] = {
    "MobileNetV2": application("MobileNetV2", alpha=0.35),
    "MobileNetV3": application("MobileNetV3Small", alpha=0.35),
    "EfficientNet": application("EfficientNetB0"),
    "DenseNet": application("DenseNet121"),
    "ConvNeXt": convnext,
}
