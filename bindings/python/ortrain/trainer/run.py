"""A run: its model and data, its position, and the callbacks and metrics that follow it."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from ortrain import _ortrain
from ortrain._support.counts import counted
from ortrain.inference_session import InferenceSession
from ortrain.trainer import mezo
from ortrain.trainer.accountant import Accountant
from ortrain.trainer.callbacks import Callback, LambdaCallback, checked
from ortrain.trainer.columns import Columns
from ortrain.trainer.data import Source
from ortrain.trainer.gradients import Backpropagation, Gradients
from ortrain.trainer.metrics import Metric
from ortrain.trainer.opening import open_run, options_of, save_run, store_accounting
from ortrain.trainer.private import Privacy, PrivateGradients, check_settings, privacy_of
from ortrain.trainer.quantized import RANGE
from ortrain.trainer.rehearsal import Rehearsal, check_rehearsal
from ortrain.trainer.schedules import Schedule, ScheduleFunction, schedule_of
from ortrain.trainer.weighting import WEIGHTS

Array = npt.NDArray[Any]
StrPath = str | os.PathLike[str]


class Run:
    """The state of training: what it works on, how far it is, and who follows it. :class:`Trainer` describes its members."""

    def __init__(
        self,
        folder: Path,
        checkpoint: StrPath,
        *,
        learning_rate: float | None,
        schedule: str | Schedule | ScheduleFunction | None,
        warmup: int,
        accumulate: int,
        metrics: Sequence[Metric],
        callbacks: Sequence[Callback],
        seed: int,
        threads: int,
        config: Mapping[str, str] | None,
        rehearsal: Rehearsal | None,
        privacy: Privacy | bool | None,
        read_only: bool,
    ) -> None:
        self._is_read_only = read_only
        self.folder, self.rehearsal = folder, rehearsal
        self._given_privacy, self._privacy = privacy, privacy_of(privacy)
        self.accumulate, self.seed = accumulate, seed
        self.callbacks = checked(callbacks)
        self.metrics = list(metrics)
        self._schedule = schedule_of(schedule, warmup)
        self._threads, self._config = threads, dict(config or {})
        self.history: dict[str, list[Any]] = {}
        self.epoch = self.step = self.epochs = self._batch = 0
        self._loss_sum, self._row_count = 0.0, 0
        self._active: list[Callback] = []
        self._columns: Sequence[Array] | None = None
        self._losses: deque[float] = deque(maxlen=5)
        self.steps_per_epoch: int | None = None
        self.stop_training = self.resumed = False
        self.stop_reason: str | None = None
        self._validation: Source | None = None
        self.classes: list[str] | None = None
        self.columns: Columns | None = None
        self.preprocessing: dict[str, Any] | None = None
        self._data_settings: dict[str, Any] = {}
        self._open(checkpoint)
        if rehearsal is not None:
            check_rehearsal(rehearsal, self.inputs)
        self._learning_rate = self._default_rate() if learning_rate is None else learning_rate
        self.optimizer.set_learning_rate(self._learning_rate)
        self._bound: list[tuple[Metric, int, int]] = []
        for metric in self.metrics:
            self._bound.append((metric, self._prediction_of(metric), self._target_of(metric)))
        self._read = sorted({prediction for _, prediction, _ in self._bound})

    def _open(self, checkpoint: StrPath) -> None:
        """Open a checkpoint, and take over the position of its run."""
        opened = open_run(self.folder, checkpoint, self._threads, self._config, self._is_read_only)
        self.state, self.module, self.optimizer = opened.state, opened.module, opened.optimizer
        self.inputs = opened.inputs
        self._train_outputs, self._eval_outputs = opened.train_outputs, opened.eval_outputs
        self._position = opened.position
        self._runs = opened.position["runs"] if opened.position else 0
        self._is_scheduled = False
        self._first_step = 0
        self.classes = opened.classes or self.classes
        self.columns = opened.columns or self.columns
        self.preprocessing = opened.preprocessing or self.preprocessing
        if self.rehearsal is not None and opened.rehearsal is not None:
            self.rehearsal.load_state(opened.rehearsal)
        self.accountant = opened.accountant
        self._gradients = self._way_to_gradients()
        self._micro = 0  # batches whose gradients are accumulated since the last optimizer step
        self._predictor: InferenceSession | None = None
        self.last_batch: Sequence[Array] = ()
        self.last_outputs: Sequence[Array] = ()

    def _way_to_gradients(self) -> Gradients:
        """Return the source of gradients, which the state and the settings determine."""
        estimated = mezo.stored_in(self.state)
        if self._privacy is not None:
            check_settings(
                sample_weight=WEIGHTS in self.inputs.names,
                qat=any(name.startswith(RANGE) for name, _ in self.state.parameters),
                optimizer=estimated is not None,
            )
            self.accountant = self.accountant or Accountant()
            return PrivateGradients(
                self._privacy,
                self.accountant,
                self.state,
                self.folder,
                options_of(self._threads, self._config, 0),
            )
        if estimated is None:
            return Backpropagation(self.state)
        if not self._eval_outputs:
            raise ValueError(f"MeZO: expected an eval model, found no eval_model.onnx in {self.folder}")
        return mezo.EstimatedGradients(estimated, self.state, self.module, self.seed)

    def _default_rate(self) -> float:
        """Return the learning rate of a run for which the caller gives none."""
        default = self._gradients.default_rate
        return self.optimizer.get_learning_rate() if default is None or self._steps_taken() else default

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
            # For a sum of losses by output, take the target of the output that the metric reads.
            names = self.inputs.names
            target = f"{self._train_outputs[self._prediction_of(metric)]}_target"
            return names.index(target) if target in names else len(names) - 1
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
        if self._is_scheduled:
            self._register_schedule()

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the run, as values that JSON can represent."""
        return {
            "artifacts": os.fspath(self.folder),
            "epochs": self.epochs,
            **self._data_settings,
            "learning_rate": self._learning_rate,
            **self._schedule_settings(),
            "seed": self.seed,
            "threads": self._threads,
            "metrics": [metric.name for metric in self.metrics],
            "callbacks": [type(callback).__name__ for callback in self._active],
            "config": self._config,
        }

    @property
    def saved_run(self) -> dict[str, Any] | None:
        """The position of the run that wrote the checkpoint; None if no trainer wrote it.

        Among its entries are ``epoch``, the number of complete epochs, ``epochs``, how many it was to have, ``step``,
        ``learning_rate``, ``history`` and ``callbacks``, the state of each callback.
        """
        return self._position

    def parameters_changed(self) -> None:
        """Tell the trainer that parameters were changed outside of `fit`, so that `predict` uses the new ones."""
        self._predictor = None

    # ---- callbacks ----

    @property
    def value_names(self) -> list[str]:
        """The names of the values of an epoch of this run, which callbacks can monitor."""
        names = ["loss", *(metric.name for metric in self.metrics)]
        validated = [f"val_{name}" for name in names if self._validation is not None]
        return [*names, "learning_rate", *self._gradients.value_names, *validated]

    def has_foreign_callbacks(self) -> bool:
        """Whether a callback of the run is the user's, which may add values to those of an epoch."""
        return any(
            isinstance(callback, LambdaCallback) or type(callback).__module__.partition(".")[0] != "ortrain"
            for callback in self._active
        )

    def _methods(self, moment: str) -> list[Callable[..., None]]:
        """Return the methods that callbacks define for a moment."""
        found = [getattr(callback, moment) for callback in self._active]
        default = getattr(Callback, moment)
        return [method for method in found if getattr(method, "__func__", None) is not default]

    def _call(self, moment: str, *arguments: Any) -> None:
        for method in self._methods(moment):
            method(*arguments)

    def _named_callbacks(self) -> Iterator[tuple[str, Callback]]:
        counts: dict[str, int] = {}
        for callback in self._active:
            name = type(callback).__name__
            counts[name] = counts.get(name, 0) + 1
            yield f"{name} {counts[name]}", callback

    # ---- the schedule ----

    def _schedule_settings(self) -> dict[str, Any]:
        schedule = self._schedule
        if not isinstance(schedule, Schedule):
            return {"schedule": getattr(schedule, "__name__", "function"), "warmup": 0}
        settings = schedule.as_json()
        more = {"schedule_settings": settings} if settings else {}
        return {"schedule": schedule.name, **more, "warmup": schedule.warmup}

    @property
    def _steps_of_epoch(self) -> int | None:
        return None if self.steps_per_epoch is None else -(-self.steps_per_epoch // self.accumulate)

    @property
    def _total_steps(self) -> int | None:
        return None if self._steps_of_epoch is None else self.epochs * self._steps_of_epoch

    def _register_schedule(self) -> None:
        """Register the schedule of a run, or none where a function computes the rate."""
        schedule = self._schedule if isinstance(self._schedule, Schedule) else Schedule("constant")
        total, epoch = self._total_steps, self._steps_of_epoch
        schedule.register(self.optimizer, self._learning_rate, self._first_step, total, epoch)
        self._is_scheduled = True

    def _steps_taken(self) -> int:
        """Return the number of optimizer steps that led to the state, perhaps in several runs."""
        return _ortrain.checkpoint_get_optimizer_step_count(self.state._handle)

    # ---- where the run is ----

    def _check_trains(self, call: str) -> None:
        if self._is_read_only:
            raise ValueError(f"{call}: the trainer was created with read_only=True, so it cannot train")

    def _begin_run(self, resume: StrPath | None) -> None:
        self._check_trains("fit")
        self.resumed = resume is not None
        if resume is not None:
            self._open(resume)
            if self._position is None:
                raise ValueError(
                    f"resume: expected a checkpoint that Trainer.save or ModelCheckpoint wrote, found {os.fspath(resume)}"
                )
        self._check_accounting()
        if resume is not None:
            return
        if self.rehearsal is not None:
            self.rehearsal.begin()
        self.epoch = self.step = self._batch = 0
        self._loss_sum, self._row_count = 0.0, 0
        self.history = {}
        self._is_scheduled, self._first_step = False, self._steps_taken()

    def _check_accounting(self) -> None:
        """Reject steps without privacy on private parameters, unless the caller ends the privacy explicitly."""
        accountant = self.accountant
        if accountant is None or accountant.is_void or self._privacy is not None:
            return
        if self._given_privacy is None:
            raise ValueError(
                "fit: the parameters come from steps with differential privacy, which steps without it would undo: expected a "
                "trainer with Trainer(..., privacy=Privacy(...)), which continues to count epsilon, or with privacy=False, if "
                "privacy is to end"
            )
        accountant.add(0.0, 1.0)
        store_accounting(self.state, accountant)

    def _continue(self, position: dict[str, Any]) -> int:
        """Take over the position of a saved run; return the index of the next batch."""
        for name, now in self._data_settings.items():
            before = position["data"].get(name)
            if now != before:
                raise ValueError(
                    f"resume: expected {name} {before}, as when the checkpoint was saved, found {now}; to begin another run "
                    "with its parameters, use Trainer(checkpoint=...) or `ortrain train --checkpoint FILE`"
                )
        if position["seed"] != self.seed:
            raise ValueError(
                f"resume: expected seed {position['seed']}, as when the checkpoint was saved, found {self.seed}"
            )
        self.epoch, self.step = position["epoch"], position["step"]
        self._first_step = position.get("first_step", self._steps_taken() - self.step)
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

    def save(self, path: StrPath) -> None:
        """Write a checkpoint from which ``fit(resume=...)`` continues: parameters, optimizer and where the run is.

        Raises
        ------
        ValueError
            When gradients of some batches wait for an optimizer step.
        """
        if self._micro:
            raise ValueError(
                f"save: expected no gradients that wait for an optimizer step, found those of {counted(self._micro, 'batch')}"
            )
        position = {
            "seed": self.seed,
            "runs": self._runs,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "batch": self._batch,
            "step": self.step,
            "first_step": self._first_step,
            "loss_sum": self._loss_sum,
            "row_count": self._row_count,
            "learning_rate": self._learning_rate,
            "metrics": [metric.state() for metric in self.metrics],
            "gradients": self._gradients.state(),
            "history": self.history,
            "callbacks": {name: callback.state() for name, callback in self._named_callbacks()},
            "data": self._data_settings,
        }
        rehearsed = None if self.rehearsal is None else self.rehearsal.state()
        store_accounting(self.state, self.accountant)
        save_run(self.state, Path(path), position, self.classes, self.columns, self.preprocessing, rehearsed)
