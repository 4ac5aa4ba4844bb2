"""A program for several processes: trains a TrainingSession whose layers are divided, and saves what every rank has.

Usage: train_layers.py OUT SETTINGS, with SETTINGS in JSON.
"""

from __future__ import annotations

import json
import pathlib
import pickle
import sys

from layers import Layers, session_of, train
from mpi4py import MPI
from ortrain.distributed import LostRankError, gather_state
from ortrain.legacy import training_session

out, settings = pathlib.Path(sys.argv[1]), Layers(**json.loads(sys.argv[2]))
comm = MPI.COMM_WORLD
settings.members.update(world_rank=comm.rank, world_size=comm.size)
if settings.unlike:  # what comparing the models would miss
    training_session.expect_same_model = lambda *_: None
session = session_of(settings)
if settings.load:
    session.load_state(pickle.loads(pathlib.Path(settings.load).read_bytes()))
if settings.parts:
    train(session, settings, comm.rank, comm.size)
if settings.lost:
    try:
        train(session, Layers(settings.model, steps=2 if comm.rank == 1 else 4, evaluates=False))
    except LostRankError as lost:
        (out / f"report of {comm.rank}").write_text(f"{lost.ranks} {lost}")
    sys.exit(0)
width = settings.members["horizontal_parallel_size"]
record = train(session, settings, comm.rank // width, comm.size // width)
whole = gather_state(session)
if comm.rank == 0:
    (out / "state.pickle").write_bytes(pickle.dumps(whole))
(out / f"rank{comm.rank}.pickle").write_bytes(
    pickle.dumps(
        {
            "state": session.get_state(),
            "model": session.get_model_state(True),
            "optimizer": session.get_optimizer_state(),
            "partition": session.get_partition_info_map(),
            **record,
        }
    )
)
