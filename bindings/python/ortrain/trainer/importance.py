"""The importance of each weight for data: the diagonal of the Fisher information."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain.trainer.core import Trainer
from ortrain.trainer.data import source_of


def fisher(
    trainer: Trainer, data: Any, target: Any = None, *, rows: int | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Return the diagonal of the empirical Fisher information: for each weight, the mean of its squared gradient over rows.

    The gradients are those of the loss of single rows, as a train step computes them, so Dropout drops, and BatchNormalization
    sees one row: use it for networks without them, or with both frozen. The trainer's parameters do not change.

    Parameters
    ----------
    trainer : Trainer
        The trainer, whose loss is a negative log-likelihood such as cross entropy.
    data, target : object
        As for `Trainer.fit`, data with rows.
    rows : int, optional
        How many rows are taken, at random; all by default.

    Returns
    -------
    dict of str to array
        For each parameter that is trained, float32 of its shape. `ortrain.onnxblock.loss.ElasticWeights` takes it.

    Raises
    ------
    ValueError
        When the data do not match the model, or have no row.
    """
    if rows is not None and rows < 1:
        raise ValueError(f"rows: expected 1 or more, found {rows}")
    given = trainer._with_target(data, target, 1)[0]
    source = source_of(trainer._prepared(given), trainer.inputs, 1, rows is not None, trainer.seed)
    module = trainer.module.train()
    trained = {name: parameter for name, parameter in trainer.state.parameters if parameter.requires_grad}
    sums = {name: np.zeros(parameter.data.shape, np.float64) for name, parameter in trained.items()}
    count = 0
    module.lazy_reset_grad()
    try:
        for batch in islice(source.batches(0, 0), rows):
            module(*batch)
            count += 1
            for name, parameter in trained.items():
                gradient = np.asarray(parameter.grad, np.float64)
                sums[name] += gradient * gradient
            module.lazy_reset_grad()
    finally:
        module.lazy_reset_grad()
    if not count:
        raise ValueError("data: expected at least one row, found none")
    return {name: (total / count).astype(np.float32) for name, total in sums.items()}
