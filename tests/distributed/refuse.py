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
    bound = members.pop("bound", None)
    own = members.pop("of rank 1", {})
    wire = members.pop("wire of rank 1", None)
    if comm.rank == 1:
        members.update(
            {name: set(value) if isinstance(value, list) else value for name, value in own.items()}
        )
    settings = parameters("AdamOptimizer", **{"world_size": comm.size, **members}, world_rank=comm.rank)
    try:
        options = ortrain.SessionOptions()
        if wire is not None and comm.rank == 1:
            options.add_session_config_entry("ortrain.gradient_type", wire)
        session = ortrain.TrainingSession(mlp(), settings, options)
        feed = {**batch(0, 16), "Learning_Rate": np.ones(1, np.float32)}
        if bound is not None:
            binding = session.io_binding()
            for name in bound["inputs"]:
                binding.bind_cpu_input(name, feed.get(name, feed["x"]))
            for name in bound["outputs"]:
                binding.bind_output(name)
            session.run_with_iobinding(binding)
        session.run(["loss"], feed)
        print("taken", members)
    except ortrain.OrtrainError as error:
        print("refused" if re.search(message, str(error)) else f"another error: {message}: {error}")
    comm.Barrier()
