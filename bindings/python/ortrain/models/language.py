"""Networks that predict the next token of a text."""

from __future__ import annotations

import numpy as np
import onnx

from ortrain.models.building import Graph

_MASKED = -1e9
"""The attention score of a token that another token must not see."""


def gpt(
    tokens: int, length: int, width: int = 64, heads: int = 4, layers: int = 2, *, seed: int = 0
) -> onnx.ModelProto:
    """Return a causal language model: a transformer in which each token sees itself and the tokens before it.

    Parameters
    ----------
    tokens : int
        The size of the vocabulary.
    length : int
        The maximum number of tokens in a text.
    width, heads, layers : int
        Size of the embeddings, a multiple of the heads; heads of the attention; layers. Those between have 4 x width units.
    seed : int, default 0
        Seed of the initial weights: embeddings with a deviation of 0.02, others with a variance of 1 / inputs.

    Returns
    -------
    onnx.ModelProto
        From ``input_ids`` and ``attention_mask``, both int64 ``[batch, sequence]``, to ``logits``, float32
        ``[batch, sequence, tokens]``. The mask is 1 for tokens and 0 for what fills a row.
    """
    if width % heads:
        raise ValueError(f"width: expected a multiple of {heads} heads, found {width}")
    graph = Graph(seed)
    places = _places(graph)
    visible = _visible(graph, places)
    table = graph.weight("embedding.weight", graph.rng.normal(0, 0.02, (tokens, width)))
    positions = graph.weight("position.weight", graph.rng.normal(0, 0.02, (length, width)))
    value = graph.add(
        "Add", [graph.add("Gather", [table, "input_ids"]), graph.add("Gather", [positions, places])]
    )
    split = graph.weight("split", np.array([0, 0, heads, width // heads]))
    joined = graph.weight("joined", np.array([0, 0, width]))
    # Constants, because initializers would be trained.
    scale = graph.add("Constant", [], value_float=float(np.sqrt(heads / width)))
    masked = graph.add("Constant", [], value_float=_MASKED)
    for layer in range(layers):
        name = f"layers.{layer}"
        normal = graph.layer_norm(f"{name}.norm1", value, width)
        parts = graph.heads(name, normal, width, split)
        scores = graph.add("Mul", [graph.add("MatMul", [parts["query"], parts["key"]]), scale])
        shares = graph.add("Softmax", [graph.add("Where", [visible, scores, masked])], axis=-1)
        seen = graph.add("Transpose", [graph.add("MatMul", [shares, parts["value"]])], perm=[0, 2, 1, 3])
        seen = graph.linear(f"{name}.out", graph.add("Reshape", [seen, joined]), width, width)
        value = graph.add("Add", [value, seen])
        normal = graph.layer_norm(f"{name}.norm2", value, width)
        inner = graph.add("Relu", [graph.linear(f"{name}.up", normal, width, 4 * width)])
        value = graph.add("Add", [value, graph.linear(f"{name}.down", inner, 4 * width, width)])
    head = graph.weight("lm_head.weight", graph.rng.normal(0, np.sqrt(1 / width), (width, tokens)))
    graph.add("MatMul", [graph.layer_norm("norm", value, width), head], "logits")
    return _model(graph, tokens)


def _places(graph: Graph) -> str:
    """Append nodes for the positions of the tokens of a row, from 0."""
    length = graph.add("Gather", [graph.add("Shape", ["input_ids"]), graph.weight("one", np.array(1))])
    return graph.add("Range", [graph.weight("zero", np.array(0)), length, "one"])


def _visible(graph: Graph, places: str) -> str:
    """Append nodes for a mask of the tokens, in the last dimension, that each token sees: ``[batch, 1, sequence, sequence]``."""
    causal = graph.add(
        "LessOrEqual", [places, graph.add("Unsqueeze", [places, graph.weight("last_axis", np.array([-1]))])]
    )
    real = graph.add("Cast", ["attention_mask"], to=onnx.TensorProto.BOOL)
    real = graph.add("Unsqueeze", [real, graph.weight("middle_axes", np.array([1, 2]))])
    return graph.add("And", [causal, real])


def _model(graph: Graph, tokens: int) -> onnx.ModelProto:
    """Return the model of the nodes, with both of its inputs."""
    model = graph.model("gpt", "input_ids", ["sequence"], "logits", tokens, "int64")
    make = onnx.helper.make_tensor_value_info
    model.graph.input.append(make("attention_mask", onnx.TensorProto.INT64, ["batch", "sequence"]))
    del model.graph.output[:]
    model.graph.output.append(make("logits", onnx.TensorProto.FLOAT, ["batch", "sequence", tokens]))
    return model
