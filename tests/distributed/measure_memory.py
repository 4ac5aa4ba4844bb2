"""A program for several processes: writes the megabytes of each rank after training with a ZeRO stage to a folder."""

from __future__ import annotations

import ctypes
import pathlib
import sys

import numpy as np
import ortrain
from legacy_models import parameters, serialized, tensor
from mpi4py import MPI
from onnx import helper

WIDTH = 2450  # 6 million weights
comm = MPI.COMM_WORLD
model = serialized(
    [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ],
    [tensor("x", ["n", WIDTH])],
    [tensor("loss", [])],
    {"w": np.ones((WIDTH, WIDTH), np.float32)},
)
members = {
    "world_rank": comm.rank,
    "world_size": comm.size,
    "data_parallel_size": comm.size,
    "deepspeed_zero_stage": int(sys.argv[1]),
}
session = ortrain.TrainingSession(
    model, parameters("AdamOptimizer", ("w",), allreduce_post_accumulation=True, **members)
)
for _ in range(2):
    session.run(["loss"], {"x": np.ones((2, WIDTH), np.float32), "Learning_Rate": np.ones(1, np.float32)})
del model
ctypes.CDLL(None).malloc_trim(0)  # what is free counts as free
with open("/proc/self/status") as status:
    (line,) = (line for line in status if line.startswith("VmRSS"))
(pathlib.Path(sys.argv[2]) / f"{comm.rank}.txt").write_text(str(int(line.split()[1]) / 1000))
