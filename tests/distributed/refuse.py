"""A program for several processes: prints for each case whether the session refuses it with the message."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import ortrain
from legacy_models import batch, mlp, parameters
from mpi4py import MPI

comm = MPI.COMM_WORLD
for members, message in json.loads(sys.argv[1]):
    settings = parameters("AdamOptimizer", **{"world_size": comm.size, **members}, world_rank=comm.rank)
    try:
        session = ortrain.TrainingSession(mlp(), settings)
        session.run(["loss"], {**batch(0, 16), "Learning_Rate": np.ones(1, np.float32)})
        print("taken", members)
    except ortrain.OrtrainError as error:
        print("refused" if re.search(message, str(error)) else f"another error: {message}: {error}")
    comm.Barrier()
