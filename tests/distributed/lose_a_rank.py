"""A program of which one rank is lost after it has saved a checkpoint. Usage: lose_a_rank.py ARTIFACTS HOW TIMEOUT."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import numpy as np
from modules import FEATURES, batches
from mpi4py import MPI
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.distributed import DataParallel, LostRankError

artifacts, how, timeout = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
rank = MPI.COMM_WORLD.rank
(artifacts / f"process of {rank}").write_text(str(os.getpid()))
settings = SessionOptions()
settings.intra_op_num_threads = 1
state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
module = Module(
    artifacts / "training_model.onnx", state, artifacts / "eval_model.onnx", session_options=settings
)
parallel = DataParallel(
    module, Optimizer(artifacts / "optimizer_model.onnx", module), accumulated=1, timeout=timeout
)


def step_of(step: int) -> None:
    ((x, y),) = batches(step)
    if step == 2 and rank == 1:
        if how == "hangs":
            time.sleep(1000)
        if how in ("dies", "freezes"):
            os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)
        if how == "exits":
            sys.exit(0)
        if how == "raises_outside":
            raise ValueError("a bug of the program")
        if how == "raises":
            parallel(np.zeros((2, *FEATURES), np.float64), np.zeros(2, np.int64))  # of a type that is refused
    if step == 3 and rank == 0:
        print("rank 1 was not lost")
    parallel(x[rank * 8 : rank * 8 + 8], y[rank * 8 : rank * 8 + 8])
    parallel.step()
    parallel.lazy_reset_grad()
    state.properties["step"] = step + 1
    if step < 2:
        parallel.save_checkpoint(artifacts / "saved", True)


try:
    for number in range(4):
        step_of(number)
except LostRankError as lost:  # what ranks print at the same time may mix
    (artifacts / f"report of {rank}").write_text(f"{lost.ranks} {lost}")
    raise
