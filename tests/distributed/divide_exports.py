"""A program for several processes: trains exported models whole and with divided layers, and saves how they differ.

Usage: divide_exports.py OUT FOLDER...; each folder has model.onnx, and inputs in record.npz.
"""

from __future__ import annotations

import json
import pathlib
import sys

import numpy as np
import onnx
import ortrain
from layers import with_square_loss
from legacy_models import parameters
from mpi4py import MPI
from ortrain.distributed import gather_state

STEPS = 2
comm = MPI.COMM_WORLD
results: dict[str, tuple[int, float]] = {}
for folder in map(pathlib.Path, sys.argv[2:]):
    model = onnx.load(folder / "model.onnx")
    record = np.load(folder / "record.npz")
    feed = {entry.name: record[f"in/{entry.name}"] for entry in model.graph.input}
    for entry in model.graph.input:
        for dim, size in zip(entry.type.tensor_type.shape.dim, feed[entry.name].shape, strict=True):
            dim.dim_value = size
    feed["Learning_Rate"] = np.array([0.1], np.float32)
    floats = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    names = tuple(t.name for t in floats if 0 < len(t.dims) < 3)  # others are constants
    data = with_square_loss(model)
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("ortrain.communication_timeout", "30")
    whole, divided = (
        ortrain.TrainingSession(
            data, parameters("SGDOptimizer", names, enable_grad_norm_clip=False, **members), options
        )
        for members in (
            {},
            {"world_rank": comm.rank, "world_size": comm.size, "horizontal_parallel_size": comm.size},
        )
    )
    for _ in range(STEPS):
        for session in (whole, divided):
            session.run(["loss"], feed)
    expected, found = whole.get_state(), gather_state(divided)
    assert expected.keys() == found.keys()
    difference = max(float(np.abs(expected[name] - found[name]).max()) for name in names if name in expected)
    results[folder.name] = len(divided.get_partition_info_map()), difference
if comm.rank == 0:
    pathlib.Path(sys.argv[1]).write_text(json.dumps(results))
