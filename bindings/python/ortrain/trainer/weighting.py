"""Weights of rows: the loss that takes them, and weights of rows from weights of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._support.counts import counted

Array = npt.NDArray[Any]

WEIGHTS = "sample_weight"
"""The name of the input of a training model for a weight of each row."""


def weights_of(
    target: Array, sample_weight: Any, class_weight: Mapping[Any, float] | str | None
) -> npt.NDArray[np.float32]:
    """Return the weight of each row.

    Parameters
    ----------
    target : array
        The targets, ``[rows, ...]``; classes if there are weights of classes.
    sample_weight : array of float, optional
        A weight for each row, ``[rows]``.
    class_weight : mapping or "balanced", optional
        The weight of each class, by its number or name; 1 for others. "balanced" makes the sum of the weights the same for
        all classes: rows / (classes * rows of the class).

    Raises
    ------
    ValueError
        When there are not as many weights as rows, one is negative or not finite, or the targets are not one class per row.
    """
    weights = np.ones(len(target))
    if class_weight is not None:
        if target.ndim == 2 and target.shape[1] == 1:
            target = target[:, 0]
        if target.ndim != 1:
            raise ValueError(
                f"class_weight: expected one class per row, found targets of shape {target.shape}"
            )
        found, numbers, counts = np.unique(target, return_inverse=True, return_counts=True)
        if class_weight == "balanced":
            of_classes = len(target) / (len(found) * counts)
        elif isinstance(class_weight, Mapping):
            unknown = [name for name in class_weight if name not in found.tolist()]
            if unknown:
                raise ValueError(
                    f"class_weight: expected the classes of the data, {', '.join(map(str, found[:20]))}, found {unknown[0]!r}"
                )
            of_classes = np.array([float(class_weight.get(name, 1.0)) for name in found.tolist()])
        else:
            raise ValueError(
                f"class_weight: expected 'balanced' or a mapping of classes to weights, found {class_weight!r}"
            )
        weights *= of_classes[numbers.reshape(-1)]
    if sample_weight is not None:
        given = np.asarray(sample_weight, np.float64)
        if given.shape != weights.shape:
            raise ValueError(
                f"sample_weight: expected {counted(len(weights), 'weight')}, one for each row, found the shape {given.shape}"
            )
        weights *= given
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise ValueError("sample_weight: expected weights of 0 or more, not all 0, found others")
    return weights.astype(np.float32)
