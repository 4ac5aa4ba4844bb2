"""Training without gradients: MeZO (Malladi et al., Fine-Tuning Language Models with Just Forward Passes, 2023)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.trainer.core import Trainer

Array = npt.NDArray[Any]

_PART = 1 << 16  # numbers of noise that are made at a time


class MeZO:
    """An optimizer that needs two forward passes for a step, and no backward pass.

    A step draws a direction z of normal numbers, computes the loss at the parameters plus and minus ``epsilon * z`` with the
    eval model, and subtracts ``learning_rate * (plus - minus) / (2 * epsilon) * z``. The direction is made again from its seed
    when it is needed, so a step keeps one copy of the parameters, and no gradients, moments or activations. It takes many more
    steps than an optimizer with gradients.

    Parameters
    ----------
    trainer : Trainer
        The trainer, with an eval model. Its optimizer is not used.
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
        When a setting is out of range, or there is no eval model.
    """

    def __init__(
        self, trainer: Trainer, learning_rate: float, *, epsilon: float = 1e-3, seed: int = 0
    ) -> None:
        for name, value in {"learning_rate": learning_rate, "epsilon": epsilon}.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}: expected a number above 0, found {value}")
        if seed < 0:
            raise ValueError(f"seed: expected 0 or more, found {seed}")
        if not (trainer.folder / "eval_model.onnx").exists():
            raise ValueError(f"MeZO: expected an eval model, found no eval_model.onnx in {trainer.folder}")
        self._trainer, self.learning_rate, self.epsilon, self.seed = trainer, learning_rate, epsilon, seed
        self.steps = 0
        self._values = trainer.module.get_contiguous_parameters(True).numpy().copy()

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
        module = self._trainer.module.eval()
        rows = self._trainer.inputs.take(batch)
        self._move(self.epsilon)
        plus = self._loss(module, rows)
        self._move(-2 * self.epsilon)
        minus = self._loss(module, rows)
        slope = (plus - minus) / (2 * self.epsilon)
        is_finite = math.isfinite(slope)
        self._move(self.epsilon - (self.learning_rate * slope if is_finite else 0.0))
        self._trainer.parameters_changed()
        if not is_finite:
            raise ValueError(f"MeZO: expected finite losses in step {self.steps}, found {plus} and {minus}")
        self.steps += 1
        return (plus + minus) / 2

    def _move(self, distance: float) -> None:
        """Move the parameters along the direction of the step."""
        noise = np.random.Generator(np.random.Philox(key=[self.seed, self.steps]))
        for begin in range(0, len(self._values), _PART):
            part = self._values[begin : begin + _PART]
            part += np.float32(distance) * noise.standard_normal(len(part), np.float32)
        self._trainer.module.copy_buffer_to_parameters(self._values, True)

    def _loss(self, module: Any, rows: tuple[Any, ...]) -> float:
        outputs = module(*rows)
        return float(np.asarray(outputs[0] if isinstance(outputs, (tuple, list)) else outputs).item())
