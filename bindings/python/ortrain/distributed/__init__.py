"""Training over several processes on MPI; needs ``ortrain[mpi]``.

Processes are started by MPI: ``mpiexec -n 4 python train.py``. :class:`DataParallel` trains a module;
:class:`ortrain.TrainingSession` takes sizes and options from its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ortrain.distributed.communicator import Communicator, LostRankError
from ortrain.distributed.data_parallel import DataParallel
from ortrain.distributed.horizontal import HorizontalTraining
from ortrain.distributed.pipeline import PipelineTraining
from ortrain.distributed.training import SharedTraining, gather_state

if TYPE_CHECKING:
    from ortrain import _ortrain
    from ortrain.api.generated.node_arg import NodeArg
    from ortrain.api.generated.training_parameters import TrainingParameters
    from ortrain.options import SessionOptions

__all__ = ["Communicator", "DataParallel", "LostRankError", "gather_state"]


def share_training(
    handle: _ortrain.SessionHandle,
    ranks: Communicator,
    parameters: TrainingParameters,
    options: SessionOptions,
    inputs: Sequence[NodeArg],
    outputs: Sequence[NodeArg],
) -> SharedTraining:
    """Return what runs a session whose parameters name several processes."""
    if parameters.pipeline_parallel_size > 1:
        return PipelineTraining(handle, ranks, parameters, options, inputs, outputs)
    if parameters.horizontal_parallel_size > 1:
        return HorizontalTraining(handle, ranks, parameters, options)
    return SharedTraining(handle, ranks, parameters, options)
