"""A program for several processes: trains a module on parts of fixed batches and saves what every rank has.

Usage: train_module.py ARTIFACTS OUT [option=value ...]
"""

from __future__ import annotations

import pathlib
import sys

import numpy as np
from modules import FEATURES, batches
from mpi4py import MPI
from ortrain import SessionOptions, set_seed
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.distributed import DataParallel

artifacts, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
options = dict(argument.split("=", 1) for argument in sys.argv[3:])
comm = MPI.COMM_WORLD

if "seed" in options:
    set_seed(int(options["seed"]) + comm.rank)
settings = SessionOptions()
settings.intra_op_num_threads = 1
if "skip" in options:
    settings.add_session_config_entry("ortrain.nonfinite_gradients", "skip")
if comm.rank % 2 and options.get("unlike"):  # as a processor whose kernels store weights in their own order
    settings.add_session_config_entry("ortrain.disable_pass.keep_convolution_weights", "1")
state = CheckpointState.load_checkpoint(options.get("from", artifacts / "checkpoint"))
module = Module(
    artifacts / "training_model.onnx", state, artifacts / "eval_model.onnx", session_options=settings
)
optimizer = Optimizer(artifacts / "optimizer_model.onnx", module)
steps, accumulated = int(options.get("steps", 20)), int(options.get("accumulated", 1))
first = dict(state.properties).get("step", 0)
for option in ("wire", "chunk", "accumulated"):  # of the last rank alone
    if comm.rank == comm.size - 1 and f"other_{option}" in options:
        options[option] = options[f"other_{option}"]
        accumulated = int(options.get("accumulated", 1))
parallel = DataParallel(
    module, optimizer, comm,
    accumulated=accumulated if options.get("overlap", "1") == "1" else None,
    wire=options.get("wire", "float32"),
    chunk_bytes=int(options.get("chunk", 1 << 20)),
    timeout=float(options.get("timeout", 30)),
)  # fmt: skip
losses = []
for step in range(first, first + steps):
    for x, y in batches(step, accumulated, unequal=bool(options.get("unequal"))):
        part = slice(comm.rank * len(y) // comm.size, (comm.rank + 1) * len(y) // comm.size)
        if len(y[part]):
            losses.append(float(parallel(x[part], y[part])))
        else:
            parallel(np.zeros((1, *FEATURES), np.float32), np.zeros(1, np.int64), weight=0)
    if options.get("poison") == f"{step}/{comm.rank}":
        name = next(name for name, p in state.parameters if p.requires_grad)
        state.parameters[name].grad = np.full_like(state.parameters[name].data, np.inf)
    parallel.step()
    parallel.lazy_reset_grad()
state.properties["step"] = first + steps
if "save" in options:
    parallel.save_checkpoint(options["save"], True)
np.savez(
    out / f"rank{comm.rank}.npz",
    losses=np.array(losses),
    skipped=np.array(optimizer.get_skipped_step_count()),
    **{f"w:{name}": p.data for name, p in state.parameters},
)
