"""Language models with the shapes of GPT-2 small and Qwen2.5-0.5B and random 4-bit weights, for benchmarks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
"""Weights that share a scale."""


Weights = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True)
class Shape:
    """The shape of a language model.

    Attributes
    ----------
    inner : width between the two layers of a feed-forward part.
    gated : whether it is that of Qwen (RMS normalization, rotary positions, gated units), else that of GPT-2.
    """

    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    vocabulary: int
    gated: bool


SHAPES = {
    "gpt2": Shape(12, 768, 12, 12, 3072, 50257, gated=False),
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 4864, 151936, gated=True),
}


class Writer:
    """The nodes of a model whose matrices have 4 bits.

    As in the models with these shapes, the last layer has the weights of the embeddings. With embeddings of 4 bits, a file has
    the codes of both once.

    Parameters
    ----------
    shape : Shape
        What it is to have.
    small_table : bool
        Whether the embeddings have 4 bits too, instead of float32.
    length : int
        Tokens of a row.
    """

    def __init__(self, shape: Shape, small_table: bool, length: int) -> None:
        from ortrain.models.building import Graph

        self.shape, self.graph, self._small_table, self._length = shape, Graph(1), small_table, length
        self.rng = self.graph.rng
        self.dim = shape.width // shape.heads
        self._words = self.codes(shape.vocabulary, shape.width)

    def codes(self, rows: int, columns: int) -> Weights:
        """Return random codes of 4 bits with scales and zero points: numbers with a deviation of 1 / sqrt(columns)."""
        blocks = columns // BLOCK
        codes = self.rng.integers(0, 256, (rows, blocks, BLOCK // 2), np.uint8)
        scales = np.full((rows, blocks), 1 / (4.6 * np.sqrt(columns)), np.float32)
        return codes, scales, np.full((rows, (blocks + 1) // 2), 0x88, np.uint8)

    def linear(self, name: str, value: str, before: int, after: int, bias: bool) -> str:
        """Append a linear layer with other weights than any other."""
        found = self.product(name, value, self.codes(after, before), before, after)
        return (
            self.graph.add("Add", [found, self.graph.weight(f"{name}.bias", np.zeros(after))])
            if bias
            else found
        )

    def product(
        self, name: str, value: str, weights: Weights, before: int, after: int, result: str = ""
    ) -> str:
        """Append a product with weights in codes."""
        codes, scales, zeros = weights
        names = [
            self.graph.weight(f"{name}.weight_{part}", values)
            for part, values in (
                ("q4", codes),
                ("scales", scales.reshape(-1)),
                ("zeros", zeros.reshape(-1)),
            )
        ]
        attributes = {"K": before, "N": after, "bits": 4, "block_size": BLOCK, "domain": "com.microsoft"}
        return self.graph.add("MatMulNBits", [value, *names], result, **attributes)

    def embedded(self) -> str:
        """Append the embeddings of the tokens."""
        rows, width = self.shape.vocabulary, self.shape.width
        if self._small_table:
            codes, scales, zeros = self._words
            names = [
                self.graph.weight("embedding.weight_q4", codes.reshape(rows, -1)),
                self.graph.weight("embedding.weight_scales", scales),
                self.graph.weight("embedding.weight_zeros", zeros),
            ]
            inputs = [names[0], "input_ids", *names[1:]]
            attributes: dict[str, Any] = {
                "bits": 4,
                "block_size": BLOCK,
                "gather_axis": 0,
                "quantize_axis": 1,
            }
            return self.graph.add("GatherBlockQuantized", inputs, domain="com.microsoft", **attributes)
        table = self.rng.standard_normal((rows, width), np.float32) * np.float32(0.02)
        return self.graph.add("Gather", [self.graph.weight("embedding.weight", table), "input_ids"])

    def norm(self, name: str, value: str) -> str:
        """Append a normalization over the last dimension."""
        width = self.shape.width
        if not self.shape.gated:
            return self.graph.layer_norm(name, value, width)
        add = self.graph.add
        mean = add("ReduceMean", [add("Mul", [value, value]), self.constant(np.array([-1]))])
        scale = add("Reciprocal", [add("Sqrt", [add("Add", [mean, self.constant(np.float32(1e-6))])])])
        return add("Mul", [add("Mul", [value, scale]), self.graph.weight(f"{name}.weight", np.ones(width))])

    def constant(self, value: Any) -> str:
        """Append a constant, which is not trained."""
        import onnx

        array = np.asarray(value)
        return self.graph.add("Constant", [], value=onnx.numpy_helper.from_array(array))

    def heads(self, value: str, count: int, angles: tuple[str, str] | None) -> str:
        """Append the split of rows into heads, ``[batch, heads, tokens, dim]``, turned by their positions if there are angles."""
        add = self.graph.add
        split = add("Reshape", [value, self.constant(np.array([0, 0, count, self.dim]))])
        split = add("Transpose", [split], perm=[0, 2, 1, 3])
        if angles is None:
            return split
        half = self.dim // 2
        names = [f"{split}.left", f"{split}.right"]
        sizes = self.constant(np.array([half, half]))
        self.graph.outputs_of("Split", [split, sizes], names, axis=-1)
        turned = add("Concat", [add("Neg", [names[1]]), names[0]], axis=-1)
        return add("Add", [add("Mul", [split, angles[0]]), add("Mul", [turned, angles[1]])])

    def attention(self, name: str, value: str, mask: str, angles: tuple[str, str] | None) -> str:
        """Append an attention layer."""
        add, shape, dim = self.graph.add, self.shape, self.dim
        sizes = {"query": shape.heads, "key": shape.groups, "value": shape.groups}
        parts = {
            part: self.heads(
                self.linear(f"{name}.{part}", value, shape.width, count * dim, bias=True),
                count,
                None if part == "value" else angles,
            )
            for part, count in sizes.items()
        }
        if shape.groups < shape.heads:
            for part in ("key", "value"):
                times = shape.heads // shape.groups
                wide = add("Unsqueeze", [parts[part], self.constant(np.array([2]))])
                wide = add("Expand", [wide, self.constant(np.array([1, 1, times, 1, 1]))])
                parts[part] = add("Reshape", [wide, self.constant(np.array([0, shape.heads, -1, dim]))])
        turned = add("Transpose", [parts["key"]], perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [parts["query"], turned]), self.constant(np.float32(dim**-0.5))])
        shares = add("Softmax", [add("Add", [scores, mask])], axis=-1)
        seen = add("Transpose", [add("MatMul", [shares, parts["value"]])], perm=[0, 2, 1, 3])
        seen = add("Reshape", [seen, self.constant(np.array([0, 0, shape.width]))])
        return self.linear(f"{name}.out", seen, shape.width, shape.width, bias=not shape.gated)

    def forward(self, name: str, value: str) -> str:
        """Append the feed-forward part of a layer."""
        add, width, inner = self.graph.add, self.shape.width, self.shape.inner
        if not self.shape.gated:
            wide = add(
                "Gelu", [self.linear(f"{name}.up", value, width, inner, bias=True)], approximate="tanh"
            )
            return self.linear(f"{name}.down", wide, inner, width, bias=True)
        gate = self.linear(f"{name}.gate", value, width, inner, bias=False)
        gate = add("Mul", [gate, add("Sigmoid", [gate])])
        up = self.linear(f"{name}.up", value, width, inner, bias=False)
        return self.linear(f"{name}.down", add("Mul", [gate, up]), inner, width, bias=False)

    def write(self, path: Path) -> None:
        """Write the model: from ``input_ids``, int64 ``[batch, tokens]``, to ``logits``."""
        import onnx

        shape, add = self.shape, self.graph.add
        value, angles = self.embedded(), None
        if shape.gated:
            at = np.arange(self._length)[:, None] * 1e6 ** (-np.arange(0, self.dim, 2)[None] / self.dim)
            both = np.concatenate([at, at], axis=1)
            angles = (
                self.constant(np.cos(both).astype(np.float32)),
                self.constant(np.sin(both).astype(np.float32)),
            )
        else:
            table = self.rng.normal(0, 0.02, (self._length, shape.width))
            value = add("Add", [value, self.graph.weight("position.weight", table)])
        mask = self.constant(np.triu(np.full((self._length, self._length), -1e9, np.float32), 1))
        for layer in range(shape.layers):
            name = f"layers.{layer}"
            seen = self.attention(f"{name}.attention", self.norm(f"{name}.norm1", value), mask, angles)
            value = add("Add", [value, seen])
            value = add("Add", [value, self.forward(f"{name}.mlp", self.norm(f"{name}.norm2", value))])
        self.product(
            "lm_head", self.norm("norm", value), self._words, shape.width, shape.vocabulary, "logits"
        )
        model = self.graph.model("language", "input_ids", [self._length], "logits", shape.vocabulary, "int64")
        scores = onnx.helper.make_tensor_value_info(
            "logits", onnx.TensorProto.FLOAT, ["batch", self._length, shape.vocabulary]
        )
        model.graph.output[0].CopyFrom(scores)
        model.opset_import[0].version = 20
        model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
        onnx.save(model, path)
