"""The trainer: the loop over :class:`ortrain.api.Module` and :class:`ortrain.api.Optimizer`, with what belongs to it."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ortrain import _ortrain
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.errors import NoSuchFileError
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.trainer.callbacks import Callback, Logs, ModelCheckpoint, TerminateOnNaN
from ortrain.trainer.data import Batch, Inputs, Source, columns_of, prefetched, source_of, split
from ortrain.trainer.metrics import Metric, metric_of
from ortrain.trainer.progress import ProgbarLogger
from ortrain.trainer.schedules import Schedule, schedule_of

if TYPE_CHECKING:
    import onnx

    from ortrain.artifacts import ArtifactReport, LossType, OptimType
    from ortrain.onnxblock import Block

Array = npt.NDArray[Any]
StrPath = str | os.PathLike[str]

_POSITION = "ortrain.trainer"  # the property of a checkpoint that holds where the run is
_CLASSES = "ortrain.classes"  # the property that holds the names of the classes, as JSON
_LOSSES = {
    "cross_entropy": "CrossEntropyLoss",
    "mse": "MSELoss",
    "bce_with_logits": "BCEWithLogitsLoss",
    "l1": "L1Loss",
}
_OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}


class Trainer:
    """Trains a model: a loop over train steps and optimizer steps, with data, metrics and callbacks.

    Parameters
    ----------
    model : str or os.PathLike or onnx.ModelProto
        A folder of training artifacts; or an inference model, from which artifacts are created.
    loss : str or LossType or onnxblock.Block, optional
        For an inference model: "cross_entropy", "mse", "bce_with_logits", "l1", or what `generate_artifacts` takes.
        By default the first output of the model is the loss.
    optimizer : str or OptimType or onnxblock.Block, default "adamw"
        For an inference model: "adamw", "sgd", or what `generate_artifacts` takes.
    learning_rate : float, optional
        The learning rate; the default of the optimizer model if it is left out.
    schedule : {"constant", "linear", "cosine"} or callable, optional
        How the rate changes with the optimizer steps: a name, or a function of the steps taken and of their total
        number that returns a factor.
    warmup : int, default 0
        Optimizer steps in which a named schedule goes up from 0.
    accumulate : int, default 1
        Batches whose gradients are added up for an optimizer step. The sum is not divided.
    metrics : list of str or Metric, default ()
        What is computed besides the loss.
    callbacks : list of Callback, default ()
        What happens at the moments of every run.
    seed : int, default 0
        Seed of the order of rows and of random operators such as Dropout. It is the seed of the process, see
        :func:`ortrain.set_seed`, and is set by every `fit`.
    outputs : list of str, optional
        The values that `predict` returns and `export` keeps. By default the outputs of the eval model after the loss.
    checkpoint : str or os.PathLike, optional
        Where the parameters come from; the checkpoint of the artifacts by default.
    artifact_directory : str or os.PathLike, optional
        Where the artifacts of an inference model are written; a temporary folder by default.
    requires_grad, frozen_params : list of str, optional
        For an inference model: as in `generate_artifacts`.
    output : str, optional
        For an inference model: the value that a loss given by its name is computed from; its first output by default. Cross
        entropy takes scores, which is what a model has before its Softmax.
    threads : int, default 0
        Threads of a step; 0 for one per processor.
    config : mapping of str to str, optional
        Configuration entries of the session.

    Attributes
    ----------
    module, optimizer, state : Module, Optimizer, CheckpointState
        What the loop works on. `fit` with ``resume`` replaces them.
    history : dict of str to list
        The values of each epoch of the last run, by name.
    epoch, step : int
        The current epoch, from 0, and the optimizer steps taken in the run.
    epochs, steps_per_epoch : int, int or None
        Length of the run.
    classes : list of str or None
        The names of the classes of a classifier, in the order of their numbers. Checkpoints keep them. None if they are not
        known.
    resumed : bool
        Whether the run goes on from a checkpoint.
    stop_training : bool
        Set it to end the run after the current optimizer step.
    last_batch, last_outputs : list of array
        What the eval step before ``on_test_batch_end`` took, and what it returned: the loss, then other outputs.

    Raises
    ------
    FileNotFoundError
        When there is no model.
    ValueError
        When an argument is invalid or the model cannot be trained.
    """

    def __init__(
        self,
        model: StrPath | onnx.ModelProto,
        loss: str | LossType | Block | None = None,
        optimizer: str | OptimType | Block = "adamw",
        *,
        learning_rate: float | None = None,
        schedule: str | Schedule | None = None,
        warmup: int = 0,
        accumulate: int = 1,
        metrics: Sequence[str | Metric] = (),
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
        outputs: Sequence[str] | None = None,
        checkpoint: StrPath | None = None,
        artifact_directory: StrPath | None = None,
        requires_grad: Sequence[str] | None = None,
        frozen_params: Sequence[str] | None = None,
        output: str | None = None,
        threads: int = 0,
        config: Mapping[str, str] | None = None,
    ) -> None:
        if accumulate < 1:
            raise ValueError(f"accumulate: expected 1 or more, found {accumulate}")
        if seed < 0:
            raise ValueError(f"seed: expected 0 or more, found {seed}")
        self.accumulate, self.seed = accumulate, seed
        self.callbacks = list(callbacks)
        self.metrics = [metric_of(metric) for metric in metrics]
        self._schedule = schedule_of(schedule, warmup)
        self._schedule_name = schedule if isinstance(schedule, str) else getattr(schedule, "__name__", None)
        self._warmup = warmup
        self._threads, self._config = threads, dict(config or {})
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if isinstance(model, (str, os.PathLike)) and Path(model).is_dir():
            self.folder = Path(model)
            for name in ("training_model.onnx", "checkpoint", "optimizer_model.onnx"):
                if not (self.folder / name).exists():
                    raise NoSuchFileError(f"Trainer: expected {name} among the artifacts in {self.folder}")
        else:
            if artifact_directory is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="ortrain-")
                artifact_directory = self._temporary.name
            self.folder = Path(artifact_directory)
            make_artifacts(model, loss, optimizer, self.folder, requires_grad, frozen_params, output)
        self.history: dict[str, list[Any]] = {}
        self.epoch = self.step = self.epochs = self._batch = 0
        self._loss_sum, self._row_count = 0.0, 0
        self._active: list[Callback] = []
        self.steps_per_epoch: int | None = None
        self.stop_training = self.resumed = False
        self._position: dict[str, Any] | None = None
        self.classes: list[str] | None = None
        self._data_settings: dict[str, Any] = {}
        self._open(self.folder / "checkpoint" if checkpoint is None else checkpoint)
        self._learning_rate = self.optimizer.get_learning_rate() if learning_rate is None else learning_rate
        self.optimizer.set_learning_rate(self._learning_rate)
        self.outputs = list(outputs) if outputs is not None else self._eval_outputs[1:]
        self._bound: list[tuple[Metric, int, int]] = []
        for metric in self.metrics:
            self._bound.append((metric, self._prediction_of(metric), self._target_of(metric)))

    # ---- the session ----

    def _open(self, checkpoint: StrPath) -> None:
        """Create state, module and optimizer from a checkpoint, and read where its run was."""
        state = CheckpointState.load_checkpoint(checkpoint)
        properties = state.properties
        position = json.loads(str(properties[_POSITION])) if _POSITION in properties else None
        if _CLASSES in properties:
            self.classes = [str(name) for name in json.loads(str(properties[_CLASSES]))]
        runs = position["runs"] if position else 0
        options = SessionOptions()
        options.intra_op_num_threads = self._threads
        for key, value in self._config.items():
            options.add_session_config_entry(key, value)
        if runs:
            options.add_session_config_entry("ortrain.first_run", str(runs))
        eval_model = self.folder / "eval_model.onnx"
        module = Module(
            self.folder / "training_model.onnx",
            state,
            eval_model if eval_model.exists() else None,
            session_options=options,
        )
        self.optimizer = Optimizer(self.folder / "optimizer_model.onnx", module)
        self.state, self.module, self._position, self._runs = state, module, position, runs
        self._micro = 0  # batches whose gradients wait for an optimizer step
        self._predictor: InferenceSession | None = None
        self.last_batch: Sequence[Array] = ()
        self.last_outputs: Sequence[Array] = ()
        self._train_outputs = module.train().output_names()
        self.inputs = _inputs_of(module, training=True)
        module.eval()
        self._eval_outputs = module.output_names() if eval_model.exists() else []
        module.train()

    def _prediction_of(self, metric: Metric) -> int:
        if not metric.reads_prediction:
            return 0
        names = self._train_outputs
        if metric.prediction is None and len(names) > 1:
            return 1
        if metric.prediction in names:
            return names.index(str(metric.prediction))
        raise ValueError(
            f"metric {metric.name!r}: expected an output {metric.prediction or 'besides the loss'} of the training "
            f"model, found {', '.join(names)}; name it in additional_output_names when the artifacts are created"
        )

    def _target_of(self, metric: Metric) -> int:
        if metric.target is None:
            return len(self.inputs.names) - 1
        if metric.target in self.inputs.names:
            return self.inputs.names.index(metric.target)
        raise ValueError(
            f"metric {metric.name!r}: the training model has no input {metric.target!r}; "
            f"its inputs are {', '.join(self.inputs.names)}"
        )

    @property
    def learning_rate(self) -> float:
        """The learning rate, before the factor of the schedule."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.optimizer.set_learning_rate(rate)
        self._learning_rate = rate

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, as values that JSON can represent."""
        return {
            "artifacts": os.fspath(self.folder),
            "epochs": self.epochs,
            **self._data_settings,
            "learning_rate": self._learning_rate,
            "schedule": self._schedule_name or "constant",
            "warmup": self._warmup,
            "seed": self.seed,
            "threads": self._threads,
            "metrics": [metric.name for metric in self.metrics],
            "callbacks": [type(callback).__name__ for callback in self._active],
            "config": self._config,
        }

    def parameters_changed(self) -> None:
        """Tell the trainer that parameters were changed outside of `fit`, so that `predict` uses the new ones."""
        self._predictor = None

    # ---- training ----

    def fit(
        self,
        data: Any,
        epochs: int = 1,
        *,
        validation: Any = None,
        batch_size: int = 32,
        shuffle: bool = True,
        drop_last: bool = False,
        steps_per_epoch: int | None = None,
        prefetch: int | None = None,
        callbacks: Sequence[Callback] = (),
        resume: StrPath | None = None,
        verbose: bool = True,
    ) -> dict[str, list[Any]]:
        """Train on data.

        Parameters
        ----------
        data : object
            A tuple of arrays in the order of the model's inputs, or a dictionary of arrays by input name; a Hugging
            Face dataset; any iterable of batches, each a tuple or a dictionary, such as a ``DataLoader`` of PyTorch
            or a ``tf.data.Dataset``; an iterator, such as a generator; or a function of the epoch that returns an
            iterable. Entries of a dictionary that the model does not know are not used. Floating-point and integer
            values are converted to the type of the model's input if none is lost.
        epochs : int, default 1
            How often the data are used, including what happened before a checkpoint that is resumed.
        validation : object, optional
            Data that are evaluated after each epoch; or the share of the rows of ``data`` that is held out for that.
        batch_size : int, default 32
            Rows of a batch, for data that have rows.
        shuffle : bool, default True
            Whether each epoch has its own order of rows.
        drop_last : bool, default False
            Whether a last batch with fewer rows is left out.
        steps_per_epoch : int, optional
            Batches of an epoch; all by default.
        prefetch : int, optional
            Batches that a thread prepares while steps run; 0 for no thread. By default 2, and 0 for arrays in memory.
        callbacks : list of Callback, default ()
            Callbacks of this run, besides those of the trainer.
        resume : str or os.PathLike, optional
            A checkpoint that `save` or `ModelCheckpoint` wrote. The run goes on where it was saved, with the same bits
            as if it had not been interrupted. Without it, a run starts with the parameters that the trainer has.
        verbose : bool, default True
            Whether progress is shown.

        Returns
        -------
        dict of str to list
            The values of each epoch: ``loss``, metrics, ``learning_rate``, and for validation ``val_loss`` and so on.

        Raises
        ------
        ValueError
            When the data do not match the model, or a resumed run not its checkpoint.
        """
        self._begin_run(resume)
        if epochs < 1:
            raise ValueError(f"epochs: expected 1 or more, found {epochs}")
        rows = held_out = None
        if isinstance(validation, float):
            rows, held_out = split(data, validation, self.inputs, self.seed)
        source = source_of(
            data, self.inputs, batch_size, shuffle, self.seed, steps_per_epoch, drop_last, rows
        )
        test: Source | None = None
        if held_out is not None:
            test = source_of(data, self.inputs, batch_size, False, self.seed, rows=held_out)
        elif validation is not None:
            test = source_of(validation, self.inputs, batch_size, False, self.seed)
        self._data_settings = {"batch_size": batch_size, "shuffle": shuffle, "accumulate": self.accumulate}
        self._data_settings["steps_per_epoch"] = self.steps_per_epoch = source.steps
        self.epochs = epochs
        self._active = [*self.callbacks, *callbacks]
        if verbose:
            self._active.append(ProgbarLogger())
        self._active.sort(
            key=lambda callback: isinstance(callback, ModelCheckpoint)
        )  # they save the others' state
        for callback in self._active:
            callback.set_trainer(self)
        first_batch = self._continue(self._position) if self.resumed and self._position else 0
        _ortrain.set_seed(self.seed)
        self.stop_training = False
        logs: Logs = {}
        self._call("on_train_begin", logs)
        try:
            while self.epoch < epochs and not self.stop_training:
                batches = prefetched(
                    source.batches(self.epoch, first_batch), source.prefetch if prefetch is None else prefetch
                )
                if first_batch == 0:
                    self._begin_epoch()
                with closing(batches):
                    complete = self._train_epoch(batches, first_batch)
                if not complete:
                    break
                logs = self._end_epoch(test)
                first_batch = 0
        finally:
            self._call("on_train_end", logs)
        return self.history

    def _begin_run(self, resume: StrPath | None) -> None:
        self.resumed = resume is not None
        if resume is not None:
            self._open(resume)
            if self._position is None:
                raise ValueError(
                    f"resume: expected a checkpoint that Trainer.save or ModelCheckpoint wrote, found {os.fspath(resume)}"
                )
            return
        self.epoch = self.step = self._batch = 0
        self._loss_sum, self._row_count = 0.0, 0
        self.history = {}

    def _continue(self, position: dict[str, Any]) -> int:
        """Take over where a saved run was; return the number of the next batch."""
        for name, now in self._data_settings.items():
            before = position["data"].get(name)
            if now != before:
                raise ValueError(
                    f"resume: expected {name} {before}, as when the checkpoint was saved, found {now}"
                )
        if position["seed"] != self.seed:
            raise ValueError(
                f"resume: expected seed {position['seed']}, as when the checkpoint was saved, found {self.seed}"
            )
        self.epoch, self.step = position["epoch"], position["step"]
        self._loss_sum, self._row_count = position["loss_sum"], position["row_count"]
        self.history = {name: list(values) for name, values in position["history"].items()}
        self.learning_rate = position["learning_rate"]
        for metric, state in zip(self.metrics, position["metrics"], strict=False):
            metric.load_state(state)
        saved = position["callbacks"]
        for key, callback in self._named_callbacks():
            if key in saved:
                callback.load_state(saved[key])
        self._batch = int(position["batch"])
        return self._batch

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        counts: dict[str, int] = {}
        for callback in self._active:
            name = type(callback).__name__
            counts[name] = counts.get(name, 0) + 1
            yield f"{name} {counts[name]}", callback

    def _begin_epoch(self) -> None:
        self._loss_sum, self._row_count, self._batch = 0.0, 0, 0
        for metric in self.metrics:
            metric.reset()
        self._call("on_epoch_begin", self.epoch, {})

    def _train_epoch(self, batches: Iterator[Batch], first: int) -> bool:
        """Take the steps of an epoch; return whether it was completed."""
        module, optimizer, bound = self.module.train(), self.optimizer, self._bound
        begin, end = self._methods("on_train_batch_begin"), self._methods("on_train_batch_end")
        accumulate, schedule, several = self.accumulate, self._schedule, len(self._train_outputs) > 1
        total = None if self.steps_per_epoch is None else self.epochs * -(-self.steps_per_epoch // accumulate)
        rate = self._learning_rate
        ends_on_nan = any(isinstance(callback, TerminateOnNaN) for callback in self._active)
        self._predictor = None
        for number, batch in enumerate(batches, start=first):
            for method in begin:
                method(number, {})
            outputs = module(*batch)
            loss = float(outputs[0]) if several else float(outputs)
            self._runs += 1
            self._micro += 1
            self._batch = number + 1
            rows = len(batch[0]) if batch and batch[0].ndim else 1
            self._loss_sum += loss * rows
            self._row_count += rows
            for metric, prediction, target in bound:
                metric.update(outputs[prediction] if several else outputs, batch[target], loss)
            if ends_on_nan and not math.isfinite(loss):
                module.lazy_reset_grad()
                self._micro = 0
                return False
            if self._micro == accumulate:
                if schedule is not None:
                    rate = self._learning_rate * schedule(self.step, total)
                    optimizer.set_learning_rate(rate)
                else:
                    rate = self._learning_rate
                optimizer.step()
                module.lazy_reset_grad()
                self.step += 1
                self._micro = 0
            if end:
                logs: Logs = {"loss": loss, "learning_rate": rate}
                for method in end:
                    method(number, logs)
            if self.stop_training and self._micro == 0:
                return False
        if self._micro:  # the last batches of the epoch are fewer than are accumulated
            if schedule is not None:
                optimizer.set_learning_rate(self._learning_rate * schedule(self.step, total))
            optimizer.step()
            module.lazy_reset_grad()
            self.step += 1
            self._micro = 0
        if self._batch == 0:
            raise ValueError(f"data: expected at least one batch in epoch {self.epoch + 1}, found none")
        return True

    def _end_epoch(self, test: Source | None) -> Logs:
        logs: Logs = {"loss": self._loss_sum / self._row_count}
        logs |= {metric.name: metric.result() for metric in self.metrics}
        logs["learning_rate"] = self.optimizer.get_learning_rate()
        if test is not None:
            # The sums of the validation are not those of the epoch, which are no longer needed.
            logs |= {f"val_{name}": value for name, value in self._test(test, 0).items()}
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)
        epoch = self.epoch
        self.epoch += 1
        self._batch = 0
        self._call("on_epoch_end", epoch, logs)
        return logs

    def _methods(self, moment: str) -> list[Callable[..., None]]:
        """Return the methods of callbacks that have something to do at a moment."""
        found = [getattr(callback, moment) for callback in self._active]
        default = getattr(Callback, moment)
        return [method for method in found if getattr(method, "__func__", None) is not default]

    def _call(self, moment: str, *arguments: Any) -> None:
        for method in self._methods(moment):
            method(*arguments)

    # ---- evaluation, prediction, files ----

    def evaluate(self, data: Any, *, batch_size: int = 32, prefetch: int | None = None) -> dict[str, Any]:
        """Return loss and metrics on data, as `fit` takes them.

        The loss is the mean of the batches' losses, weighted by their rows.

        Raises
        ------
        ValueError
            When the data do not match the model, or there is no eval model.
        """
        self._active = list(self.callbacks)
        for callback in self._active:
            callback.set_trainer(self)
        return self._test(source_of(data, self.inputs, batch_size, False, self.seed), prefetch)

    def _test(self, source: Source, prefetch: int | None) -> dict[str, Any]:
        if not self._eval_outputs:
            raise ValueError(f"evaluate: expected an eval model, found no eval_model.onnx in {self.folder}")
        self._call("on_test_begin", {})
        kept = [metric.state() for metric in self.metrics]
        for metric in self.metrics:
            metric.reset()
        end = self._methods("on_test_batch_end")
        module, several = self.module.eval(), len(self._eval_outputs) > 1
        loss_sum, count = 0.0, 0
        try:
            with closing(
                prefetched(source.batches(0, 0), source.prefetch if prefetch is None else prefetch)
            ) as batches:
                for number, batch in enumerate(batches):
                    outputs = module(*batch)
                    loss = float(outputs[0]) if several else float(outputs)
                    rows = len(batch[0]) if batch and batch[0].ndim else 1
                    loss_sum += loss * rows
                    count += rows
                    for metric, prediction, target in self._bound:
                        metric.update(outputs[prediction] if several else outputs, batch[target], loss)
                    if end:
                        self.last_batch, self.last_outputs = batch, outputs if several else (outputs,)
                    for method in end:
                        method(number, {"loss": loss})
            logs: Logs = {"loss": loss_sum / count if count else math.nan}
            logs |= {metric.name: metric.result() for metric in self.metrics}
        finally:
            self.last_batch = self.last_outputs = ()
            module.train()
            for metric, state in zip(self.metrics, kept, strict=True):
                metric.load_state(state)
        self._call("on_test_end", logs)
        return logs

    def predict(self, data: Any, *, batch_size: int = 32) -> Any:
        """Return what the model computes for data.

        Parameters
        ----------
        data : object
            An array if the model has one input; otherwise as `fit` takes them, with or without the targets.
        batch_size : int, default 32
            Rows of a batch, for data that have rows.

        Returns
        -------
        array or tuple of array
            The model's output for all rows; several outputs as a tuple.

        Raises
        ------
        ValueError
            When the data do not match the model, or no output is known, see ``outputs``.
        """
        session = self._prediction_session()
        wanted = [argument.name for argument in session.get_inputs()]
        dtypes = dict(zip(self.inputs.names, self.inputs.dtypes, strict=True))
        inputs = _PredictorInputs(self.inputs.names, wanted, [dtypes.get(name) for name in wanted])
        if isinstance(data, np.ndarray):
            data = (data,)
        if isinstance(data, (tuple, Mapping)):
            data = tuple(columns_of(data, inputs))
        source = source_of(data, inputs, batch_size, False, self.seed)
        parts: list[list[Array]] = []
        with closing(prefetched(source.batches(0, 0), source.prefetch)) as batches:
            for batch in batches:
                parts.append(session.run(None, dict(zip(wanted, batch, strict=True))))
        if not parts:
            raise ValueError("data: expected at least one batch, found none")
        joined = tuple(
            np.concatenate(column) if column[0].ndim else np.stack(column)
            for column in zip(*parts, strict=True)
        )
        return joined[0] if len(joined) == 1 else joined

    def _prediction_session(self) -> InferenceSession:
        """Return a session of the exported model with the current parameters."""
        if self._predictor is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                self.export(path)
                options = SessionOptions()
                options.intra_op_num_threads = self._threads
                self._predictor = InferenceSession(path, options)
        return self._predictor

    def prediction_inputs(self) -> list[str]:
        """Return the names of the inputs that `predict` needs."""
        return [argument.name for argument in self._prediction_session().get_inputs()]

    def export(self, path: StrPath, outputs: Sequence[str] | None = None) -> None:
        """Write the model with its current parameters for inference.

        Parameters
        ----------
        path : str or os.PathLike
            The file.
        outputs : list of str, optional
            The values that it returns; those of the trainer by default.

        Raises
        ------
        ValueError
            When no output is known, or the eval model has no such value.
        """
        names = self.outputs if outputs is None else list(outputs)
        if not names:
            raise ValueError(
                "export: expected outputs besides the loss, found none in the eval model; name values of it in outputs"
            )
        self.module.export_model_for_inferencing(path, names)

    def save(self, path: StrPath) -> None:
        """Write a checkpoint from which ``fit(resume=...)`` continues: parameters, optimizer and where the run is.

        Raises
        ------
        ValueError
            When gradients of some batches wait for an optimizer step.
        """
        if self._micro:
            raise ValueError(
                f"save: expected no gradients that wait for an optimizer step, found those of {self._micro} batches"
            )
        position = {
            "seed": self.seed,
            "runs": self._runs,
            "epoch": self.epoch,
            "batch": self._batch,
            "step": self.step,
            "loss_sum": self._loss_sum,
            "row_count": self._row_count,
            "learning_rate": self._learning_rate,
            "metrics": [metric.state() for metric in self.metrics],
            "history": self.history,
            "callbacks": {name: callback.state() for name, callback in self._named_callbacks()},
            "data": self._data_settings,
        }
        self.state.properties[_POSITION] = json.dumps(position)
        if self.classes is not None:
            self.state.properties[_CLASSES] = json.dumps(self.classes)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        CheckpointState.save_checkpoint(self.state, path, include_optimizer_state=True)


class _PredictorInputs(Inputs):
    """The inputs of an exported model, which are found among those of the training model too."""

    def __init__(
        self, known: Sequence[str], names: Sequence[str], dtypes: Sequence[np.dtype[Any] | None]
    ) -> None:
        super().__init__(names, dtypes)
        self._known = list(known)

    def in_order(self, batch: Any) -> list[Any]:
        if isinstance(batch, (tuple, list)) and len(batch) == len(self._known) != len(self.names):
            batch = dict(zip(self._known, batch, strict=True))
        return super().in_order(batch)


def _inputs_of(module: Module, training: bool) -> Inputs:
    names = module.input_names()
    types = [_ortrain.get_model_input_type_info(module._handle, training, i)[0] for i in range(len(names))]
    return Inputs(names, [_ortrain.numpy_type(element) if element else None for element in types])


def _named(kind: str, given: Any, known: Mapping[str, str], enum: Any) -> Any:
    if not isinstance(given, str):
        return given
    if given not in known:
        raise ValueError(f"{kind}: there is no {kind} {given!r}; known are {', '.join(known)}")
    return enum[known[given]]


def floating_outputs(graph: onnx.GraphProto) -> list[str]:
    """Return the outputs of a model that a loss can be computed from."""
    import onnx

    kinds = {
        onnx.TensorProto.DataType.Value(name)
        for name in ("UNDEFINED", "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")
    }
    return [
        value.name
        for value in graph.output
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in kinds
    ]


def _declared(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model that declares the type and shape of a value, which intermediate ones often do not have."""
    import onnx

    outputs = [value.name for value in model.graph.output]
    if name not in outputs and not any(name in node.output for node in model.graph.node):
        raise ValueError(
            f"output: the model has no value named {name!r}; its outputs are {', '.join(outputs)}"
        )
    known = [*model.graph.value_info, *model.graph.output]
    return model if any(value.name == name for value in known) else onnx.shape_inference.infer_shapes(model)


