"""Augmented batches: the batches of a source, with pictures that are changed differently in every epoch.

Random choices depend only on the seed, the epoch and the number of the batch, so a resumed run sees the pictures that
the interrupted one would have seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.preprocessing.augmentation import Augmentation
from ortrain.trainer.checks import Form
from ortrain.trainer.data import Batch, Inputs, Source
from ortrain.trainer.weighting import WEIGHTS

Array = npt.NDArray[Any]

_CHANNELS = (1, 3, 4)
_STREAM = 0xA06  # part of the seed; makes these random numbers differ from those for the order of rows


class Augmented:
    """A source whose pictures are changed.

    Parameters
    ----------
    source : Source
        Where the batches come from.
    augmentation : Augmentation
        The changes of the pictures.
    inputs : Inputs
        The inputs of the model.
    seed : int
        Seed of the random choices.

    Raises
    ------
    ValueError
        When the model takes no pictures, or its loss no mixed targets.
    """

    def __init__(self, source: Source, augmentation: Augmentation, inputs: Inputs, seed: int) -> None:
        self._source, self._augmentation, self._seed = source, augmentation, seed
        self._place = check_inputs(augmentation, inputs)
        self.steps, self.columns = source.steps, source.columns
        # a thread changes the pictures of the next batches while steps run
        self.prefetch = max(2, source.prefetch)

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number ``first`` on."""
        for number, batch in enumerate(self._source.batches(epoch, first), start=first):
            rng = np.random.default_rng([self._seed, _STREAM, epoch, number])
            yield self._changed(batch, rng)

    def _changed(self, batch: Batch, rng: np.random.Generator) -> Batch:
        given = batch[self._place]
        if not len(given):  # a private step may draw zero rows
            return batch
        axis = channel_axis(given.shape)
        pictures = given[:, None] if axis is None else np.moveaxis(given, axis, 1)
        pictures = pictures.astype(np.float32) if given.dtype.itemsize < 4 else pictures
        pictures = self._augmentation.pictures(pictures, rng)
        pictures, target = self._augmentation.mixed(pictures, batch[-1], rng)
        pictures = pictures[:, 0] if axis is None else np.moveaxis(pictures, 1, axis)
        changed = [*batch[:-1], target]
        changed[self._place] = np.ascontiguousarray(pictures, given.dtype)
        return tuple(changed)


def channel_axis(shape: Sequence[Any]) -> int | None:
    """Return the dimension of the channels of pictures; None if they have none."""
    if len(shape) == 3:
        return None
    return -1 if shape[1] not in _CHANNELS and shape[-1] in _CHANNELS else 1


def check_inputs(augmentation: Augmentation, inputs: Inputs) -> int:
    """Return the number of the input with the pictures.

    Raises
    ------
    ValueError
        When there is no such input, or the target does not allow the augmentation.
    """
    features = [form for form in inputs.forms if not form.is_target and form.name != WEIGHTS]
    pictures = [form for form in features if _is_picture(form, alone=len(features) == 1)]
    if len(pictures) != 1:
        shown = ", ".join(f"{form.name} {form.shown()}" for form in features)
        raise ValueError(
            f"augment: expected one input of pictures, floating-point numbers of [batch, channels, height, width], found {shown}"
        )
    target = inputs.forms[-1]
    if target.is_target and target.shape is not None and len(target.shape) > 2:
        raise ValueError(
            f"augment: expected one target for each picture, found {target.name} {target.shown()}: pixels that move no longer "
            "have the target of their place"
        )
    if augmentation.mixes:
        _check_mixing(augmentation.mixes[0], inputs)
    return inputs.names.index(pictures[0].name)


def _is_picture(form: Form, alone: bool) -> bool:
    ranks = (3, 4) if alone else (4,)
    return (
        form.shape is not None
        and len(form.shape) in ranks
        and form.dtype is not None
        and form.dtype.kind == "f"
    )


def _check_mixing(name: str, inputs: Inputs) -> None:
    target = inputs.forms[-1]
    if not target.is_target or target.dtype is None or target.dtype.kind != "f":
        raise ValueError(
            f"augment: {name} needs a loss that takes a probability for each class, found the target {target.name} "
            f"{target.shown()}; Trainer(model, loss='soft_cross_entropy') or `ortrain artifacts MODEL --loss soft_cross_entropy` "
            "makes artifacts with one"
        )
    check_weights(name, WEIGHTS in inputs.names)


def check_mixes(augmentation: Augmentation | None, weighted: bool) -> bool:
    """Return whether an augmentation mixes rows, which weights of rows rule out."""
    mixes = [] if augmentation is None else augmentation.mixes
    if mixes:
        check_weights(mixes[0], weighted)
    return bool(mixes)


def check_weights(name: str, weighted: bool) -> None:
    """Reject weights of rows for an operation that mixes rows."""
    if weighted:
        raise ValueError(
            f"augment: {name}: expected a trainer without sample_weight, because a mixed row has the weights of two"
        )
