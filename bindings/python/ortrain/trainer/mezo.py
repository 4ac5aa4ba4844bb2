"""Training without gradients: MeZO (Malladi et al., Fine-Tuning Language Models with Just Forward Passes, 2023)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain.api import CheckpointState, Module
from ortrain.errors import InvalidArgumentError
from ortrain.trainer.data import Batch, rows_in
from ortrain.trainer.gradients import Gradients, first_output

Array = npt.NDArray[Any]

NAME = "mezo"
"""The name of the optimizer on the command line and in the trainer."""

_PROPERTY = "ortrain.mezo"  # the property of a checkpoint that holds epsilon
_PART = 1 << 16  # random numbers that are drawn at a time
_RATE, _HIGHEST = 10.0, 1e-2  # the default rate is _RATE / trained elements, and _HIGHEST at most


@dataclass(frozen=True)
class MeZO:
    """An optimizer that needs two forward passes for a step, and no backward pass: ``Trainer(..., optimizer=MeZO())``.

    A step draws a direction z of normal numbers, and computes the loss at the parameters plus and minus ``epsilon * z``
    with the eval model. ``(plus - minus) / (2 * epsilon) * z`` is its estimate of the gradient, with which SGD takes
    the step. The direction is recomputed from the seed of the trainer and the number of the step whenever it is needed.
    So a step keeps neither activations nor moments, and a resumed run has the same bits. It takes many more steps than
    an optimizer with gradients.

    The default learning rate is 10 / number of trained elements, at most 0.01: it is much smaller than that of SGD, because
    the norm of z grows with the number of elements.

    Parameters
    ----------
    epsilon : float, default 1e-3
        How far the parameters are moved.

    Raises
    ------
    ValueError
        When epsilon is not a number above 0.
    """

    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"MeZO: expected an epsilon above 0, found {self.epsilon}")


def mezo_of(optimizer: Any) -> MeZO | None:
    """Return the settings of MeZO if an optimizer is MeZO, by its name or as an object; None for another optimizer."""
    if isinstance(optimizer, MeZO):
        return optimizer
    return MeZO() if isinstance(optimizer, str) and optimizer == NAME else None


def check_mezo(folder: Path, optimizer: Any) -> None:
    """Reject MeZO for a folder of artifacts that were made for another optimizer, or for another epsilon.

    Raises
    ------
    ValueError
        When the artifacts are such.
    """
    wanted = mezo_of(optimizer)
    if wanted is None:
        return
    found = stored_in(CheckpointState.map_checkpoint(folder / "checkpoint"))
    if found is None or (isinstance(optimizer, MeZO) and wanted != found):
        raise ValueError(
            f"optimizer: expected artifacts that were made for {wanted}, found those in {folder} for "
            f"{found or 'another optimizer'}; `ortrain artifacts MODEL --loss LOSS --optimizer mezo` makes such "
            "artifacts"
        )


def store(state: CheckpointState, mezo: MeZO) -> None:
    """Note in a state that its artifacts are made for MeZO."""
    state.properties[_PROPERTY] = repr(
        float(mezo.epsilon)
    )  # as text, because a property with a number has only 32 bits


def stored_in(state: CheckpointState) -> MeZO | None:
    """Return the settings of MeZO that a state has; None if its artifacts are made for another optimizer."""
    return MeZO(float(str(state.properties[_PROPERTY]))) if _PROPERTY in state.properties else None


def _has_average(module: Module) -> bool:
    """Whether the optimizer of a module averages weights."""
    try:
        _ortrain.use_average_weights(module._handle, True)
    except InvalidArgumentError:
        return False
    return True


class EstimatedGradients(Gradients):
    """Gradients that are estimated from two forward passes.

    Parameters
    ----------
    mezo : MeZO
        The settings.
    state : CheckpointState
        The parameters.
    module : Module
        The module whose optimizer has groups of parameters. It is not kept.
    seed : int
        Seed of the directions.
    """

    def __init__(self, mezo: MeZO, state: CheckpointState, module: Module, seed: int) -> None:
        self.settings = {"mezo": f"epsilon {mezo.epsilon:g}"}
        self._epsilon, self._state, self._seed = mezo.epsilon, state, seed
        self._names = [name for name, parameter in state.parameters if parameter.requires_grad]
        self.default_rate = min(_HIGHEST, _RATE / max(1, module.get_parameters_size(True)))
        self._groups = {name: _ortrain.get_parameter_group(module._handle, name) for name in self._names}
        self._averages = _has_average(module)
        self._at: dict[str, float] = {}  # the distance of each parameter from its value before the step
        self._frozen: set[str] = set()
        # the sum of derivatives, each times the rows of its batch; the rows; the step
        self._sum, self._rows, self._step = 0.0, 0, -1

    def begin(self, steps: int | None, kept: Mapping[str, Any]) -> None:
        """Forget a step that was not completed."""
        self._sum, self._rows, self._step = 0.0, 0, -1

    def compute(self, module: Module, batch: Batch, read: Sequence[int]) -> Any:
        """Estimate the gradients of a batch."""
        step = _ortrain.checkpoint_get_optimizer_step_count(self._state._handle)
        if step != self._step:
            self._sum, self._rows, self._step = 0.0, 0, step
            self._frozen = self._frozen_in(module)
        module.eval()
        if self._averages:  # eval steps would use the averages instead of the parameters
            _ortrain.use_average_weights(module._handle, False)
        try:
            self._move(self._epsilon)
            plus = float(np.asarray(first_output(module(*batch))).item())
            self._move(-self._epsilon)
            outputs = module(*batch)
            minus = float(np.asarray(first_output(outputs)).item())
            # All batches of a step use one direction, so the mean of their derivatives gives the mean of their gradients.
            rows = rows_in(batch)
            self._sum += rows * (plus - minus) / (2 * self._epsilon)
            self._rows += rows
            self._move(0.0, self._sum / max(1, self._rows))
        except BaseException:
            self._move(0.0)
            raise
        finally:
            if self._averages:
                _ortrain.use_average_weights(module._handle, True)
            module.train()
        mean = np.float32((plus + minus) / 2)
        return [mean, *outputs[1:]] if isinstance(outputs, (tuple, list)) else [mean]

    def _frozen_in(self, module: Module) -> set[str]:
        """Return the parameters that the step does not change, because their group has a learning rate of 0."""
        factors = {
            group: _ortrain.get_optimizer_group_attribute(module._handle, group, "learning_rate_factor")
            for group in set(self._groups.values())
        }
        return {name for name, group in self._groups.items() if factors[group] == 0}

    def _move(self, place: float, derivative: float | None = None) -> None:
        """Move the parameters along the direction of the step to a distance; set gradients if the derivative is given."""
        noise = np.random.Generator(np.random.Philox(key=[self._seed, self._step]))
        parameters = self._state.parameters
        for name in self._names:  # one parameter at a time: a copy of all would double the memory
            if name in self._frozen:
                continue
            values = np.array(parameters[name].data)
            flat = values.reshape(-1)
            gradient = None if derivative is None else np.empty(len(flat), values.dtype)
            distance = np.float32(place - self._at.get(name, 0.0))
            for begin in range(0, len(flat), _PART):
                part = flat[begin : begin + _PART]
                direction = noise.standard_normal(len(part), np.float32)
                part += distance * direction
                if gradient is not None:
                    gradient[begin : begin + _PART] = np.float32(derivative) * direction
            parameters[name] = values
            self._at[name] = place
            if gradient is not None:
                parameters[name].grad = gradient.reshape(values.shape)