def make_artifacts(
    model: Any,
    loss: Any,
    optimizer: Any,
    folder: Path,
    requires_grad: Sequence[str] | None,
    frozen_params: Sequence[str] | None,
    output: str | None = None,
) -> ArtifactReport:
    """Create artifacts whose steps return the outputs of the model besides the loss, first the one that it is computed from."""
    try:
        import onnx

        from ortrain import artifacts
    except ImportError as error:
        raise ImportError(
            "Trainer: creating artifacts from a model needs onnx: pip install 'ortrain[artifacts]'"
        ) from error
    chosen_loss = _named("loss", loss, _LOSSES, artifacts.LossType)
    loaded = model if isinstance(model, onnx.ModelProto) else artifacts._load(model)[0]
    names = [value.name for value in loaded.graph.output]
    if output is not None and isinstance(chosen_loss, artifacts.LossType):
        declared = _declared(loaded, output)
        model = model if declared is loaded else declared
        names = [output, *(name for name in names if name != output)]
    elif output is not None:
        raise ValueError("output: expected a loss given by its name with it, which is computed from it")
    elif isinstance(chosen_loss, artifacts.LossType) and names[0] not in floating_outputs(loaded.graph):
        raise ValueError(
            f"the first output of the model, {names[0]!r}, has no floating-point numbers to compute a loss from; name the value "
            f"that has (ortrain artifacts --output, Trainer(output=...)), such as another output of {', '.join(names)}"
        )
    return artifacts.generate_artifacts(
        model,
        requires_grad=requires_grad,
        frozen_params=frozen_params,
        loss=chosen_loss,
        optimizer=_named("optimizer", optimizer, _OPTIMIZERS, artifacts.OptimType),
        artifact_directory=folder,
        additional_output_names=names if chosen_loss is not None else names[1:],
        loss_input_names=names[:1] if isinstance(chosen_loss, artifacts.LossType) else None,
    )
