"""Sums of gradients clipped by row, for DP-SGD, with many rows in one step. Making the model needs onnx."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain.api import CheckpointState, Module
from ortrain.options import SessionOptions

try:
    import onnx

    from ortrain.artifacts.graph.clipped_rows import LOSSES, NORMS, with_clipped_rows
except ImportError as error:
    raise ImportError("ClippedRows: making its model needs onnx: pip install 'ortrain[artifacts]'") from error

Array = npt.NDArray[Any]

_TOLERANCE = 1e-3  # relative difference between gradients of a row in a step of many rows and of one row
_RANDOM = frozenset({"BitmaskDropout", "BiasDropout", "BitmaskBiasDropout", "Dropout"})


class ClippedRows:
    """The sum of the gradients of rows, each scaled down to a norm if it is longer.

    A step takes ``rows`` rows at a time through the network of a trainer, forward and backward once. It costs one to three
    ordinary steps with as many rows, where a loop over single rows costs as many steps as rows.
    :mod:`ortrain.artifacts.graph.clipped_rows` describes how. The session has a copy of the parameters and gradients, and
    computes in float32.

    For a step of DP-SGD, add the drawn rows, take the sum, add noise, and give it to the trainer::

        clipped = ClippedRows(trainer.module, trainer.state, trainer.folder)
        norms, losses = clipped.add(columns, clip=1.0)  # once, or for one part of the drawn rows after another
        total = clipped.take()
        trainer.module.copy_buffer_to_gradients((total + noise) / batch_size)
        trainer.optimizer.step()

    A trainer with ``privacy`` does all that.

    Parameters
    ----------
    module : Module
        The module of a trainer. Its network must not mix rows, as BatchNormalization does, and its loss must be a mean over rows:
        cross entropy, mean squared error and the other losses by their name are.
    state : CheckpointState
        The parameters of the module.
    folder : path
        The folder of its training model.
    rows : int, default 64
        The rows that the session takes at a time. Steps of fewer rows cost as much. The gradients of all these rows are in memory
        at once for each convolution.
    options : SessionOptions, optional
        The options of the session.

    Attributes
    ----------
    rows : int
        The same.
    module : Module
        The session.

    Raises
    ------
    ValueError
        When a parameter is trained whose gradients by row are not known, the network mixes rows, or the loss is not a mean over
        rows. The message names the parameter and the node.
    """

    def __init__(
        self,
        module: Module,
        state: CheckpointState,
        folder: Path,
        rows: int = 64,
        options: SessionOptions | None = None,
    ) -> None:
        self.rows, self._trained = rows, module
        source = onnx.load(folder / "training_model.onnx", load_external_data=False)
        has_dropout = any(node.op_type in _RANDOM for node in source.graph.node)
        model = with_clipped_rows(source, rows)
        with tempfile.TemporaryDirectory() as scratch:
            CheckpointState.save_checkpoint(state, Path(scratch) / "checkpoint")
            own = CheckpointState.load_checkpoint(Path(scratch) / "checkpoint")
        # The model is written beside the artifacts, because weights that are not trained may be in a file there.
        path = folder / f"clipped_rows_{os.getpid()}_{id(self)}.onnx"
        try:
            write_file(path, "model", model.SerializeToString())
            self.module = Module(path, own, session_options=options)
        finally:
            path.unlink(missing_ok=True)
        self.module.train()
        names = self.module.output_names()
        self._norms, self._losses = names.index(NORMS), names.index(LOSSES)
        self._inputs = [value.name for value in self.module.get_inputs()][2:]
        self._is_new, self._is_empty, self._is_checked = True, True, has_dropout

    def add(self, columns: Sequence[Array], clip: float) -> tuple[Array, Array]:
        """Add the clipped gradients of some rows to the sum.

        The first call after `take` copies the parameters of the trainer. The first call of all compares two rows with steps of
        each row alone, unless the network has Dropout.

        Parameters
        ----------
        columns : sequence of array
            The inputs of a step in their order, the targets last, ``[n, ...]`` with any number of rows.
        clip : float
            The largest norm of the gradient of a row, above 0.

        Returns
        -------
        tuple of array
            The norm of the gradient of each row before it was clipped, and the loss of each row, float32 ``[n]``.

        Raises
        ------
        ValueError
            When the clip is out of range, the columns do not fit the model, or a norm is not finite.
        RuntimeError
            When the gradient of a row differs from that of a step of the row alone: the network mixes rows.
        """
        norms, losses, _ = self.add_and_read(columns, clip, ())
        if not np.isfinite(norms).all():
            row = int(np.flatnonzero(~np.isfinite(norms))[0])
            raise ValueError(
                f"ClippedRows: expected a finite gradient of row {row}, found the norm {norms[row]}"
            )
        return norms, losses

    def add_and_read(
        self, columns: Sequence[Array], clip: float, read: Sequence[int]
    ) -> tuple[Array, Array, dict[int, list[Array]]]:
        """Return outputs by their number in the training model too. Norms and the sum may not be finite.

        Returns
        -------
        tuple
            What `add` returns, and for each number of ``read`` the parts of the output, one after another.
        """
        if not (np.isfinite(clip) and clip > 0):
            raise ValueError(f"clip: expected a norm above 0, found {clip}")
        counts = {len(column) for column in columns}
        if len(columns) != len(self._inputs) or len(counts) != 1:
            raise ValueError(
                f"columns: expected {counted(len(self._inputs), 'array')} of as many rows ({', '.join(self._inputs)}), found "
                f"{len(columns)} of {sorted(counts)} rows"
            )
        if self._is_new:
            self._copy_parameters()
        if not self._is_checked and max(counts):
            mixed = self.mixing(columns)
            if mixed is not None:
                raise RuntimeError(f"ClippedRows: {mixed}")
        found = [np.zeros((2, 0), np.float32)]
        outputs: dict[int, list[Array]] = {number: [] for number in read}
        known, here = self._trained.output_names(), self.module.output_names()
        for first in range(0, max(counts), self.rows):
            self._is_empty = False
            part = [column[first : first + self.rows] for column in columns]
            results = self._step(part, clip)
            count = len(part[0])
            found.append(np.stack([results[self._norms][:count], results[self._losses][:count]]))
            for number, values in outputs.items():
                values.append(np.array(results[here.index(known[number])][:count]))
        norms, losses = np.concatenate(found, axis=1)
        return norms, losses, outputs

    def _copy_parameters(self) -> None:
        self.module.copy_buffer_to_parameters(self._trained.get_contiguous_parameters(True).numpy())
        self.module.lazy_reset_grad()
        self._is_new = False

    def take(self) -> Array:
        """Return the sum, float32 with the elements of all trained parameters, and begin a new one."""
        total = np.zeros(self.module.get_parameters_size(True), np.float32)
        if not self._is_empty:  # after a reset, buffers have old values until the first step
            self.module.copy_gradients_to_buffer(total)
        self._is_new = self._is_empty = True
        return total

    def _step(self, columns: Sequence[Array], clip: float, mask: Array | None = None) -> Sequence[Array]:
        """Run a step of at most `rows` rows, and return the outputs of `rows` rows."""
        count = len(columns[0])
        places = np.arange(self.rows) % count  # a step with fewer rows repeats some, which do not count
        counted = np.arange(self.rows) < count if mask is None else mask
        batch = [np.ascontiguousarray(column if count == self.rows else column[places]) for column in columns]
        outputs: Sequence[Array] = self.module(
            counted.astype(np.float32), np.array([clip], np.float32), *batch
        )
        return outputs

    def mixing(self, columns: Sequence[Array]) -> str | None:
        """Compare the gradients of the first and the last row of a step with those of each row alone.

        Returns
        -------
        str or None
            How they differ, if the network mixes rows. Networks with Dropout are not compared.
        """
        if self._is_checked:
            return None
        self._copy_parameters()
        module = self._trained.train()
        size = self.module.get_parameters_size(True)
        alone, here = np.zeros(size, np.float32), np.zeros(size, np.float32)
        part = [column[: self.rows] for column in columns]
        for row in dict.fromkeys((0, len(part[0]) - 1)):
            module.lazy_reset_grad()
            module(*(np.ascontiguousarray(column[row : row + 1]) for column in part))
            module.copy_gradients_to_buffer(alone)
            module.lazy_reset_grad()
            self.module.lazy_reset_grad()
            norm = self._step(part, float(np.finfo(np.float32).max), np.arange(self.rows) == row)[
                self._norms
            ][row]
            self.module.copy_gradients_to_buffer(here)
            self.module.lazy_reset_grad()
            length = float(np.linalg.norm(alone))
            difference = max(float(np.linalg.norm(here - alone)), abs(float(norm) - length))
            if not difference <= _TOLERANCE * max(length, 1e-6):
                return (
                    f"the gradient of row {row} differs by {difference:.3g} between a step of several rows and a step of only "
                    f"this row, where its norm is {length:.3g}: the network mixes rows, or a layer reads values whose first "
                    "dimension is not that of the rows"
                )
        self._is_checked = True
        return None
