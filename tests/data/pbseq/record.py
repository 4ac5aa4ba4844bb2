"""Writes the files beside it: a run of onnxruntime-training 1.15.1 (with onnx 1.14.1) and its checkpoint after 5 of 10 steps.

``python record.py FOLDER``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.training import artifacts
from onnxruntime.training.api import CheckpointState, Module, Optimizer

out = Path(sys.argv[1])
out.mkdir(parents=True)
rng = np.random.default_rng(0)
weights = {
    "fc1.weight": rng.normal(size=(6, 8)) / 2,
    "fc1.bias": np.zeros(8),
    "scale": np.full(8, 0.5),
    "fc2.weight": rng.normal(size=(8, 3)) / 2,
}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["a"]),
        helper.make_node("Mul", ["a", "scale"], ["s"]),
        helper.make_node("Relu", ["s"], ["b"]),
        helper.make_node("MatMul", ["b", "fc2.weight"], ["scores"]),
    ],
    "m",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 6])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
    [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
)
artifacts.generate_artifacts(
    helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8),
    requires_grad=["fc1.weight", "fc1.bias", "fc2.weight"],
    frozen_params=["scale"],
    loss=artifacts.LossType.CrossEntropyLoss,
    optimizer=artifacts.OptimType.AdamW,
    artifact_directory=str(out),
)
state = CheckpointState.load_checkpoint(str(out / "checkpoint"))
module = Module(str(out / "training_model.onnx"), state, str(out / "eval_model.onnx"))
optimizer = Optimizer(str(out / "optimizer_model.onnx"), module)
optimizer.set_learning_rate(0.01)
rows = rng.normal(size=(10, 16, 6)).astype(np.float32)
classes = rng.integers(0, 3, (10, 16)).astype(np.int64)
losses = []
for step in range(10):
    module.train()
    losses.append(float(module(rows[step], classes[step])))
    optimizer.step()
    module.lazy_reset_grad()
    if step == 4:
        for name, value in (("epoch", 5), ("best", 0.25), ("name", "digits")):
            state[name] = value
        CheckpointState.save_checkpoint(state, str(out / "trained"), include_optimizer_state=True)
np.savez(out / "run.npz", X=rows, Y=classes, losses=losses)
