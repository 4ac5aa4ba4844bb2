"""Models for the older Python API, and its training in NumPy, in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import ortrain
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]

WEIGHTS = ("W1", "b1", "W2", "b2")
LEARNING_RATE = "Learning_Rate"


def tensor(name: str, shape: list | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def serialized(
    nodes: list, inputs: list, outputs: list, initializers: dict[str, Array], opset: int = 17
) -> bytes:
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in initializers.items()]
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def weights(seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    shapes = {"W1": (4, 16), "b1": (16,), "W2": (16, 3), "b2": (3,)}
    return {name: (rng.normal(size=shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def mlp() -> bytes:
    """Return a classifier with the outputs loss and pred, for a batch of any size."""
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["h0"]),
        helper.make_node("Add", ["h0", "b1"], ["h1"]),
        helper.make_node("Relu", ["h1"], ["h"]),
        helper.make_node("MatMul", ["h", "W2"], ["p0"]),
        helper.make_node("Add", ["p0", "b2"], ["pred"]),
        helper.make_node("SoftmaxCrossEntropyLoss", ["pred", "y"], ["loss"]),
    ]
    inputs = [tensor("x", ["batch", 4]), tensor("y", ["batch"], TensorProto.INT64)]
    return serialized(nodes, inputs, [tensor("loss", []), tensor("pred", ["batch", 3])], weights())


def batch(seed: int = 0, size: int = 8) -> dict[str, Array]:
    rng = np.random.default_rng(seed + 100)
    return {"x": rng.normal(size=(size, 4)).astype(np.float32), "y": rng.integers(0, 3, size)}


def gradients(w: dict[str, Array], feed: dict[str, Array]) -> tuple[float, dict[str, Array]]:
    """Return the loss of the classifier and its gradient."""
    x, y = feed["x"].astype(np.float64), feed["y"]
    h = np.maximum(x @ w["W1"] + w["b1"], 0)
    logits = h @ w["W2"] + w["b2"]
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    n = len(y)
    loss = -np.log(p[np.arange(n), y]).mean()
    d = p.copy()
    d[np.arange(n), y] -= 1
    d /= n
    dh = (d @ w["W2"].T) * (h > 0)
    return float(loss), {"W1": x.T @ dh, "b1": dh.sum(0), "W2": h.T @ d, "b2": d.sum(0)}


def norm(g: dict[str, Array]) -> float:
    return float(np.sqrt(sum((v**2).sum() for v in g.values())))


def clipped(g: dict[str, Array], limit: float) -> dict[str, Array]:
    length = norm(g)
    return {k: v * (limit / length if length > limit else 1) for k, v in g.items()}


class Reference:
    """An optimizer in double precision."""

    def __init__(self, start: dict[str, Array], step: Callable[..., None]) -> None:
        self.w = {k: v.astype(np.float64) for k, v in start.items()}
        self.m = {k: np.zeros_like(v) for k, v in self.w.items()}
        self.v = {k: np.zeros_like(v) for k, v in self.w.items()}
        self.t = 1
        self._step = step

    def update(self, g: dict[str, Array], rate: float) -> None:
        for k in self.w:
            self._step(self, k, g[k], rate)
        self.t += 1

    def moments(
        self, k: str, g: Array, alpha: float, beta: float, correct: bool
    ) -> tuple[Array, Array, float, float]:
        self.m[k] = alpha * self.m[k] + (1 - alpha) * g
        self.v[k] = beta * self.v[k] + (1 - beta) * g * g
        return self.m[k], self.v[k], 1 - alpha**self.t if correct else 1, 1 - beta**self.t if correct else 1


def adam(
    alpha: float = 0.9,
    beta: float = 0.999,
    decay: float = 0.0,
    epsilon: float = 1e-8,
    mode: int = 0,
    correct: bool = True,
) -> Callable[..., None]:
    alpha, beta, decay, epsilon = (float(np.float32(x)) for x in (alpha, beta, decay, epsilon))

    def step(ref: Reference, k: str, g: Array, rate: float) -> None:
        m, v, c1, c2 = ref.moments(k, g, alpha, beta, correct)
        if mode == 0:
            ref.w[k] -= rate * ((m / c1) / (np.sqrt(v / c2) + epsilon) + decay * ref.w[k])
        else:
            u = ref.w[k] - rate * np.sqrt(c2) / c1 * m / (np.sqrt(v) + epsilon)
            ref.w[k] = u - rate * decay * u

    return step


def lamb(
    alpha: float = 0.9, beta: float = 0.999, decay: float = 0.0, epsilon: float = 1e-6,
    low: float = -np.inf, high: float = np.inf, correct: bool = False,
) -> Callable[..., None]:  # fmt: skip
    alpha, beta, decay, epsilon = (float(np.float32(x)) for x in (alpha, beta, decay, epsilon))

    def step(ref: Reference, k: str, g: Array, rate: float) -> None:
        m, v, c1, c2 = ref.moments(k, g, alpha, beta, correct)
        d = decay * ref.w[k] + (m / c1) / (np.sqrt(v / c2) + epsilon)
        lengths = np.linalg.norm(ref.w[k]), np.linalg.norm(d)
        phi = float(np.clip(lengths[0] / lengths[1], low, high)) if min(lengths) > 0 else 1.0
        ref.w[k] -= rate * phi * d

    return step


def sgd(ref: Reference, k: str, g: Array, rate: float) -> None:
    ref.w[k] -= rate * g


def parameters(
    optimizer: str = "AdamOptimizer", names: tuple[str, ...] = WEIGHTS, **members: Any
) -> ortrain.TrainingParameters:
    """Return parameters that train the classifier; `floats` and `ints` are attributes of all weights."""
    p = ortrain.TrainingParameters()
    p.loss_output_name = "loss"
    p.weights_to_train = set(names)
    p.training_optimizer_name = optimizer
    p.optimizer_attributes_map = {name: dict(members.get("floats", {})) for name in names}
    p.optimizer_int_attributes_map = {name: dict(members.get("ints", {})) for name in names}
    for name, value in members.items():
        if name not in ("floats", "ints"):
            setattr(p, name, value)
    return p


def rate(value: float = 0.01) -> Array:
    return np.array([value], np.float32)


def feed(data: dict[str, Array], learning_rate: float = 0.01, **more: Array) -> dict[str, Array]:
    return {**data, LEARNING_RATE: rate(learning_rate), **more}


def path_only() -> ortrain.RunOptions:
    options = ortrain.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


class Transformer:
    """An encoder of pre-normalized layers over float inputs [batch, tokens, width], with a mean square as the loss."""

    def __init__(
        self, layers: int, width: int = 32, heads: int = 2, tokens: int = 16, dropout: float = 0.0
    ) -> None:
        self._nodes: list = []
        self.weights: dict[str, Array] = {}
        self._constants: dict[str, Array] = {
            "heads": np.array([0, 0, heads, width // heads], np.int64),
            "flat": np.array([0, 0, width], np.int64),
            "scale": np.array((width // heads) ** -0.5, np.float32),
            "ratio": np.array(dropout, np.float32),
            "train": np.array(True),
        }
        self._rng = np.random.default_rng(3)
        self._width, self._dropout = width, dropout
        self.shape = (None, tokens, width)
        value = self._linear("in", "x", width, width)
        for k in range(layers):
            value = self._layer(f"l{k}", value)
        value = self._norm("out", value)
        value = self._linear("head", value, width, width)
        self._node("Mul", [value, value], "squares")
        self._node("ReduceMean", ["squares"], "loss", keepdims=0)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def _weight(self, name: str, *shape: int, value: float | None = None) -> str:
        made = self._rng.normal(size=shape) * shape[0] ** -0.5 if value is None else np.full(shape, value)
        self.weights[name] = made.astype(np.float32)
        return name

    def _linear(self, name: str, x: str, rows: int, columns: int) -> str:
        product = self._node("MatMul", [x, self._weight(f"{name}.w", rows, columns)], f"{name}.product")
        return self._node("Add", [product, self._weight(f"{name}.b", columns, value=0.1)], f"{name}.sum")

    def _norm(self, name: str, x: str) -> str:
        scale = self._weight(f"{name}.scale", self._width, value=1.2)
        bias = self._weight(f"{name}.bias", self._width, value=0.1)
        return self._node("LayerNormalization", [x, scale, bias], f"{name}.norm", axis=-1)

    def _layer(self, name: str, x: str) -> str:
        w = self._width
        normal = self._norm(f"{name}.ln1", x)
        parts = []
        for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            value = self._node(
                "Reshape", [self._linear(f"{name}.{part}", normal, w, w), "heads"], f"{name}.{part}4"
            )
            parts.append(self._node("Transpose", [value], f"{name}.{part}t", perm=order))
        scores = self._node("MatMul", parts[:2], f"{name}.scores")
        scores = self._node("Mul", [scores, "scale"], f"{name}.scaled")
        p = self._node("Softmax", [scores], f"{name}.p", axis=-1)
        if self._dropout:
            p = self._node("Dropout", [p, "ratio", "train"], f"{name}.dropped", seed=1)
        mixed = self._node(
            "Transpose",
            [self._node("MatMul", [p, parts[2]], f"{name}.mixed")],
            f"{name}.back",
            perm=[0, 2, 1, 3],
        )
        mixed = self._node("Reshape", [mixed, "flat"], f"{name}.flat")
        x = self._node("Add", [x, self._linear(f"{name}.o", mixed, w, w)], f"{name}.attended")
        h = self._linear(f"{name}.up", self._norm(f"{name}.ln2", x), w, 4 * w)
        h = self._node("Gelu", [h], f"{name}.gelu")
        return self._node("Add", [x, self._linear(f"{name}.down", h, 4 * w, w)], f"{name}.out")

    def model(self) -> bytes:
        return serialized(
            self._nodes,
            [tensor("x", ["batch", *self.shape[1:]])],
            [tensor("loss", [])],
            {**self.weights, **self._constants},
            opset=20,
        )

    def parameters(self, **members: Any) -> ortrain.TrainingParameters:
        return parameters(members.pop("optimizer", "AdamOptimizer"), tuple(self.weights), **members)

    def feed(self, size: int, seed: int = 0) -> dict[str, Array]:
        x = np.random.default_rng(seed).normal(size=(size, *self.shape[1:])).astype(np.float32)
        return {"x": x, LEARNING_RATE: rate(0.001)}
