"""Elastic weight consolidation: a penalty for changes of weights that mattered before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain.onnxblock.blocks import Block


class ElasticWeights(Block):
    """A loss, and a penalty for weights that leave the values that they have in the model.

    The penalty is ``strength / 2 · sum(importance · (weight - start)²)`` over all elements of all named weights (Kirkpatrick et
    al., Overcoming catastrophic forgetting in neural networks, 2017, equation 3). The start values are those of the given
    model, so make artifacts of the model that was trained before, as an export writes it.

    Parameters
    ----------
    loss : Block
        The loss of the new data.
    importance : mapping of str to array
        For each weight, by its name in the model, the importance of each element: the diagonal of the Fisher information that
        `ortrain.trainer.fisher` returns.
    strength : float
        The factor of the penalty.

    Raises
    ------
    ValueError
        When the strength or an importance is negative or not finite, or there is no importance.
    """

    def __init__(self, loss: Block, importance: Mapping[str, npt.ArrayLike], strength: float) -> None:
        super().__init__()
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"strength: expected 0 or more, found {strength}")
        if not importance:
            raise ValueError("importance: expected an array for each weight, found none")
        self._loss, self._strength = loss, float(strength)
        self._importance = {name: np.asarray(values) for name, values in importance.items()}
        for name, values in self._importance.items():
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ValueError(f"importance: expected finite numbers of 0 or more for {name}")

    def build(self, *arguments: Any, **named: Any) -> str:
        """Add the loss, which takes the arguments, and the penalty.

        Returns
        -------
        str
            Name of the sum.

        Raises
        ------
        ValueError
            When the model has no weight of a name, or one of another shape.
        """
        weights = {tensor.name: tensor for tensor in self.base.graph.initializer}
        terms = [self._term(weights, name, values) for name, values in self._importance.items()]
        total = self._loss(*arguments, **named)
        for term in terms:
            total = self._add("Add", [total, term])
        return str(total)

    def _term(self, weights: Mapping[str, onnx.TensorProto], name: str, importance: npt.NDArray[Any]) -> str:
        """Add the penalty of a weight."""
        if name not in weights:
            raise ValueError(
                f"importance: the model has no weight {name!r}; it has {', '.join(list(weights)[:20])}"
                f"{', ...' if len(weights) > 20 else ''}"
            )
        start = onnx.numpy_helper.to_array(weights[name])
        if start.shape != importance.shape:
            raise ValueError(
                f"importance: expected the shape {list(start.shape)} of the weight {name}, found {list(importance.shape)}"
            )
        factors = (importance.astype(np.float64) * (self._strength / 2)).astype(start.dtype)
        # Constants, because numbers among the weights might be trained.
        held, factor = (
            self._add("Constant", [], value=onnx.numpy_helper.from_array(np.ascontiguousarray(value)))
            for value in (start, factors)
        )
        change = self._add("Sub", [name, held])
        return self._add(
            "ReduceSum", [self._add("Mul", [factor, self._add("Mul", [change, change])])], keepdims=0
        )
