"""Run by an interpreter that has onnxruntime-training 1.19.2: trains with artifacts, prints losses as JSON.

train_with_onnxruntime.py ARTIFACTS BATCHES RATES: a folder, an .npz of x0, y0, x1 ..., a list of learning
rates.
"""

import json
import sys

import numpy as np
import onnxruntime
from onnxruntime.training.api import CheckpointState, Module, Optimizer

onnxruntime.set_default_logger_severity(3)
folder, batches_path, rates = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
batches = np.load(batches_path)
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
losses = []
for step, rate in enumerate(rates):
    module.train()
    optimizer.set_learning_rate(rate)
    losses.append(float(module(batches[f"x{step}"], batches[f"y{step}"])))
    optimizer.step()
    module.lazy_reset_grad()
module.eval()
evals = [float(module(batches[f"x{step}"], batches[f"y{step}"])) for step in range(3)]
print(json.dumps({"train": losses, "eval": evals}))
