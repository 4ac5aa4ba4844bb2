"""The base of losses that are written as formulas."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import onnx

from ortrain import _graph
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.loss._comparison import Comparison, check_reduction, reduction_block
from ortrain.onnxblock.loss._values import Value


class Loss(Comparison):
    """A loss between a prediction and a target of the same type and shape.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses are reduced. Training needs a scalar: "none" is for losses composed of several blocks.
    sample_weights : str, optional
        Name of an input with a weight for each sample, of shape [batch], by which its losses are multiplied. The mean is over the
        number of losses, as in Keras, not over the sum of the weights. The input is added if there is no such value.
    """

    def __init__(self, reduction: str = "mean", sample_weights: str | None = None) -> None:
        super().__init__(reduction)
        self._sample_weights = sample_weights

    @abstractmethod
    def losses(self, prediction: Value, target: Value) -> Value:
        """Add the losses of all elements, or of all samples."""

    def build(self, loss_input_name: str, target_name: str = "target") -> str:
        """Add the loss.

        Parameters
        ----------
        loss_input_name : str
            Name of the prediction.
        target_name : str, default: "target"
            Name of the target; a new input of the prediction's type and shape if there is no such value.

        Returns
        -------
        str
            Name of the loss.
        """
        names = self._compared(loss_input_name, target_name)
        prediction, target = (Value(self, name, loss_input_name) for name in names)
        return self._reduced(self.losses(prediction, target))

    def _reduced(self, losses: Value) -> str:
        return str(self._reduce(weighted(self, losses, self._sample_weights).name))


def weighted(block: Block, losses: Value, sample_weights: str | None) -> Value:
    """Multiply the losses of each sample by its weight, an input of the model."""
    if sample_weights is None:
        return losses
    add_batch_input(block, sample_weights, _graph.element_type(block.base, losses.like))
    # Transposed, the samples are in the last dimension, along which the weights are broadcast.
    return (losses.apply("Transpose") * Value(block, sample_weights, losses.like)).apply("Transpose")


def add_batch_input(block: Block, name: str, kind: int) -> None:
    """Add an input of shape [batch] unless there is a value of that name.

    The dimension gets no name, because a name would have to match the batch of the model's other inputs.
    """
    if not _graph.value_exists(block.base, name):
        block.base.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, [None]))


class SeveralInputs(Block):
    """A loss of several values of a model.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}
        How the losses of all samples are reduced.

    Attributes
    ----------
    outputs : int
        How many values of the model the loss takes.
    has_target : bool
        Whether the loss also takes a target.
    """

    outputs: ClassVar[int] = 2
    has_target: ClassVar[bool] = True

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self._reduce = reduction_block(check_reduction(reduction))
