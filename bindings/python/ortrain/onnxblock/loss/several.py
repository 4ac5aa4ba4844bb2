"""A sum of losses over several outputs of a model."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.loss._values import Value


class SumOfLosses(Block):
    """The weighted sum of losses, each of an output of the model and a target.

    The target of output ``logits`` is the input ``logits_target``.

    Parameters
    ----------
    losses : mapping of str or tuple of str to tuple of Block and float
        For an output, or several that one loss takes, the loss and its weight.
    """

    def __init__(self, losses: Mapping[str | tuple[str, ...], tuple[Block, float]]) -> None:
        super().__init__()
        if not losses:
            raise ValueError("a sum of losses needs at least one loss")
        for output, (_, weight) in losses.items():
            if not math.isfinite(weight):
                raise ValueError(
                    f"the weight of the loss of {output!r} must be a finite number, found {weight}"
                )
        self._losses = dict(losses)

    def build(self, *_names: str) -> str:
        """Add the losses and their sum.

        Returns
        -------
        str
            Name of the sum.
        """
        total: Value | None = None
        for outputs, (block, weight) in self._losses.items():
            names = (outputs,) if isinstance(outputs, str) else outputs
            target = (f"{names[0]}_target",) if getattr(block, "has_target", True) else ()
            loss = Value(self, str(block(*names, *target)), names[0])
            term = loss if weight == 1 else loss * weight
            total = term if total is None else total + term
        assert total is not None
        return total.name
