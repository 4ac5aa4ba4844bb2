"""Callbacks that log a run."""

from __future__ import annotations

import contextlib
import csv
import importlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from ortrain._files.reading import explained, open_file
from ortrain._files.writing import appending, write_file
from ortrain.trainer.callbacks import Callback, Logs


def _scalars(logs: Logs) -> dict[str, float]:
    return {name: float(value) for name, value in logs.items() if isinstance(value, (int, float))}


def _package(name: str, who: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{who} needs the package {name}: pip install {extra}") from error


class CSVLogger(Callback):
    """Writes a row per epoch to a CSV file. A resumed run appends to the file.

    Parameters
    ----------
    filename : str or os.PathLike
        The file.
    separator : str, default ","
        Between values.
    append : bool, default False
        Whether rows of an earlier run stay.
    """

    def __init__(self, filename: str | os.PathLike[str], separator: str = ",", append: bool = False) -> None:
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._keys: list[str] = []

    def on_train_begin(self, logs: Logs) -> None:
        """Begin the file, or drop the rows after the point at which the run resumes."""
        rows: list[dict[str, str]] = []
        if (self.append or self.trainer.resumed) and self.filename.exists():
            expected = "rows as CSVLogger writes them"
            with open_file(self.filename, "log") as file, explained(self.filename, "log", expected):
                text = io.TextIOWrapper(file, encoding="utf-8", newline="")
                reader = csv.DictReader(text, delimiter=self.separator)
                self._keys = list(reader.fieldnames or [])
                rows = list(reader)
                if self.trainer.resumed:
                    rows = [row for row in rows if int(row["epoch"]) < self.trainer.epoch]
        else:
            self._keys = []
        self.filename.parent.mkdir(parents=True, exist_ok=True)
        kept = io.StringIO(newline="")
        if self._keys:
            writer = csv.DictWriter(kept, self._keys, delimiter=self.separator)
            writer.writeheader()
            writer.writerows(rows)
        write_file(self.filename, "log", kept.getvalue())

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the row of an epoch."""
        row = {"epoch": epoch, **logs}
        with appending(self.filename, "log"), self.filename.open("a", newline="", encoding="utf-8") as file:
            begin = not self._keys
            if begin:
                self._keys = list(row)
            writer = csv.DictWriter(file, self._keys, delimiter=self.separator, extrasaction="ignore")
            if begin:
                writer.writeheader()
            writer.writerow(row)


class LearningRateMonitor(Callback):
    """Records the learning rate of every optimizer step in ``rates``."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_train_begin(self, logs: Logs) -> None:
        """Start a new list, unless the run is resumed."""
        if not self.trainer.resumed:
            self.rates = []
        self._step = self.trainer.step

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Record the rate."""
        if self.trainer.step != self._step:
            self._step = self.trainer.step
            self.rates.append(logs["learning_rate"])

    def state(self) -> dict[str, Any]:
        """Return the rates so far."""
        return {"rates": self.rates}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from them."""
        self.rates = list(state["rates"])


class TensorBoard(Callback):
    """Writes event files for TensorBoard, with tensorboardX (``pip install 'ortrain[tensorboard]'``).

    Parameters
    ----------
    log_dir : str or os.PathLike, default "logs"
        The folder.
    update_freq : "epoch" or int, default "epoch"
        When loss and learning rate are written: with the epoch, or also after so many steps.
    histogram_freq : int, default 0
        Epochs between histograms of the parameters, and of the gradients of the last step; 0 for none.
    write_graph : bool, default False
        Whether the graph of the eval model is written, or without one, that of the training model. Needs onnx.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] = "logs",
        update_freq: str | int = "epoch",
        histogram_freq: int = 0,
        write_graph: bool = False,
    ) -> None:
        self._package = _package("tensorboardX", "TensorBoard", "'ortrain[tensorboard]'")
        self.log_dir, self.update_freq, self.histogram_freq = os.fspath(log_dir), update_freq, histogram_freq
        self.write_graph = write_graph
        self._writer: Any = None

    def on_train_begin(self, logs: Logs) -> None:
        """Open an event file and write the graph."""
        purge = {"purge_step": self.trainer.step + 1} if self.trainer.resumed else {}
        self._writer = self._package.SummaryWriter(self.log_dir, **purge)
        if self.write_graph and not self.trainer.resumed:
            folder = self.trainer.folder
            models = [folder / f"{name}_model.onnx" for name in ("eval", "training")]
            with contextlib.redirect_stdout(io.StringIO()):  # tensorboardX prints every node
                self._writer.add_onnx_graph(str(next(path for path in models if path.exists())))

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        """Write the values of a step."""
        if self.update_freq == "epoch" or self.trainer.step % int(self.update_freq):
            return
        for name, value in _scalars(logs).items():
            self._writer.add_scalar(f"batch_{name}", value, self.trainer.step)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Write the values of an epoch."""
        for name, value in _scalars(logs).items():
            self._writer.add_scalar(f"epoch_{name}", value, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            for name, parameter in self.trainer.state.parameters:
                self._writer.add_histogram(name, parameter.data, epoch)
                gradient = parameter.grad if parameter.requires_grad else None
                if gradient is not None and np.isfinite(gradient).all():
                    self._writer.add_histogram(f"{name}/gradient", gradient, epoch)
        self._writer.flush()

    def on_train_end(self, logs: Logs) -> None:
        """Close the file."""
        self._writer.close()


class MLflowLogger(Callback):
    """Logs the values of each epoch to the active run of MLflow, which must be installed.

    Parameters
    ----------
    parameters : dict, optional
        Logged at the beginning.
    """

    def __init__(self, parameters: dict[str, Any] | None = None) -> None:
        self._mlflow = _package("mlflow", "MLflowLogger", "mlflow")
        self.parameters = parameters

    def on_train_begin(self, logs: Logs) -> None:
        """Log the parameters."""
        if self.parameters:
            self._mlflow.log_params(self.parameters)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Log the values."""
        self._mlflow.log_metrics(_scalars(logs), step=epoch)


class WandbLogger(Callback):
    """Logs the values of each epoch to the active run of Weights & Biases, which must be installed.

    Without an active run one is started.

    Parameters
    ----------
    **options
        For ``wandb.init``, if it starts one.
    """

    def __init__(self, **options: Any) -> None:
        self._wandb = _package("wandb", "WandbLogger", "wandb")
        self._options = options

    def on_train_begin(self, logs: Logs) -> None:
        """Start a run if there is none."""
        if self._wandb.run is None:
            self._wandb.init(**self._options)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Log the values."""
        self._wandb.log({**_scalars(logs), "epoch": epoch})
