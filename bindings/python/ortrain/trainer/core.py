"""The trainer: :class:`Trainer`, what a program calls."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ortrain import _ortrain
from ortrain._support.counts import counted
from ortrain.api import CheckpointState
from ortrain.errors import NoSuchFileError
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.preprocessing.augmentation import augmentation_of
from ortrain.trainer.augmenting import Augmented, check_inputs, check_mixes
from ortrain.trainer.caching import Caching
from ortrain.trainer.callbacks import Callback, Logs, ModelCheckpoint, checked
from ortrain.trainer.checks import as_array, is_frame
from ortrain.trainer.data import Source, prefetched, source_of, split
from ortrain.trainer.feature_store import FeatureCache
from ortrain.trainer.metrics import Metric, metric_of
from ortrain.trainer.mezo import MeZO, check_mezo, mezo_of
from ortrain.trainer.notebook import progress
from ortrain.trainer.opening import session_config, store_accounting
from ortrain.trainer.prediction import predict
from ortrain.trainer.private import Privacy, check_monitors, check_settings, compares_rows
from ortrain.trainer.quantized import RANGE, fold_quantization
from ortrain.trainer.rate_search import LearningRates, Search
from ortrain.trainer.raw_rows import RawRows
from ortrain.trainer.rehearsal import Rehearsal, rehearsal_of
from ortrain.trainer.run import StrPath
from ortrain.trainer.schedules import Schedule, ScheduleFunction, schedule_of
from ortrain.trainer.summaries import optimizer_states
from ortrain.trainer.summary import summary_of
from ortrain.trainer.weighting import WEIGHTS, weights_of

if TYPE_CHECKING:
    import onnx

    from ortrain.artifacts import Head, Int8, LoRA, LossType, OptimType
    from ortrain.onnxblock import Block
    from ortrain.onnxblock.optim import ParamGroup, ParamGroups, WeightAverage
    from ortrain.onnxblock.optim.models import Clip


def _existing(folder: Path, of_a_model: Mapping[str, Any]) -> Path:
    """Return a folder of artifacts; reject arguments that only apply to a model."""
    for name, given in of_a_model.items():
        if given is not None:
            expected = "a network with them" if name == "args" else "a model or a network with it"
            raise TypeError(
                f"{name}: expected {expected}, found a folder of artifacts, {os.fspath(folder)!r}, whose models are made already"
            )
    for name in ("training_model.onnx", "checkpoint", "optimizer_model.onnx"):
        if not (folder / name).exists():
            raise NoSuchFileError(f"Trainer: expected {name} among the artifacts in {folder}")
    return folder


def _folder_for_artifacts(given: StrPath | None) -> tuple[Path, tempfile.TemporaryDirectory[str] | None]:
    """Return the given folder, or a temporary one with its owner."""
    if given is not None:
        return Path(given), None
    # Windows does not remove files that a session maps, so a session must be dropped before the folder.
    temporary = tempfile.TemporaryDirectory(prefix="ortrain-", ignore_cleanup_errors=True)
    return Path(temporary.name), temporary


def _check(
    learning_rate: float | None,
    accumulate: int,
    seed: int,
    schedule: str | Schedule | ScheduleFunction | None,
    warmup: int,
) -> None:
    if learning_rate is not None and not 0 <= learning_rate < math.inf:
        raise ValueError(f"learning_rate: expected a number of 0 or more, found {learning_rate}")
    if accumulate < 1:
        raise ValueError(f"accumulate: expected 1 or more, found {accumulate}")
    if seed < 0:
        raise ValueError(f"seed: expected 0 or more, found {seed}")
    schedule_of(schedule, warmup)


def _check_private(
    loss: Any, optimizer: Any, accumulate: int, mixes: bool, qat: Any, rehearsal: Any, weighted: bool
) -> None:
    """Reject arguments that a private trainer cannot have."""
    check_settings(
        accumulate=accumulate > 1,
        augment=mixes,
        loss=compares_rows(loss),
        optimizer=mezo_of(optimizer) is not None,
        qat=qat is not None,
        rehearsal=rehearsal is not None,
        sample_weight=weighted,
    )


class Trainer(Caching):
    """Trains a model: a loop over train steps and optimizer steps, with data, metrics and callbacks.

    Parameters
    ----------
    model : str or os.PathLike or onnx.ModelProto or torch.nn.Module or keras.Model or network of JAX
        A folder of training artifacts; or an inference model or a network, from which artifacts are created.
    loss : str or LossType or onnxblock.Block, optional
        For an inference model: "cross_entropy", "mse", "bce_with_logits", "l1", or what `generate_artifacts` takes.
        By default the first output of the model is the loss.
    optimizer : str or OptimType or onnxblock.Block or MeZO, default "adamw"
        For an inference model: "adamw", "sgd", or what `generate_artifacts` takes; "mezo" or `MeZO` for steps without a
        backward pass. Artifacts that were made for MeZO are trained by it.
    learning_rate : float, optional
        The learning rate; the default of the optimizer model if it is left out.
    schedule : str or Schedule or callable, optional
        How the rate changes with the optimizer steps: a name such as "cosine"; a `Schedule`, which has settings; or a function
        of the steps taken and of their total number that returns a factor.
    warmup : int, default 0
        Optimizer steps in which the rate rises from 0, before a schedule that is not a function.
    accumulate : int, default 1
        Number of batches of an optimizer step. The step takes the mean of their gradients, in which each row counts the
        same, even if batches differ in size. So the step equals that of one batch with all these rows.
    metrics : list of str or Metric or callable, default ()
        Values to compute besides the loss: names, objects of `ortrain.trainer.metrics`, or functions of the prediction
        and the target of a batch that return the mean over its rows.
    callbacks : list of Callback, default ()
        Callbacks of every run.
    seed : int, default 0
        Seed of the order of rows and of random operators such as Dropout. It is the seed of the process, see
        :func:`ortrain.set_seed`, and is set by every `fit`.
    outputs : list of str, optional
        The values that `predict` returns and `export` keeps. By default the outputs of the eval model after the loss.
    checkpoint : str or os.PathLike, optional
        The file with the parameters; the checkpoint of the artifacts by default.
    artifact_directory : str or os.PathLike, optional
        Where the artifacts of an inference model are written; a temporary folder by default.
    requires_grad, frozen_params : list of str, optional
        For an inference model: as in `generate_artifacts`.
    output : str, optional
        For an inference model: the value that a loss given by its name is computed from; its first output by default. Cross
        entropy takes scores, which is what a model has before its Softmax.
    batch : "dynamic", optional
        For an inference model that was exported with a fixed batch size: as in `generate_artifacts`.
    head : Head, optional
        For an inference model: a new classifier, as in `generate_artifacts`. The loss is cross entropy by default.
    adapter : LoRA, optional
        For an inference model: low-rank adapters, which are trained in place of its weights, as in `generate_artifacts`.
        The weights are in the file ``weights.data`` of the artifacts, which sessions map read-only and processes share.
    qat : Int8, optional
        For an inference model: quantization-aware training, as in `generate_artifacts`. `export` writes a quantized model.
    args : tensor, tuple, list or mapping, optional
        For a network: example arguments, as in `generate_artifacts`.
    sample_weight : bool, default False
        For an inference model and a loss given by its name: whether steps take a weight for each row, the input
        ``sample_weight``. Data without weights have 1.
    clip : float or ClipGradNorm or ClipGradValue or ClipGroupNorm or ClipAdaptive or sequence, optional
        For an inference model and an optimizer given by its name: the norm of all gradients together to which larger
        gradients are scaled down; or another way of clipping, from `ortrain.onnxblock.optim`.
    weight_decay : float, optional
        For an inference model and an optimizer given by its name: its weight decay.
    param_groups : ParamGroups or sequence of ParamGroup, optional
        For an inference model and an optimizer given by its name: parameters with other settings. By default, with a
        ``weight_decay``, biases and the gains of normalizations do not decay.
    ema : float or WeightAverage, optional
        For an inference model and an optimizer given by its name: the decay of an exponential moving average of the weights,
        which `evaluate`, `predict` and `export` use.
    precision : {"fp32", "bf16"}, default "fp32"
        Whether activations are kept in bfloat16, see the page on mixed precision.
    threads : int, default 0
        Threads of a step; 0 for one per processor.
    config : mapping of str to str, optional
        Configuration entries of the session. An unknown key is an error; keys of onnxruntime that have no effect here are
        ignored with a warning.
    feature_cache : FeatureCache or bool, default True
        Whether `fit` computes the frozen body of a model once for each sample and keeps its features: in memory, or as a
        `FeatureCache` says. It does so for data with rows and several epochs, if most layers are frozen and the results have
        the same bits. Augmentation turns it off.
    augment : str or mapping or sequence or callable, optional
        Changes of the pictures of training batches, in a new way in every epoch, such as "crop,flip,mixup" or
        ``{"crop": 0.125, "mixup": 0.4}``: crop, zoom, rotate, flip, color, cutout, mixup and cutmix, see the page on
        the trainer. A function takes pictures, ``[rows, channels, height, width]``, and a ``numpy.random.Generator``.
        For an inference model with mixup or cutmix, the loss "cross_entropy" is computed with a probability for each
        class.
    rehearsal : Rehearsal or int, optional
        A buffer for rows of all runs, or its size in rows. Each batch of a later run gets some of these rows in
        addition, so that the model does not forget what it learned earlier. Loss and metrics of a run include them.
        Checkpoints store the rows.
    privacy : Privacy or bool, optional
        Differential privacy of the rows that runs train on, see the page on privacy; True for its defaults. Epochs then
        have the values ``epsilon``, of all steps so far, and ``clipped``, the share of the gradients that were longer
        than the clip. Checkpoints store the accounting, and `fit` of a trainer without privacy rejects such
        checkpoints. With False, `fit` continues from them: privacy then ends, and epsilon is infinite from then on.
    read_only : bool, default False
        Whether the trainer evaluates, predicts and exports, and does not train. It maps the checkpoint, and has neither
        gradients nor optimizer state in memory. The checkpoint must not be changed in place while the trainer exists.

    Attributes
    ----------
    module, optimizer, state : Module, Optimizer, CheckpointState
        The objects that the loop uses. `fit` with ``resume`` replaces them.
    history : dict of str to list
        The values of each epoch of the last run, by name.
    epoch, step : int
        The current epoch, from 0, and the optimizer steps taken in the run.
    epochs, steps_per_epoch : int, int or None
        Length of the run.
    classes : list of str or None
        The names of the classes of a classifier, in the order of their numbers. Checkpoints keep them. None if they are not
        known.
    columns : Columns or None
        The names of the columns that a model with one input is trained on, if the data have names: those of a data frame or
        of a table. Other data frames and tables are read by these names, in any order of the columns. Checkpoints keep them.
        None if the columns have no names; set it to None to train on other columns.
    preprocessing : dict or None
        The preprocessing that `ortrain train` applied to rows, as stored in checkpoints. `fit`, `evaluate` and
        `predict` apply it to data frames, to columns by name, to texts and to the bytes of pictures. They do not change
        other arrays, and warn, because such arrays may be preprocessed already. None if there is no preprocessing.
    accountant : Accountant or None
        The private steps that the parameters come from. ``accountant.epsilon(delta)`` is their epsilon. None if there are none.
    resumed : bool
        Whether the run continues from a checkpoint.
    stop_training : bool
        Set it to end the run after the current optimizer step.
    stop_reason : str or None
        Why the run ended before its last epoch, set by the callback that ended it; None if it did not end early.
    last_batch, last_outputs : list of array
        The inputs of the eval step before ``on_test_batch_end``, and its outputs: the loss, then other outputs.

    Raises
    ------
    FileNotFoundError
        When there is no model.
    ValueError
        When an argument is invalid or the model cannot be trained.
    """

    def __init__(
        self,
        model: StrPath | onnx.ModelProto | Any,
        loss: str | LossType | Block | None = None,
        optimizer: str | OptimType | Block | MeZO = "adamw",
        *,
        learning_rate: float | None = None,
        schedule: str | Schedule | ScheduleFunction | None = None,
        warmup: int = 0,
        accumulate: int = 1,
        metrics: Sequence[str | Metric | Callable[[Any, Any], Any]] = (),
        callbacks: Sequence[Callback] = (),
        seed: int = 0,
        outputs: Sequence[str] | None = None,
        checkpoint: StrPath | None = None,
        artifact_directory: StrPath | None = None,
        requires_grad: Sequence[str] | None = None,
        frozen_params: Sequence[str] | None = None,
        output: str | None = None,
        batch: str | None = None,
        head: Head | None = None,
        adapter: LoRA | None = None,
        qat: Int8 | None = None,
        args: Any = None,
        sample_weight: bool = False,
        clip: float | Clip | Sequence[Clip] | None = None,
        weight_decay: float | None = None,
        param_groups: ParamGroups | Sequence[ParamGroup] | None = None,
        ema: float | WeightAverage | None = None,
        precision: str = "fp32",
        threads: int = 0,
        config: Mapping[str, str] | None = None,
        feature_cache: FeatureCache | bool = True,
        augment: str | Mapping[str, float] | Sequence[Any] | Callable[..., Any] | None = None,
        rehearsal: Rehearsal | int | None = None,
        privacy: Privacy | bool | None = None,
        read_only: bool = False,
    ) -> None:
        _check(learning_rate, accumulate, seed, schedule, warmup)
        config = session_config(precision, config)
        checked_metrics = [metric_of(metric) for metric in metrics]  # before artifacts are made
        self._augmentation = augmentation_of(augment)
        mixes = check_mixes(self._augmentation, sample_weight)
        if privacy:
            _check_private(loss, optimizer, accumulate, mixes, qat, rehearsal, sample_weight)
        recipe = {"clip": clip, "weight_decay": weight_decay, "param_groups": param_groups, "ema": ema}
        of_a_model: dict[str, Any] = {"args": args, "head": head, "adapter": adapter, "qat": qat}
        temporary = None
        if isinstance(model, (str, os.PathLike)) and Path(model).is_dir():
            folder = _existing(Path(model), {**of_a_model, **recipe, "sample_weight": sample_weight or None})
            check_mezo(folder, optimizer)
        else:
            from ortrain.trainer.creation import make_artifacts, with_settings  # needs onnx

            folder, temporary = _folder_for_artifacts(artifact_directory)
            block = with_settings(optimizer, recipe)
            of_a_model |= {"batch": batch, "weighted": sample_weight, "soft_targets": mixes}
            of_a_model["mezo"] = mezo_of(optimizer)
            make_artifacts(*(model, loss, block, folder, requires_grad, frozen_params, output), **of_a_model)
        super().__init__(
            folder,
            folder / "checkpoint" if checkpoint is None else checkpoint,
            learning_rate=learning_rate,
            schedule=schedule,
            warmup=warmup,
            accumulate=accumulate,
            metrics=checked_metrics,
            callbacks=callbacks,
            seed=seed,
            threads=threads,
            config=config,
            rehearsal=rehearsal_of(rehearsal),
            privacy=privacy,
            read_only=read_only,
        )
        if self._augmentation is not None:
            check_inputs(self._augmentation, self.inputs)
        self._feature_cache = FeatureCache() if feature_cache is True else feature_cache or None
        self.outputs = list(outputs) if outputs is not None else self._eval_outputs[1:]
        self._temporary = temporary  # the last attribute: Python drops them in order (_folder_for_artifacts)

    def fit(
        self,
        data: Any,
        target: Any = None,
        epochs: int = 1,
        *,
        sample_weight: Any = None,
        class_weight: Mapping[Any, float] | str | None = None,
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
            A tuple of arrays in the order of the model's inputs, or a dictionary of arrays by input name; a data frame with
            a column named like the target; a Hugging Face dataset; any iterable of batches, each a tuple or a dictionary,
            such as a ``DataLoader`` of PyTorch or a ``tf.data.Dataset``; an iterator, such as a generator; or a function of
            the epoch that returns an iterable. Entries of a dictionary that the model does not know are not used.
            Floating-point and integer values are converted to the type of the model's input if none is lost. Arrays may be
            lists, data frames or their columns. Classes may be names, which are numbered in alphabetical order (see
            ``classes``), or one-hot.
        target : object, optional
            The targets, if ``data`` has only the other inputs. A number in this place is taken as ``epochs``.
        epochs : int, default 1
            Number of passes over the data, including those before the checkpoint that is resumed.
        sample_weight : array of float, optional
            A weight for each row of arrays in memory. The trainer must have been created with ``sample_weight=True``.
        class_weight : mapping or "balanced", optional
            The weight of each class, by its number or name, or weights that make all classes count the same. They multiply the
            weights of rows, and need a trainer with ``sample_weight=True`` too.
        validation : object, optional
            Data that are evaluated after each epoch; or the share of the rows of ``data`` that is held out for that.
        batch_size : int, default 32
            Rows of a batch, for data that have rows.
        shuffle : bool, default True
            Whether each epoch has its own order of rows.
        drop_last : bool, default False
            Whether a last batch with fewer rows is left out, as a model with a fixed batch size requires.
        steps_per_epoch : int, optional
            Batches of an epoch; all by default.
        prefetch : int, optional
            Batches that a thread prepares while steps run; 0 for no thread. By default 2, and 0 for arrays in memory.
        callbacks : list of Callback, default ()
            Callbacks of this run, besides those of the trainer.
        resume : str or os.PathLike, optional
            A checkpoint that `save` or `ModelCheckpoint` wrote. The run continues where it was saved, with the same
            bits as an uninterrupted run. Without this argument, a run starts with the current parameters of the
            trainer.
        verbose : bool, default True
            Whether progress is shown: a bar in a terminal, a table in a notebook, else a line for each epoch.

        Returns
        -------
        dict of str to list
            The values of each epoch: ``loss``, metrics, ``learning_rate``, and for validation ``val_loss`` and so on.

        Raises
        ------
        ValueError
            When the data do not match the model, or a resumed run not its checkpoint.
        """
        data, epochs = self._with_target(data, target, epochs)
        self._begin_run(resume)
        data, validation = self._prepared(data), self._prepared(validation)
        if epochs < 1:
            raise ValueError(f"epochs: expected 1 or more, found {epochs}")
        if sample_weight is not None or class_weight is not None:
            data = self._weighted(data, sample_weight, class_weight)
        self._give_names()
        rows = held_out = None
        if isinstance(validation, float):
            rows, held_out = split(data, validation, self.inputs, self.seed)
        source = self._augmented(
            self._gradients.draw(
                source_of(
                    data, self.inputs, batch_size, shuffle, self.seed, steps_per_epoch, drop_last, rows
                ),
                shuffle,
                drop_last,
            )
        )
        test: Source | None = None
        if held_out is not None:
            test = source_of(data, self.inputs, batch_size, False, self.seed, rows=held_out)
        elif validation is not None:
            test = source_of(validation, self.inputs, batch_size, False, self.seed)
        self._take_names()
        self._columns, self._validation = source.columns, test
        self._data_settings = {"batch_size": batch_size, "shuffle": shuffle, "accumulate": self.accumulate}
        self._data_settings["augment"] = self._augmentation and str(self._augmentation)
        self._data_settings["rehearsal"] = None if self.rehearsal is None else str(self.rehearsal)
        self._data_settings |= self._gradients.settings
        self._data_settings["steps_per_epoch"] = self.steps_per_epoch = source.steps
        self.epochs = epochs
        self._active = [*self.callbacks, *checked(callbacks)]
        if verbose:
            self._active.append(progress())
        self._active.sort(
            key=lambda callback: isinstance(callback, ModelCheckpoint)
        )  # checkpoints come last, because they save the state of the other callbacks
        for callback in self._active:
            callback.set_trainer(self)
        first_batch = self._continue(self._position) if self.resumed and self._position else 0
        self._begin_gradients(first_batch)
        self._register_schedule()
        if self.rehearsal is None:  # batches have different rows in every epoch
            self._keep_features(source, first_batch)
        _ortrain.set_seed(self.seed)
        self.stop_training, self.stop_reason = False, None
        self._train(source, first_batch, source.prefetch if prefetch is None else prefetch)
        return self.history

    def _train(self, source: Source, first_batch: int, prefetch: int) -> None:
        """Take the steps of a run."""
        logs: Logs = {}
        self._call("on_train_begin", logs)
        try:
            while self.epoch < self.epochs and not self.stop_training:
                batches = prefetched(source.batches(self.epoch, first_batch), prefetch)
                if first_batch == 0:
                    self._begin_epoch()
                with closing(batches):
                    complete = self._train_epoch(batches, first_batch)
                if not complete:
                    break
                logs = self._end_epoch()
                self._features_of_epoch()
                first_batch = 0
        finally:
            store_accounting(self.state, self.accountant)
            self._call("on_train_end", logs)
            self._validation = None
            self._drop_features()

    def _begin_gradients(self, first_batch: int) -> None:
        """Prepare the gradients of a run."""
        if self._privacy is not None and self._privacy.noise_multiplier != 0:
            check_monitors(self._active, self._schedule, self._validation is not None)
        steps, before = self._total_steps, self._position or {}
        left = (
            None if steps is None else max(0, steps - self.epoch * (self._steps_of_epoch or 0) - first_batch)
        )
        state = before.get("gradients", {}) if self.resumed else {}
        self._gradients.begin(left, state if before.get("epochs") == self.epochs else {})
        self._gradients.load_state(state)

    def _augmented(self, source: Source) -> Source:
        """Return the batches of a source, augmented if that was requested."""
        if self._augmentation is None:
            return source
        return Augmented(source, self._augmentation, self.inputs, self.seed)

    def _with_target(self, data: Any, target: Any, epochs: int) -> tuple[Any, int]:
        """Return the data of all inputs, and the epochs; a number in place of the targets counts as the epochs."""
        if target is None:
            return data, epochs
        if isinstance(target, (int, np.integer)) and not isinstance(target, bool):
            return data, int(target)
        if isinstance(data, Mapping):
            return {**data, self.inputs.names[-1]: target}, epochs
        return (*(data if isinstance(data, tuple) else (data,)), target), epochs

    def _weighted(self, data: Any, sample_weight: Any, class_weight: Mapping[Any, float] | str | None) -> Any:
        """Return data with a weight for each row."""
        if WEIGHTS not in self.inputs.names:
            raise ValueError(
                "sample_weight: the training model takes no weights; Trainer(model, loss=..., sample_weight=True) makes one "
                "that does"
            )
        if is_frame(data):
            data = self.inputs.of_frame(data)
        if not isinstance(data, (tuple, Mapping)):
            raise ValueError(
                f"sample_weight: expected arrays in memory, found {type(data).__name__}; batches may have the weights as "
                f"{WEIGHTS!r}"
            )
        values = dict(zip(self.inputs.names, self.inputs.in_order(data), strict=True))
        target = as_array(values[self.inputs.names[-1]], self.inputs.names[-1])
        return {**values, WEIGHTS: weights_of(target, sample_weight, class_weight)}

    def find_learning_rate(
        self,
        data: Any,
        target: Any = None,
        *,
        lowest: float = 1e-6,
        highest: float = 1.0,
        steps: int = 100,
        batch_size: int = 32,
    ) -> LearningRates:
        """Take steps at rising learning rates until the loss grows. Afterwards the state of the trainer is restored.

        Parameters
        ----------
        data, target
            As for `fit`.
        lowest, highest : float
            The first and the last rate.
        steps : int, default 100
            The maximum number of steps.
        batch_size : int, default 32
            Rows of a batch, for data that have rows.

        Returns
        -------
        LearningRates
            Rates and losses, with a ``suggestion`` and a ``plot``.

        Raises
        ------
        ValueError
            When the data do not match the model, or the loss is not finite from the start.
        """
        self._check_trains("find_learning_rate")
        if self._privacy is not None:
            raise ValueError(
                "find_learning_rate: expected a trainer without privacy, because the rate that it finds depends on "
                "rows without noise; search with data that need no protection"
            )
        data = self._prepared(self._with_target(data, target, 1)[0])
        search, rate_before = Search(lowest, highest, steps), self._learning_rate
        self._give_names()
        source = self._augmented(source_of(data, self.inputs, batch_size, True, self.seed))
        names = self.inputs.classes, self.inputs.columns
        position, runs = self._position, self._runs
        rehearsed = None if self.rehearsal is None else self.rehearsal.state()
        with tempfile.TemporaryDirectory() as folder:
            before = Path(folder) / "checkpoint"
            CheckpointState.save_checkpoint(self.state, before, include_optimizer_state=True)
            try:
                self._search(search, source)
            finally:
                self._open(before)
                self._position, self._runs = position, runs
                if self.rehearsal is not None and rehearsed is not None:
                    self.rehearsal.load_state(rehearsed)
                self.learning_rate = rate_before
        self.classes, self.columns = names
        if len(search.losses) < 3:
            raise ValueError(
                f"find_learning_rate: expected a finite loss from the start, found "
                f"{counted(len(search.losses), 'finite loss')}; lower "
                f"``lowest``, {lowest:g}, or look for values in the data that are not finite"
            )
        return LearningRates(search.rates, search.losses)

    # ---- evaluation, prediction, files ----

    def summary(self) -> str:
        """Return a table of the parameters, which of them are trained, and the memory that training keeps in use.

        ``print(trainer)`` prints it.
        """
        shown = [f"{form.name} {form.shown()}" for form in self.inputs.forms]
        return summary_of(self.state, shown, optimizer_states(self.folder))

    def __str__(self) -> str:
        return self.summary()

    def evaluate(
        self, data: Any, target: Any = None, *, batch_size: int = 32, prefetch: int | None = None
    ) -> dict[str, Any]:
        """Return loss and metrics on data and perhaps targets, as `fit` takes them.

        The loss is the mean of the batches' losses, weighted by their rows.

        Raises
        ------
        ValueError
            When the data do not match the model, or there is no eval model.
        """
        self._active = list(self.callbacks)
        for callback in self._active:
            callback.set_trainer(self)
        if target is not None:
            data, _ = self._with_target(data, np.asarray(target) if np.isscalar(target) else target, 1)
        data = self._prepared(data)
        self._give_names()
        return self._test(source_of(data, self.inputs, batch_size, False, self.seed), prefetch)

    def _give_names(self) -> None:
        """Give the inputs the names of columns by which data are read."""
        self.inputs.classes, self.inputs.columns = self.classes, self.columns

    def _take_names(self) -> None:
        """Keep the names of the columns of data in memory."""
        self.classes, self.columns = self.inputs.classes, self.inputs.columns

    def validate(self) -> dict[str, Any]:
        """Return loss and metrics on the validation data of the current run, for a callback.

        Raises
        ------
        ValueError
            When no run is in progress, or the run has no validation data.
        """
        if self._validation is None:
            raise ValueError(
                "validate: expected a run with validation data, found none; give fit a validation"
            )
        return self._test(self._validation, 0)

    def predict(self, data: Any, *, batch_size: int = 32) -> Any:
        """Return the outputs of the model for data.

        Parameters
        ----------
        data : object
            An array or tensor, a list of rows or a data frame if the model has one input; otherwise as `fit` takes them, with
            or without the targets.
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
        data = self._prepared(data)
        self._give_names()
        return predict(self._prediction_session(), self.inputs, data, batch_size, self.seed)

    def _prepared(self, data: Any) -> Any:
        """Return data with the preprocessing that is stored in the checkpoint."""
        if self.preprocessing is None or data is None or isinstance(data, float):
            return data
        return RawRows(self.preprocessing, self.columns, self.inputs, self.folder).prepared(data)

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
                "export: expected outputs besides the loss in the eval model, found none; name values of that model in outputs"
            )
        self.module.export_model_for_inferencing(path, names)
        if any(name.startswith(RANGE) for name, _ in self.state.parameters):
            fold_quantization(path)
