"""Parameters as records of Flower: by name, or all trained ones as one array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord

from ortrain.flower.client_replies import ArraySpec, spec_of
from ortrain.trainer import Trainer

Array = npt.NDArray[Any]

BUFFER = "parameters"  # the name of the one array, if parameters are sent as a buffer
# the control variate of SCAFFOLD: in a message the server's, in a reply the client's
CONTROL = "ortrain.control"


def names_of(trainer: Trainer, frozen: bool) -> list[str]:
    """Return the parameters that are sent: those that are trained, and if wanted the frozen ones that can be averaged."""
    return [
        name
        for name, parameter in trainer.state.parameters
        if parameter.requires_grad or (frozen and parameter.data.dtype.kind == "f")
    ]


def flat(trainer: Trainer) -> Array:
    """Return a copy of all trained parameters as one array."""
    return np.asarray(trainer.module.get_contiguous_parameters(True).numpy())


def record_of(trainer: Trainer, names: Sequence[str]) -> ArrayRecord:
    """Return parameters by name, or all trained ones as one array."""
    if list(names) == [BUFFER]:
        return ArrayRecord({BUFFER: array(flat(trainer))})
    return ArrayRecord({name: array(trainer.state.parameters[name].data) for name in names})


def array(values: Array) -> FlowerArray:
    """Return values as Flower sends them."""
    return FlowerArray(np.ascontiguousarray(values))


def specs_of(record: ArrayRecord) -> dict[str, ArraySpec]:
    """Return what arrays have to be that answer those of a record."""
    return {name: spec_of(values.numpy()) for name, values in record.items()}


def readers_of(record: ArrayRecord) -> dict[str, Callable[[], Array]]:
    """Return what reads each array of a record, or raises."""
    return {name: values.numpy for name, values in record.items()}


def set_parameters(trainer: Trainer, record: ArrayRecord) -> list[str]:
    """Give the trainer the parameters of a record; return their names."""
    names = [name for name in record if name != CONTROL]
    known = {name for name, _ in trainer.state.parameters}
    if names == [BUFFER] and BUFFER not in known:
        buffer = record[BUFFER].numpy()
        trainer.module.copy_buffer_to_parameters(buffer.astype(flat(trainer).dtype), True)
    else:
        unknown = [name for name in names if name not in known]
        if unknown:
            raise ValueError(f"the artifacts in {trainer.folder} have no parameter {', '.join(unknown)}")
        for name in names:
            before = trainer.state.parameters[name].data.dtype  # some strategies return doubles
            trainer.state.parameters[name] = record[name].numpy().astype(before)
    trainer.parameters_changed()
    return names
