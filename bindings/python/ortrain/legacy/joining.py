"""How a session joins the other processes that train with it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ortrain import _ortrain
from ortrain._files.reading import open_file
from ortrain._support.checks import invalid
from ortrain.api.generated.node_arg import NodeArg
from ortrain.distributed.communicator import Communicator
from ortrain.legacy.generated.training_parameters import TrainingParameters
from ortrain.options import SessionOptions

GRADIENT_TYPE = "ortrain.gradient_type"
"""The entry of the session configuration with the type in which gradients travel."""


def complete_sizes(parameters: TrainingParameters) -> None:
    """Set data_parallel_size from the others where it was left at 1.

    Raises
    ------
    InvalidArgumentError
        If the other sizes do not divide world_size.
    """
    others = parameters.horizontal_parallel_size * parameters.pipeline_parallel_size
    if others < 1 or parameters.data_parallel_size != 1 or parameters.world_size == others:
        return  # the core checks the product
    if parameters.world_size % others:
        raise invalid(
            f"world_size, {parameters.world_size}, is not a multiple of horizontal_parallel_size * pipeline_parallel_size, "
            f"{parameters.horizontal_parallel_size} * {parameters.pipeline_parallel_size}"
        )
    parameters.data_parallel_size = parameters.world_size // others
    warnings.warn(f"data_parallel_size is set to {parameters.data_parallel_size}", stacklevel=3)


def setting(options: SessionOptions, key: str, otherwise: str) -> str:
    """Return an entry of the session configuration."""
    return options.get_session_config_entry(key) if options.has_session_config_entry(key) else otherwise


def gradient_type(options: SessionOptions) -> str:
    """Return the type in which gradients travel."""
    return setting(options, GRADIENT_TYPE, "float32")


OWN_MEMBERS = ("world_rank", "weights_to_train", "weights_not_to_train", "optimizer_attributes_map",
               "optimizer_int_attributes_map", "model_after_graph_transforms_path", "model_with_gradient_graph_path",
               "model_with_training_graph_path")  # fmt: skip
"""Members of the parameters that may differ between processes; sessions compare the names of their weights."""


def join(parameters: TrainingParameters, options: SessionOptions) -> Communicator:
    """Join the other processes.

    Raises
    ------
    InvalidArgumentError
        If the processes that MPI has started are not those of the parameters.
    """
    ranks = Communicator(timeout=float(setting(options, "ortrain.communication_timeout", "300")))
    if (ranks.size, ranks.rank) != (parameters.world_size, parameters.world_rank):
        raise invalid(
            f"world_rank is {parameters.world_rank} of world_size {parameters.world_size}, but MPI has made this process "
            f"rank {ranks.rank} of {ranks.size}; take both from mpi4py, and start with mpiexec -n {parameters.world_size}"
        )
    found = ranks.gather(shared_members(parameters), "comparing the parameters")
    for rank, others in enumerate(found):
        for name, value in others.items():
            if value != found[0][name]:
                raise invalid(
                    f"TrainingParameters.{name} differs: {found[0][name]!r} on rank 0, {value!r} on rank {rank}"
                )
    ranks.expect_equal(gradient_type(options), GRADIENT_TYPE)
    return ranks


def shared_members(parameters: TrainingParameters) -> dict[str, Any]:
    """Return the members of the parameters that are the same in all processes, by name."""
    return {name: getattr(parameters, name) for name in parameters._types if name not in OWN_MEMBERS}


@dataclass(frozen=True)
class Job:
    """A session that is one of several which train together.

    Attributes
    ----------
    handle : SessionHandle
        The session.
    ranks : Communicator
        The processes.
    parameters : TrainingParameters
        Its settings.
    options : SessionOptions
        More of them.
    inputs, outputs : sequence of NodeArg
        Those of its graph.
    """

    handle: _ortrain.SessionHandle
    ranks: Communicator
    parameters: TrainingParameters
    options: SessionOptions
    inputs: Sequence[NodeArg]
    outputs: Sequence[NodeArg]


def expect_same_model(ranks: Communicator, path_or_bytes: str | bytes) -> None:
    """Raise on every rank unless all have the same model: parts of different ones make no whole."""
    data = path_or_bytes
    if not isinstance(data, bytes):
        with open_file(data, "model") as file:
            data = file.read()
    ranks.expect_equal(hashlib.sha256(data).hexdigest(), "the model, by its SHA-256,")
