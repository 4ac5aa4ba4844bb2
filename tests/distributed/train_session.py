"""A program for several processes: trains a TrainingSession on parts of fixed batches and saves what every rank has.

Usage: train_session.py OUT SETTINGS, with SETTINGS in JSON.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import sys

from mpi4py import MPI
from ortrain.distributed import gather_state
from sessions import Settings, session_of, train

out, settings = pathlib.Path(sys.argv[1]), Settings(**json.loads(sys.argv[2]))
comm = MPI.COMM_WORLD
settings.members.update(world_rank=comm.rank, world_size=comm.size)
session = session_of(settings)
if settings.load:
    path = f"{settings.load}.{comm.rank}" if settings.own_state else settings.load
    session.load_state(pickle.loads(pathlib.Path(path).read_bytes()))
width = comm.size // settings.members.get("pipeline_parallel_size", 1)
record = train(session, settings, comm.rank % width, width)
if settings.own_state:
    (out / f"own.{comm.rank}").write_bytes(pickle.dumps(session.get_state()))
whole = gather_state(session)
if comm.rank == 0:
    (out / "state.pickle").write_bytes(pickle.dumps(whole))
(out / f"rank{comm.rank}.pickle").write_bytes(
    pickle.dumps(
        {
            "state": session.get_state(),
            "model": session.get_model_state(),
            "optimizer": session.get_optimizer_state(),
            "partition": session.get_partition_info_map(),
            "inputs": [entry.name for entry in session.get_inputs()],
            "outputs": [entry.name for entry in session.get_outputs()],
            **record,
        }
    )
)
