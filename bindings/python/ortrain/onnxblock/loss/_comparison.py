"""Shared code of losses between a prediction and a target."""

from __future__ import annotations

import numpy as np

from ortrain import _graph
from ortrain.onnxblock.blocks import Block, InputLike, PassThrough, ReduceMean, ReduceSum
from ortrain.onnxblock.loss._values import Value

_REDUCTIONS = ("mean", "sum", "none")


def check_reduction(reduction: str) -> str:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"reduction must be one of {', '.join(_REDUCTIONS)}, not {reduction!r}")
    return reduction


def reduction_block(reduction: str) -> Block:
    if reduction == "mean":
        return ReduceMean(keepdims=False)
    return ReduceSum(keepdims=False) if reduction == "sum" else PassThrough()


class Comparison(Block):
    """A loss between a prediction and a target of the same type and shape."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self._reduce = reduction_block(check_reduction(reduction))

    def _target(self, loss_input_name: str, target_name: str) -> str:
        if _graph.value_exists(self.base, target_name):
            return target_name
        return str(InputLike(loss_input_name)(target_name))

    def _compared(self, loss_input_name: str, target_name: str) -> tuple[str, str]:
        """Return prediction and target, in a form in which a step rejects different shapes.

        If the declared shape of the target is known, the step checks that shape. Otherwise both values pass through a Concat,
        which rejects different shapes; the operators of the loss would broadcast shapes such as [batch] and [batch, 1] to
        [batch, batch].
        """
        target = self._target(loss_input_name, target_name)
        if self._has_known_shape(loss_input_name) and self._has_known_shape(target):
            return loss_input_name, target
        both = [Value(self, value, value).unsqueeze([0]).name for value in (loss_input_name, target)]
        pair = self._add("Concat", both, "prediction_and_target", axis=0)
        numbers = [self._add_initializer("number", np.array(number, np.int64)) for number in (0, 1)]
        return self._add("Gather", [pair, numbers[0]], axis=0), self._add(
            "Gather", [pair, numbers[1]], axis=0
        )

    def _has_known_shape(self, name: str) -> bool:
        """Return whether the model states every dimension of a value."""
        info = _graph.find_value_info(self.base, name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return False
        return all(dim.HasField("value") for dim in info.type.tensor_type.shape.dim)
