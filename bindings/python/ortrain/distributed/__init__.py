"""Training over several processes on MPI; needs ``ortrain[mpi]``.

Processes are started by MPI: ``mpiexec -n 4 python train.py``. :class:`DataParallel` trains a module;
:class:`ortrain.TrainingSession` takes sizes and options from its parameters.
"""

from __future__ import annotations

from ortrain.distributed.communicator import Communicator, LostRankError
from ortrain.distributed.data_parallel import DataParallel
from ortrain.distributed.horizontal import HorizontalTraining
from ortrain.distributed.pipeline import PipelineTraining
from ortrain.distributed.training import Job, SharedTraining, gather_state

__all__ = ["Communicator", "DataParallel", "LostRankError", "gather_state"]


def share_training(job: Job) -> SharedTraining:
    """Return what runs a session whose parameters name several processes."""
    if job.parameters.pipeline_parallel_size > 1:
        return PipelineTraining(job)
    if job.parameters.horizontal_parallel_size > 1:
        return HorizontalTraining(job)
    return SharedTraining(job)
