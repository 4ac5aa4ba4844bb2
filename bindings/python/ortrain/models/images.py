"""Networks for images with the channels first."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ortrain.models.building import Graph


def cnn(
    shape: Sequence[int],
    outputs: int,
    widths: Sequence[int] = (16, 32, 64),
    *,
    seed: int = 0,
    input: str = "x",
    output: str = "y",
) -> onnx.ModelProto:
    """Return a convolutional network: for each width a 3 x 3 convolution, ReLU and 2 x 2 maximum, then the mean over positions.

    Parameters
    ----------
    shape : sequence of int
        Channels, height and width of an image.
    outputs : int
        Numbers of the result, such as the scores of the classes.
    widths : sequence of int, default (16, 32, 64)
        The channels after each convolution. Images too small for so many maxima keep their height and width at the end.
    seed : int, default 0
        Seed of the initial weights, after He et al. (2015).
    input, output : str
        Names of input and output.

    Returns
    -------
    onnx.ModelProto
        From ``[batch, channels, height, width]`` to ``[batch, outputs]``, float32.
    """
    graph, value = Graph(seed), input
    channels, smallest = shape[0], min(shape[1:])
    for layer, width in enumerate(widths, start=1):
        value = graph.add("Relu", [graph.conv(f"conv{layer}", value, channels, width, 3)])
        if smallest >= 4:
            value = graph.add("MaxPool", [value], kernel_shape=[2, 2], strides=[2, 2])
            smallest //= 2
        channels = width
    value = graph.add("Flatten", [graph.add("GlobalAveragePool", [value])])
    graph.dense("classify", value, channels, outputs, 1, output)
    return graph.model("cnn", input, shape, output, outputs)


def resnet(
    shape: Sequence[int],
    outputs: int,
    widths: Sequence[int] = (32, 64, 128),
    blocks: int = 2,
    *,
    seed: int = 0,
    input: str = "x",
    output: str = "y",
) -> onnx.ModelProto:
    """Return a residual network of basic blocks with batch normalization (He et al. 2016), then the mean over positions.

    Parameters
    ----------
    shape, outputs, seed, input, output
        As in `cnn`.
    widths : sequence of int, default (32, 64, 128)
        The channels of each stage; from the second stage on, the first block halves height and width.
    blocks : int, default 2
        Blocks of a stage.

    Returns
    -------
    onnx.ModelProto
        From ``[batch, channels, height, width]`` to ``[batch, outputs]``, float32.
    """
    graph = Graph(seed)
    channels = widths[0]
    value = graph.norm("stem.norm", graph.conv("stem.conv", input, shape[0], channels, 3), channels)
    value = graph.add("Relu", [value])
    for stage, width in enumerate(widths, start=1):
        for block in range(1, blocks + 1):
            name, stride = f"stage{stage}.block{block}", 2 if stage > 1 and block == 1 else 1
            inner = graph.conv(f"{name}.conv1", value, channels, width, 3, stride)
            inner = graph.add("Relu", [graph.norm(f"{name}.norm1", inner, width)])
            inner = graph.norm(f"{name}.norm2", graph.conv(f"{name}.conv2", inner, width, width, 3), width)
            if channels != width or stride > 1:
                value = graph.conv(f"{name}.shortcut", value, channels, width, 1, stride)
            value = graph.add("Relu", [graph.add("Add", [inner, value])])
            channels = width
    value = graph.add("Flatten", [graph.add("GlobalAveragePool", [value])])
    graph.dense("classify", value, channels, outputs, 1, output)
    return graph.model("resnet", input, shape, output, outputs)
