"""Training over several processes on MPI; needs ``ortrain[mpi]``.

Processes are started by MPI: ``mpiexec -n 4 python train.py``. :class:`DataParallel` trains a module;
:class:`ortrain.TrainingSession` takes sizes and options from its parameters.
"""

from __future__ import annotations

from ortrain.distributed.communicator import Communicator, LostRankError
from ortrain.distributed.data_parallel import DataParallel
from ortrain.distributed.gathering import gather_state

__all__ = ["Communicator", "DataParallel", "LostRankError", "gather_state"]
