"""Networks for sequences: of rows of numbers, and of tokens."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain.models.building import Graph


def gru(
    inputs: int, outputs: int, hidden: int = 64, *, seed: int = 0, input: str = "x", output: str = "y"
) -> onnx.ModelProto:
    """Return a recurrent network: a layer of gated recurrent units, whose last state is the input of a fully connected layer.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of a row at each time, and of the result.
    hidden : int, default 64
        The size of the state.
    seed : int, default 0
        Seed of the initial weights: uniform between -1 / sqrt(hidden) and 1 / sqrt(hidden), as in PyTorch.
    input, output : str
        Names of input and output.

    Returns
    -------
    onnx.ModelProto
        From ``[batch, time, inputs]`` to ``[batch, outputs]``, float32. Sequences may have any length.
    """
    graph, bound = Graph(seed), 1 / np.sqrt(hidden)
    shapes = {"input": (1, 3 * hidden, inputs), "state": (1, 3 * hidden, hidden), "bias": (1, 6 * hidden)}
    names = [
        graph.weight(f"gru.{name}", graph.rng.uniform(-bound, bound, size)) for name, size in shapes.items()
    ]
    rows = graph.add("Transpose", [input], perm=[1, 0, 2])
    # Only the last state is used: [1, batch, hidden].
    last = graph.outputs_of(
        "GRU", [rows, *names], ["", "last_state"], hidden_size=hidden, linear_before_reset=1
    )
    state = graph.add("Squeeze", [last[1], graph.weight("first_axis", np.array([0]))])
    graph.dense("classify", state, hidden, outputs, 1, output)
    return graph.model("gru", input, ["time", inputs], output, outputs)


def transformer(
    tokens: int,
    outputs: int,
    length: int,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    *,
    seed: int = 0,
    input: str = "x",
    output: str = "y",
) -> onnx.ModelProto:
    """Return a transformer encoder with the normalization first, whose mean over positions goes through a dense layer.

    Parameters
    ----------
    tokens, outputs : int
        How many tokens there are, and the numbers of the result.
    length : int
        Tokens of a row.
    width, heads, layers : int
        Size of the embeddings, a multiple of the heads; heads of the attention; layers. Those between have 4 x width units.
    seed : int, default 0
        Seed of the initial weights: embeddings with a deviation of 0.02, others after He et al. (2015).
    input, output : str
        Names of input and output.

    Returns
    -------
    onnx.ModelProto
        From token numbers ``[batch, length]``, int64, to ``[batch, outputs]``, float32.
    """
    if width % heads:
        raise ValueError(f"width: expected a multiple of {heads} heads, found {width}")
    graph = Graph(seed)
    table = graph.weight("embedding.weight", graph.rng.normal(0, 0.02, (tokens, width)))
    places = graph.weight("position.weight", graph.rng.normal(0, 0.02, (length, width)))
    value = graph.add("Add", [graph.add("Gather", [table, input]), places])
    split = graph.weight("split", np.array([0, 0, heads, width // heads]))
    joined = graph.weight("joined", np.array([0, 0, width]))
    scale = graph.weight("attention_scale", np.array(np.sqrt(heads / width)))
    for layer in range(1, layers + 1):
        name = f"layer{layer}"
        normal = graph.layer_norm(f"{name}.norm1", value, width)
        parts = graph.heads(name, normal, width, split)
        scores = graph.add("Mul", [graph.add("MatMul", [parts["query"], parts["key"]]), scale])
        seen = graph.add("MatMul", [graph.add("Softmax", [scores], axis=-1), parts["value"]])
        seen = graph.add("Reshape", [graph.add("Transpose", [seen], perm=[0, 2, 1, 3]), joined])
        value = graph.add("Add", [value, graph.linear(f"{name}.out", seen, width, width)])
        normal = graph.layer_norm(f"{name}.norm2", value, width)
        inner = graph.add("Relu", [graph.linear(f"{name}.up", normal, width, 4 * width)])
        value = graph.add("Add", [value, graph.linear(f"{name}.down", inner, 4 * width, width)])
    value = graph.layer_norm("norm", value, width)
    value = graph.add("ReduceMean", [value], axes=[1], keepdims=0)
    graph.dense("classify", value, width, outputs, 1, output)
    return graph.model("transformer", input, [length], output, outputs, "int64")
