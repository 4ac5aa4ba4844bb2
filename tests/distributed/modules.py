"""A model with convolutions for modules in several processes, and its batches."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer

Array = np.ndarray[Any, Any]
FEATURES = (3, 8, 8)
CLASSES = 5
BATCH = 24


def write_artifacts(folder: pathlib.Path, dropout: float = 0.0, clip: float | None = None) -> None:
    rng = np.random.default_rng(1)
    weights = {
        "conv1.w": rng.normal(size=(16, 3, 3, 3)) * 0.2, "conv1.b": np.zeros(16),
        "conv2.w": rng.normal(size=(16, 16, 3, 3)) * 0.1, "conv2.b": np.zeros(16),
        "fc.w": rng.normal(size=(16 * 4 * 4, CLASSES)) * 0.1, "fc.b": np.zeros(CLASSES),
    }  # fmt: skip
    constants = {"ratio": np.array(dropout, np.float32), "train": np.array(True)}
    nodes = [
        helper.make_node("Conv", ["x", "conv1.w", "conv1.b"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "conv2.w", "conv2.b"], ["c2"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("Flatten", ["r2"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc.w", "fc.b"], ["scores"]),
    ]
    if dropout:
        nodes[4:4] = [helper.make_node("Dropout", ["r2", "ratio", "train"], ["dropped"])]
        nodes[5].input[0] = "dropped"
    initializers = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in weights.items()]
    if dropout:
        initializers += [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *FEATURES])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", CLASSES])],
        initializers,
    )  # fmt: skip
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=list(weights),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=onnxblock.optim.AdamW(
            clip_grad=None if clip is None else onnxblock.optim.ClipGradNorm(clip)
        ),
        artifact_directory=folder,
    )


def batches(step: int, accumulated: int = 1, *, unequal: bool = False) -> list[tuple[Array, Array]]:
    """Return the batches of one optimizer step; unequal ones end with a small one, of which not every rank gets a part."""
    rng = np.random.default_rng(100 + step)
    sizes = [BATCH] * accumulated
    if unequal:
        sizes[-1] = 3 + 4 * (step % 2)
    return [(rng.normal(size=(n, *FEATURES)).astype(np.float32), rng.integers(0, CLASSES, n)) for n in sizes]


class Alone:
    """The same training in one process."""

    def __init__(self, folder: pathlib.Path, checkpoint: str | pathlib.Path = "checkpoint") -> None:
        self.state = CheckpointState.load_checkpoint(folder / checkpoint)
        self.module = Module(folder / "training_model.onnx", self.state, folder / "eval_model.onnx")
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)

    def train(
        self, steps: int, accumulated: int = 1, *, first: int = 0, unequal: bool = False
    ) -> dict[str, Array]:
        gradient = np.empty(self.module.get_parameters_size(), np.float32)
        for step in range(first, first + steps):
            total, samples = np.zeros(gradient.shape), 0
            for x, y in batches(step, accumulated, unequal=unequal):
                self.module(x, y)
                self.module.copy_gradients_to_buffer(gradient)
                self.module.lazy_reset_grad()
                total += gradient * len(y)
                samples += len(y)
            self.module.copy_buffer_to_gradients((total * accumulated / samples).astype(np.float32))
            self.optimizer.step()
            self.module.lazy_reset_grad()
        return {name: parameter.data for name, parameter in self.state.parameters}
