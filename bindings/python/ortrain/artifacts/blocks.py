"""Losses and optimizers by name, and the block that puts a loss on a model."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ortrain import onnxblock


class LossType(Enum):
    """Losses that :func:`generate_artifacts` can add to a model."""

    MSELoss = 1
    """Mean squared error, :class:`ortrain.onnxblock.loss.MSELoss`."""
    CrossEntropyLoss = 2
    """Cross entropy of scores and class indices, :class:`ortrain.onnxblock.loss.CrossEntropyLoss`. The classes are in the second
    dimension of the scores; in the last one if the network was exported from Keras or JAX, as in their losses."""
    BCEWithLogitsLoss = 3
    """Binary cross entropy of logits, :class:`ortrain.onnxblock.loss.BCEWithLogitsLoss`."""
    L1Loss = 4
    """Mean absolute error, :class:`ortrain.onnxblock.loss.L1Loss`."""


class OptimType(Enum):
    """Optimizers that :func:`generate_artifacts` can create a model for."""

    AdamW = 1
    """AdamW, :class:`ortrain.onnxblock.optim.AdamW`."""
    SGD = 2
    """Stochastic gradient descent, :class:`ortrain.onnxblock.optim.SGD`."""


_LOSSES: dict[LossType, type[onnxblock.Block]] = {
    LossType.MSELoss: onnxblock.loss.MSELoss,
    LossType.CrossEntropyLoss: onnxblock.loss.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: onnxblock.loss.BCEWithLogitsLoss,
    LossType.L1Loss: onnxblock.loss.L1Loss,
}

_OPTIMIZERS: dict[OptimType, type[onnxblock.Block]] = {
    OptimType.AdamW: onnxblock.optim.AdamW,
    OptimType.SGD: onnxblock.optim.SGD,
}

#: Names of these losses elsewhere, in PyTorch and Keras, without underscores.
_ELSEWHERE = {
    "binarycrossentropy": LossType.BCEWithLogitsLoss,
    "binarycrossentropywithlogits": LossType.BCEWithLogitsLoss,
    "categoricalcrossentropy": LossType.CrossEntropyLoss,
    "crossentropy": LossType.CrossEntropyLoss,
    "meanabsoluteerror": LossType.L1Loss,
    "mae": LossType.L1Loss,
    "meansquarederror": LossType.MSELoss,
    "mse": LossType.MSELoss,
    "sparsecategoricalcrossentropy": LossType.CrossEntropyLoss,
}

_ACTIVATIONS = {LossType.CrossEntropyLoss: "Softmax", LossType.BCEWithLogitsLoss: "Sigmoid"}


def activation_of(loss: LossType) -> str | None:
    """Return the operator that a loss applies to the scores that it is given; None if there is none."""
    return _ACTIVATIONS.get(loss)


class LossOnModel(onnxblock.TrainingBlock):
    """The loss on some values of the model, and further outputs."""

    _accumulates_input_gradients = False

    def __init__(
        self, loss: onnxblock.Block, loss_inputs: Sequence[str], other_outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self._loss = loss
        self._loss_inputs = loss_inputs
        self._other_outputs = other_outputs

    def build(self) -> tuple[str, ...]:
        """Return the loss, what its block returns besides, and the further outputs."""
        made = self._loss(*self._loss_inputs)
        return (*([made] if isinstance(made, str) else made), *self._other_outputs)


CLASSES_LAST = ("keras", "jax")
"""The frameworks whose cross entropy has the classes in the last dimension."""


def loss_block(loss: object, class_axis: int | None = None) -> onnxblock.Block:
    """Return the block of a loss, which may be a name, for scores whose classes are in a dimension, if it is known."""
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if loss is LossType.CrossEntropyLoss and class_axis is not None:
        return onnxblock.loss.CrossEntropyLoss(axis=class_axis)
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if isinstance(loss, onnxblock.Block):
        return loss
    name = _name_of(loss)
    same = named_elsewhere(name)
    raise TypeError(f"loss must be a LossType or an onnxblock.Block, not {name}{_remedy(LossType, same)}")


def named_elsewhere(name: str) -> LossType | None:
    """Return the loss that PyTorch or Keras call by a name, such as ``sparse_categorical_crossentropy``."""
    plain = name.replace("_", "").lower()
    own = {member.name.lower(): member for member in LossType}
    return _ELSEWHERE.get(plain.removesuffix("loss")) or own.get(plain) or own.get(f"{plain}loss")


def optimizer_block(optimizer: object) -> onnxblock.Block | None:
    """Return the block of an optimizer, which may be a name."""
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]()
    if isinstance(optimizer, onnxblock.Block) and hasattr(optimizer, "to_model_proto"):
        return optimizer
    name = _name_of(optimizer)
    same = next((member for member in OptimType if member.name.lower() == name.lower()), None)
    raise TypeError(
        "optimizer must be an OptimType or a block that builds a model, such as onnxblock.optim.AdamW, "
        f"not {name}{_remedy(OptimType, same)}"
    )


def _name_of(given: object) -> str:
    """Return the name of a loss or optimizer of a framework, which is a function, a class, an object or a string."""
    return given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)


def _remedy(known: type[Enum], same: Enum | None) -> str:
    return f"; use {same}" if same else f"; there are {', '.join(known.__members__)}"
