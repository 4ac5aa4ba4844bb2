"""Networks for rows of numbers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import onnx

from ortrain.models.building import Graph


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int] = (100,),
    *,
    seed: int = 0,
    input: str = "x",
    output: str = "y",
) -> onnx.ModelProto:
    """Return a multilayer perceptron: fully connected layers with ReLU between them.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of a row, and of its result.
    hidden : sequence of int, default (100,)
        The sizes of the layers between them.
    seed : int, default 0
        Seed of the initial weights: normal with the variance 2 / n after He et al. (2015), where n is the number of values
        that a unit takes; 1 / n in the last layer.
    input, output : str
        Names of input and output.

    Returns
    -------
    onnx.ModelProto
        From ``[batch, inputs]`` to ``[batch, outputs]``, float32.
    """
    graph, value = Graph(seed), input
    sizes = [inputs, *hidden]
    for layer, (before, after) in enumerate(itertools.pairwise(sizes), start=1):
        value = graph.add("Relu", [graph.dense(f"fc{layer}", value, before, after, 2)])
    graph.dense(f"fc{len(sizes)}", value, sizes[-1], outputs, 1, output)
    return graph.model("mlp", input, [inputs], output, outputs)
