"""Losses and optimizers by name, and the block that puts a loss on a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, EnumMeta
from numbers import Real
from typing import TYPE_CHECKING, Any

import onnx

from ortrain import onnxblock
from ortrain._support.counts import counted
from ortrain.onnxblock.loss import LOSSES, SumOfLosses
from ortrain.onnxblock.optim import BLOCKS


class _FromLibrary(EnumMeta):
    """An enumeration whose members type checkers do not see."""

    if TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any: ...


class LossType(Enum, metaclass=_FromLibrary):
    """Losses that :func:`generate_artifacts` can add to a model: one for each loss of :mod:`ortrain.onnxblock.loss`.

    ``LossType.HuberLoss`` stands for :class:`ortrain.onnxblock.loss.HuberLoss` with its defaults. The value is the name on the
    command line, ``"huber"``; the first four have the values that they have in onnxruntime.
    """

    MSELoss = 1
    """Mean squared error, :class:`ortrain.onnxblock.loss.MSELoss`."""
    CrossEntropyLoss = 2
    """Cross entropy of scores and class indices, :class:`ortrain.onnxblock.loss.CrossEntropyLoss`. The classes are in the
    second dimension of the scores. In networks exported from Keras or JAX they are in the last dimension, as in the losses of
    these frameworks."""
    BCEWithLogitsLoss = 3
    """Binary cross entropy of logits, :class:`ortrain.onnxblock.loss.BCEWithLogitsLoss`."""
    L1Loss = 4
    """Mean absolute error, :class:`ortrain.onnxblock.loss.L1Loss`."""

    vars().update({block.__name__: name for name, block in list(LOSSES.items())[4:]})


class OptimType(Enum, metaclass=_FromLibrary):
    """Optimizers that :func:`generate_artifacts` can create a model for: one for each class of :mod:`ortrain.onnxblock.optim`.

    ``OptimType.Lion`` stands for :class:`ortrain.onnxblock.optim.Lion` with its defaults. The value is the name on the command
    line, ``"lion"``; the first two have the values that they have in onnxruntime.
    """

    AdamW = 1
    """AdamW, :class:`ortrain.onnxblock.optim.AdamW`."""
    SGD = 2
    """Stochastic gradient descent, :class:`ortrain.onnxblock.optim.SGD`."""

    vars().update({block.__name__: name for name, block in BLOCKS.items() if name not in ("adamw", "sgd")})


_LOSSES: dict[LossType, type[onnxblock.Block]] = {
    LossType[block.__name__]: block for block in LOSSES.values()
}

#: Names of the losses on the command line and in the trainer, and the members of LossType.
LOSS_NAMES = {name: block.__name__ for name, block in LOSSES.items()}

_OPTIMIZERS: dict[OptimType, type[onnxblock.Block]] = {
    OptimType[block.__name__]: block for block in BLOCKS.values()
}

#: Names of the optimizers on the command line and in the trainer, and the members of OptimType.
OPTIMIZER_NAMES = {name: block.__name__ for name, block in BLOCKS.items()}

#: Names of these losses in PyTorch and Keras, without underscores.
_ELSEWHERE: dict[str, LossType] = {
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

_ACTIVATIONS = {
    LossType.CrossEntropyLoss: "Softmax",
    LossType.SoftCrossEntropyLoss: "Softmax",
    LossType.TokenCrossEntropyLoss: "Softmax",
    LossType.BCEWithLogitsLoss: "Sigmoid",
    LossType.FocalLoss: "Sigmoid",
}


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
    if isinstance(loss, Mapping):
        return _sum_of_losses(loss, class_axis)
    if loss is LossType.CrossEntropyLoss and class_axis is not None:
        return onnxblock.loss.CrossEntropyLoss(axis=class_axis)
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if isinstance(loss, onnxblock.Block):
        return loss
    name = _name_of(loss)
    same = named_elsewhere(name)
    raise TypeError(f"loss must be a LossType or an onnxblock.Block, not {name}{_remedy(LossType, same)}")


def _sum_of_losses(losses: Mapping[Any, Any], class_axis: int | None) -> SumOfLosses:
    """Return the block of losses by output: ``{"logits": "cross_entropy", "energy": ("mse", 0.3)}``."""
    blocks: dict[str | tuple[str, ...], tuple[onnxblock.Block, float]] = {}
    for output, given in losses.items():
        outputs = (output,) if isinstance(output, str) else output
        if not isinstance(outputs, tuple) or not all(isinstance(name, str) for name in outputs):
            raise TypeError(f"loss: expected the name of an output, or a tuple of names, found {output!r}")
        loss, weight = given if isinstance(given, tuple) and len(given) == 2 else (given, 1.0)
        if isinstance(loss, tuple) or isinstance(weight, bool) or not isinstance(weight, Real):
            raise TypeError(
                f"loss: the loss of output {output!r}: expected a loss, or a loss and its weight such as ('mse', 0.3), "
                f"found {given!r}"
            )
        if isinstance(loss, str):
            if loss not in LOSS_NAMES:
                raise ValueError(
                    f"loss: the loss of output {output!r} is {loss!r}, expected one of {', '.join(LOSS_NAMES)}"
                )
            loss = LossType[LOSS_NAMES[loss]]
        block = loss_block(loss, class_axis)
        blocks[output] = (block, float(weight))
    return SumOfLosses(blocks)


def outputs_of_losses(losses: Mapping[Any, Any]) -> list[str]:
    """Return the outputs that losses by output are computed from."""
    return [name for output in losses for name in ((output,) if isinstance(output, str) else output)]


def expect_fitting(loss: LossType, given: Sequence[str], types: Mapping[str, int]) -> None:
    """Reject a loss that takes another number of values than it would get, or class indices where there are none.

    Parameters
    ----------
    loss : LossType
        The loss.
    given : sequence of str
        The values that it would get.
    types : mapping of str to int
        Element types of the outputs of the model, as ONNX numbers them.

    Raises
    ------
    ValueError
        Saying which outputs there are, and how to choose.
    """
    block = _LOSSES[loss]
    outputs, has_target = getattr(block, "outputs", 1), getattr(block, "has_target", True)
    most = outputs + int(has_target)
    indices = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    if outputs <= len(given) <= most and not (
        loss is LossType.CrossEntropyLoss
        and len(given) == most
        and types.get(given[-1], indices[0]) not in indices
    ):
        return
    names = next(name for name, member in LOSS_NAMES.items() if member == loss.name)
    expected = "a prediction" if outputs == 1 else f"{counted(outputs, 'output')} of the model"
    target = "class indices" if loss is LossType.CrossEntropyLoss else "the target"
    raise ValueError(
        f"{loss.name} takes {expected}{f' and, as a last value, {target}' if has_target else ''}, but it would "
        f"get the outputs {', '.join(given)}; choose with loss_input_names, or give each output its loss: "
        f"loss={{{given[0]!r}: {names!r}, ...}}"
    )


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
