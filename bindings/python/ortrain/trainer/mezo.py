"""Training without gradients: MeZO (Malladi et al., Fine-Tuning Language Models with Just Forward Passes, 2023)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ortrain.api import CheckpointState, Module

_PART = 1 << 16  # numbers of noise that are made at a time


class MeZO:
    """An optimizer that needs two forward passes for a step, and no backward pass.

    A step draws a direction z of normal numbers, computes the loss at the parameters plus and minus ``epsilon * z`` with the
    eval model, and subtracts ``learning_rate * (plus - minus) / (2 * epsilon) * z``. The direction is made again from its seed
    when it is needed, so a step keeps no gradients, moments or activations. It takes many more steps than an optimizer with
    gradients.

    Parameters
    ----------
    module : Module
        The models, with an eval model. It needs no `Optimizer`, whose moments take twice the memory of the parameters. That of a
        trainer may be given too; call `Trainer.parameters_changed` before it predicts.
    state : CheckpointState
        The parameters of the module.
    learning_rate : float
        The learning rate; much smaller than that of SGD, because the norm of z grows with the number of parameters.
    epsilon : float, default 1e-3
        How far the parameters are moved.
    seed : int, default 0
        Seed of the directions.

    Attributes
    ----------
    steps : int
        The steps taken. Set it, with the same seed, to go on after a checkpoint was loaded.

    Raises
    ------
    ValueError
        When a setting is out of range.
    """

    def __init__(
        self,
        module: Module,
        state: CheckpointState,
        learning_rate: float,
        *,
        epsilon: float = 1e-3,
        seed: int = 0,
    ) -> None:
        for name, value in {"learning_rate": learning_rate, "epsilon": epsilon}.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: expected a number above 0, found {value}")
        if seed < 0:
            raise ValueError(f"seed: expected 0 or more, found {seed}")
        self._module, self._state = module, state
        self.learning_rate, self.epsilon, self.seed = learning_rate, epsilon, seed
        self.steps = 0
        self._names = [name for name, parameter in state.parameters if parameter.requires_grad]

    def step(self, *batch: Any) -> float:
        """Take a step, and return the mean of its two losses.

        Parameters
        ----------
        *batch : array
            The inputs of the model, in their order.

        Raises
        ------
        ValueError
            When a loss is not finite. The parameters are then as before the step.
        """
        self._module.eval()
        self._move(self.epsilon)
        plus = self._loss(batch)
        self._move(-2 * self.epsilon)
        minus = self._loss(batch)
        derivative = (plus - minus) / (2 * self.epsilon)
        is_finite = math.isfinite(derivative)
        self._move(self.epsilon - (self.learning_rate * derivative if is_finite else 0.0))
        if not is_finite:
            raise ValueError(f"MeZO: expected finite losses in step {self.steps}, found {plus} and {minus}")
        self.steps += 1
        return (plus + minus) / 2

    def _move(self, distance: float) -> None:
        """Move the parameters along the direction of the step."""
        noise = np.random.Generator(np.random.Philox(key=[self.seed, self.steps]))
        parameters = self._state.parameters
        for name in self._names:  # one at a time: a copy of all would double the memory
            values = np.array(parameters[name].data)
            flat = values.reshape(-1)
            for begin in range(0, len(flat), _PART):
                part = flat[begin : begin + _PART]
                part += np.float32(distance) * noise.standard_normal(len(part), np.float32)
            parameters[name] = values

    def _loss(self, batch: tuple[Any, ...]) -> float:
        outputs = self._module(*batch)
        return float(np.asarray(outputs[0] if isinstance(outputs, (tuple, list)) else outputs).item())
