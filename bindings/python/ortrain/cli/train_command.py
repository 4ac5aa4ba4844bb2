"""``ortrain train``."""

from __future__ import annotations

import shutil
import signal
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ortrain._files.writing import write_file
from ortrain._support.counts import counted
from ortrain._support.places import VALIDATION
from ortrain._support.signals import ENDING
from ortrain.cli import app, fitting, language_models, results, running
from ortrain.cli.artifacts_command import LOSSES, OPTIMIZERS
from ortrain.cli.language_options import LanguageOptions, language_options
from ortrain.cli.numbers import Integer, Number
from ortrain.cli.privacy_options import PrivacyOptions, privacy_options
from ortrain.cli.wanted import Choice
from ortrain.errors import FileError, OrtrainError
from ortrain.preprocessing.augmentation import augmentation_of
from ortrain.text import TokenSpeed
from ortrain.trainer import (
    Callback,
    CSVLogger,
    EarlyStopping,
    FeatureCache,
    JSONLogger,
    ProgbarLogger,
    Schedule,
    TensorBoard,
    Trainer,
    schedules,
)
from ortrain.trainer.names import two_words

_PLACES = ("memory", "off")  # values of --cache other than a folder


@app.command(
    "train",
    """
    ortrain train artifacts --data digits.npz --epochs 10 --metric accuracy --validation 0.2
    ortrain train artifacts --data images/ --epochs 20 --patience 3 --lr 1e-3 --schedule cosine
    ortrain train artifacts --data digits.npz --epochs 20 --resume artifacts/runs/1/interrupted.ckpt
    ortrain train artifacts --data digits.npz --epochs 10 --from-start
    ortrain train --data images/ --epochs 40 --augment flip,crop,color --metrics accuracy,f1
    ortrain train --data images/ --epochs 40 --optimizer muon --loss cross_entropy
    ortrain train --data flowers.csv --target kind --validation 0.2 --epochs 20
    ortrain train --data patients.csv --epsilon 3 --delta 1e-6 --validation 0.2 --epochs 20
    ortrain train model.onnx --data chats.jsonl --adapter lora --validation 0.1
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="[DIR|MODEL]", required=False)
@running.data_options
@click.option(
    "--sample-weight",
    "weight",
    metavar="COLUMN",
    help="column or array with a weight for each row, for artifacts of `ortrain artifacts --sample-weight` (default that of the "
    "run that is continued)",
)
@click.option(
    "--loss",
    type=click.Choice(LOSSES[:-1]),
    help="the loss, without DIR (default: that which fits the target)",
)
@click.option(
    "--optimizer",
    type=click.Choice(OPTIMIZERS),
    help="the optimizer, without DIR (default adamw); mezo takes two forward passes and no backward pass",
)
@click.option("--epochs", type=running.COUNT, default=1, show_default=True, help="passes over the data")
@click.option(
    "--validation", metavar="SHARE|PATH", help="share of the rows to hold out, or other data, for validation"
)
@click.option(
    "--lr",
    type=Number(min=0, min_open=True),
    help="learning rate (default: that of the run that is continued, else the rate in the optimizer model)",
)
@click.option(
    "--schedule",
    type=click.Choice(list(schedules.declared())),
    default="constant",
    show_default=True,
    help="how the rate changes with the optimizer steps",
)
@click.option(
    "--schedule-option",
    "schedule_options",
    metavar="NAME=VALUE",
    multiple=True,
    help="setting of the schedule, such as gamma=0.5 or milestones=10:20; per_epoch=1 counts epochs instead of steps; "
    "may be repeated",
)
@click.option(
    "--warmup", type=Integer(min=0), default=0, help="optimizer steps in which the rate rises from 0"
)
@click.option("--accumulate", type=running.COUNT, default=1, help="batches per optimizer step (default 1)")
@click.option(
    "--shuffle/--no-shuffle",
    default=True,
    show_default=True,
    help="whether each epoch has a new random order of the rows",
)
@click.option("--seed", type=Integer(min=0), default=0, show_default=True, help="seed of order and dropout")
@running.metrics_option
@click.option(
    "--monitor",
    metavar="VALUE",
    help="value that decides which epoch is best, such as val_accuracy (default val_loss with validation, else loss)",
)
@click.option("--patience", type=running.COUNT, help="stop after this many epochs without an improvement")
@click.option(
    "--keep",
    type=running.COUNT,
    default=3,
    show_default=True,
    help="epochs whose checkpoints are kept, the best ones and the last one",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="folder of runs, in which each run has a numbered folder of logs and checkpoints (default DIR/runs)",
)
@click.option("--name", help="name of the run in the dashboard (default two words, such as quiet-otter)")
@click.option(
    "--samples",
    type=Integer(min=0),
    default=12,
    show_default=True,
    help="number of misclassified rows of each validation to log, with their inputs",
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="also write event files of TensorBoard, with curves by step, histograms and the graph, into the folder of the "
    "run",
)
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    metavar="FILE|best|last",
    help="begin with these parameters (default DIR/best.ckpt if it exists, else DIR/checkpoint)",
)
@click.option("--from-start", is_flag=True, help="begin with DIR/checkpoint, the parameters before training")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FILE|last",
    help="complete the run that saved this checkpoint; last means DIR/last.ckpt",
)
@click.option(
    "--features",
    metavar="memory|off|DIR",
    default="memory",
    show_default=True,
    help="where to store the features that a frozen body computes for each row, so that later epochs run only the "
    "trained layers: in memory, nowhere, or in a folder that later runs also use",
)
@click.option(
    "--augment",
    metavar="NAME[=NUMBER],...",
    help="changes of the pictures of training batches, such as flip,crop=0.2,mixup: crop, zoom, rotate, flip, color, cutout, "
    "mixup and cutmix; NUMBER is its strength",
)
@running.preprocessing_options
@click.option("--threads", type=int, default=0, help="threads of a step (default one per processor)")
@click.option(
    "--precision",
    type=click.Choice(["fp32", "bf16"]),
    default="fp32",
    show_default=True,
    help="bf16 keeps activations in bfloat16, and computes products in it on processors that are faster that way, also "
    "with quantized weights",
)
@running.config_option
@privacy_options
@language_options
@app.as_json
def command(
    folder: Path | None,
    data: Path,
    target: str | None,
    batch: int,
    header: bool | None,
    weight: str | None,
    loss: str | None,
    optimizer: str | None,
    epochs: int,
    validation: str | None,
    lr: float | None,
    schedule: str,
    schedule_options: tuple[str, ...],
    warmup: int,
    accumulate: int,
    shuffle: bool,
    seed: int,
    metrics: tuple[str, ...],
    monitor: str | None,
    patience: int | None,
    keep: int,
    out: Path | None,
    name: str | None,
    samples: int,
    tensorboard: bool,
    checkpoint: Path | None,
    from_start: bool,
    resume: Path | None,
    features: str,
    augment: str | None,
    preprocess: bool | None,
    normalize: str | None,
    size: tuple[int, int] | None,
    tokenizer: Path | None,
    threads: int,
    precision: str,
    config: dict[str, str],
    privacy: PrivacyOptions,
    language: LanguageOptions,
    json_output: bool,
) -> int:
    """Train the artifacts in DIR, or, without DIR, a network that fits the data.

    MODEL is a language model: an ONNX file, or its folder, with a tokenizer.json. The command makes ./artifacts from it
    and trains adapters on the lines of --data, which have prompt and completion, messages, or text. The adapters of the
    best epoch are then in DIR/adapter. The same command continues the training when it is run again.

    Without DIR, the folder is ./artifacts; if it has no artifacts, they are made for an mlp, cnn or gru, as the data require.

    The results are DIR/best.ckpt and DIR/last.ckpt, the best and the last epoch. evaluate, predict and export read the best
    one, and the next training continues from it. Results of an earlier run are kept, as DIR/best-1.ckpt and so on. Each
    run has a folder DIR/runs/1, DIR/runs/2, ... with log.csv, log.jsonl, which `ortrain dashboard DIR` shows, and a
    checkpoint of each of the best epochs. Ctrl-C ends the run after the current step, saves it and says how to resume it.
    """
    privacy.check(click.get_current_context().params)
    recipe = _Recipe(loss, optimizer, augment, resume is not None)
    folder = _given_folder(folder, recipe, language, tokenizer, seed) or _own_folder(
        recipe, data, target, header, seed, tokenizer, weight
    )
    start = _start(running.artifacts_folder(folder), checkpoint, from_start, resume)
    resume = resume and results.named(folder, resume)
    settings: dict[str, Any] = {"learning_rate": lr, "accumulate": accumulate, "privacy": privacy.chosen}
    settings |= {"metrics": metrics, "seed": seed, "threads": threads, "config": config}
    settings |= {"augment": augment, "precision": precision}
    settings["schedule"] = _schedule(schedule, schedule_options, warmup, monitor)
    settings["feature_cache"] = FeatureCache(features) if features not in _PLACES else features == "memory"
    batch, samples = _defaults(folder, settings, start or resume, batch, samples)
    trainer = _trainer(folder, start, resume, settings)
    privacy.check_start(trainer, start or resume, resume is not None)
    if resume is not None and trainer.saved_run is not None and trainer.saved_run["epoch"] >= epochs:
        return _is_finished(resume, trainer, folder, json_output)
    held_out: Any = None if validation is None else _share(validation)
    standard = running.is_standard(folder)
    choice = Choice(folder, standard, preprocess, normalize, size, tokenizer, held_out, seed, language)
    known, rows = trainer.preprocessing, running.load_all(data, trainer, target, header, choice, weight)
    privacy.say_what_is_measured(trainer, known)
    if validation is not None and held_out is None:
        held_out = running.load_all(Path(validation), trainer, target, header, whose=VALIDATION)
    monitor = monitor or ("val_loss" if held_out is not None else "epsilon" if privacy.is_noisy else "loss")
    runs = out or folder / "runs"
    run = results.new_run(runs) if resume is None else results.run_of(trainer, resume, runs)
    checkpoints = results.RunCheckpoints(folder, run, monitor, keep, start, resume)
    name = name or (two_words() if resume is None else None)  # a resumed run has a name
    callbacks = _callbacks(run, checkpoints, samples, patience, tensorboard, name, choice)
    options: dict[str, Any] = {"validation": held_out, "batch_size": batch, "shuffle": shuffle}
    options |= {"callbacks": callbacks, "resume": resume, "verbose": False}
    interrupted = _fit(trainer, rows, epochs, options, run)
    if interrupted:
        return _save_interrupted(trainer, run / results.INTERRUPTED, privacy)
    logged = next(callback for callback in callbacks if isinstance(callback, JSONLogger))
    _report(trainer, checkpoints, run, logged.name or run.name, privacy, json_output)
    return app.OK


def _save_interrupted(trainer: Trainer, path: Path, privacy: PrivacyOptions) -> int:
    """Save a run that a signal ended, and say how to resume it."""
    trainer.save(path)
    spent = privacy.shown(trainer)
    if spent is not None:
        click.echo(spent, err=True)
    click.echo(
        f"ortrain: interrupted in epoch {trainer.epoch + 1}, saved {path}\n"
        f"hint: continue with the same command and --resume {path}",
        err=True,
    )
    return app.INTERRUPTED


def _defaults(
    folder: Path, settings: dict[str, Any], trained: Path | None, batch: int, samples: int
) -> tuple[int, int]:
    """Return the rows per batch and in the log, and complete the settings that the options leave open.

    The log of a private run has no rows of the validation, because they may belong to people whose rows are trained on.
    """
    is_private = bool(settings["privacy"])
    if is_private and _is_default("samples"):
        samples = 0
    if not language_models.is_one(folder):
        return batch, samples
    language_models.set_defaults(folder, settings, is_first=trained is None)
    if _is_default("batch"):
        batch, several = language_models.batch_of(folder)
        if is_private:  # a private step divides its batch into parts itself
            batch *= several
        elif _is_default("accumulate"):
            settings["accumulate"] = several
    return batch, 0


def _is_default(option: str) -> bool:
    """Whether an option of the command was not given."""
    source = click.get_current_context().get_parameter_source(option)
    return source is click.core.ParameterSource.DEFAULT


@dataclass(frozen=True)
class _Recipe:
    """The options by which the command makes artifacts from a network. An option that was not given is None."""

    loss: str | None
    optimizer: str | None
    augment: str | None
    resumed: bool
    """Whether a run is resumed, which repeats the options of its first command."""

    def refuse(self, what: str, folder: Path | None = None) -> None:
        """Reject --loss, and an --optimizer that differs from the folder's, because artifacts have a loss and an optimizer."""
        given = {"--loss": None if self.resumed else self.loss}
        if folder is not None and self.optimizer is not None:
            given["--optimizer"] = None if self.optimizer == running.optimizer_of(folder) else self.optimizer
        for option, name in given.items():
            if name is not None:
                raise click.UsageError(
                    f"{option} {name}: {what} already have a loss and an optimizer; `ortrain artifacts MODEL --loss "
                    "LOSS --optimizer OPTIMIZER` makes others from a model, and `ortrain train` without DIR from data "
                    "alone"
                )


def _given_folder(
    given: Path | None, recipe: _Recipe, language: LanguageOptions, tokenizer: Path | None, seed: int
) -> Path | None:
    """Return the given folder of artifacts, or a folder made from the given language model; None if neither is given."""
    model = None if given is None else language_models.model_in(given)
    if given is not None and model is not None:
        recipe.refuse("artifacts of a language model")
        if not language.folder.exists():
            click.get_current_context().call_on_close(lambda: _remove_unused(language.folder))
        return language_models.artifacts_of(given, model, language, tokenizer, seed, recipe.optimizer)
    language.need_a_model(given)
    if given is not None:
        recipe.refuse(f"the artifacts in {given}", running.artifacts_folder(given))
    return given


def _own_folder(
    recipe: _Recipe,
    data: Path,
    target: str | None,
    header: bool | None,
    seed: int,
    tokenizer: Path | None,
    weight: str | None,
) -> Path:
    """Return ./artifacts. If that folder has no artifacts, make them for a network that fits the data."""
    from ortrain.trainer.creation import make_artifacts

    folder = Path("artifacts")
    if (folder / "training_model.onnx").exists():
        recipe.refuse(f"the artifacts in {folder}", folder)
        click.echo(
            f"ortrain: no DIR was given: trains the artifacts in {folder}; without that folder, the command makes a "
            "network for the data",
            err=True,
        )
        return folder
    if not folder.exists():
        click.get_current_context().call_on_close(lambda: _remove_unused(folder))
    found = fitting.look_at(data, target, header, None, None, tokenizer, weight)
    network = fitting.network_for(found)
    model = fitting.make_network(network, found, seed)
    changes = augmentation_of(recipe.augment)
    soft = changes is not None and bool(changes.mixes)
    loss, optimizer = recipe.loss or found.loss, recipe.optimizer or "adamw"
    make_artifacts(model, loss, optimizer, folder, None, None, weighted=weight is not None, soft_targets=soft)
    write_file(folder / "model.onnx", "model", model.SerializeToString())
    click.echo(
        f"ortrain: no DIR was given, made {folder} for the network {network} ({found.shown()}) with the loss {loss}; "
        "`ortrain new` makes others",
        err=True,
    )
    if found.note:
        click.echo(f"ortrain: {found.note}", err=True)
    return folder


def _remove_unused(folder: Path) -> None:
    """Remove artifacts that the command made but did not train, so that the next command can make them for other data."""
    if not any(folder.rglob("*.ckpt")):
        shutil.rmtree(folder, ignore_errors=True)


def _start(folder: Path, checkpoint: Path | None, from_start: bool, resume: Path | None) -> Path | None:
    """Return the trained checkpoint with which a new run begins; None if the run begins with the parameters before training."""
    given = {
        "--checkpoint": checkpoint is not None,
        "--from-start": from_start,
        "--resume": resume is not None,
    }
    if sum(given.values()) > 1:
        both = " and ".join(name for name, is_given in given.items() if is_given)
        raise click.UsageError(f"{both} each say where to begin: expected one of them")
    if resume is not None or from_start:
        return None
    found = results.chosen_checkpoint(folder, checkpoint)
    return None if found == folder / results.INITIAL else found


def _begins(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a run with these settings can begin with the parameters before training."""
    try:
        Trainer(folder, **settings)
    except OrtrainError:
        return False
    return True


def _trainer(folder: Path, start: Path | None, resume: Path | None, settings: dict[str, Any]) -> Trainer:
    """Return the trainer of a run, and print which trained parameters the run begins with."""
    try:
        trainer = Trainer(folder, checkpoint=start or resume, **settings)
    except OrtrainError as error:
        if start is None or not _begins(folder, settings):
            raise
        raise type(error)(
            f"{error.message}\nThe run was to continue from {start}; --from-start begins with {folder / results.INITIAL}",
            error.code,
        ) from error
    if start is not None:
        saved = trainer.saved_run
        if saved is not None and settings["learning_rate"] is None:
            # the rate in the optimizer's state may be the end of a schedule
            trainer.learning_rate = saved["learning_rate"]
        click.echo(
            f"ortrain: continues from {start} ({results.origin_of(start, trainer)}) with the learning rate "
            f"{trainer.learning_rate:g}; --from-start begins with the parameters before training",
            err=True,
        )
    return trainer


def _is_finished(resume: Path, trainer: Trainer, folder: Path, json_output: bool) -> int:
    """Print that a run is finished, so that there is nothing to resume."""
    assert trainer.saved_run is not None
    done = trainer.saved_run["epoch"]
    if json_output:
        found = {"checkpoint": resume, "epochs": done, "steps": trainer.saved_run["step"], "finished": True}
        app.print_json({**found, "history": trainer.saved_run["history"]})
    click.echo(
        f"ortrain: the run of {resume} is finished: it has {counted(done, 'epoch')}, nothing was changed\n"
        f"hint: --epochs {done + 5} with --resume makes it longer, `ortrain train {folder}` without --resume begins another run "
        "with its parameters",
        err=True,
    )
    return app.OK


def _fit(trainer: Trainer, rows: Any, epochs: int, options: dict[str, Any], run: Path) -> bool:
    """Train, and return whether a signal ended the run: Ctrl-C, or SIGTERM of service managers and containers."""
    interrupted = False

    def stop(number: int, frame: types.FrameType | None) -> None:
        nonlocal interrupted
        interrupted = trainer.stop_training = True
        signal.signal(number, before[number])  # a second signal ends the program at once

    before: dict[int, Any] = {n: signal.signal(n, stop) for n in ENDING}
    try:
        trainer.fit(rows, epochs, **options)
    except FileError as error:
        last = trainer.folder / results.LAST
        if trainer.epoch == 0 or not last.exists():
            raise
        raise FileError(
            f"{error.message}\nThe run stopped in epoch {trainer.epoch + 1}; the same command with --resume {last} completes it",
            error.errno,
        ) from error
    except OrtrainError as error:
        stored = trainer.preprocessing or {}
        if trainer.step or stored.get("kind") != language_models.KIND:
            raise
        tokens = counted(next(iter(rows.values())).shape[1], "token")
        raise OrtrainError(
            f"{error.message}\nThe rows have {tokens}; if the model takes fewer, set a smaller number with --length",
            error.code,
        ) from error
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        results.remove_unused(run)  # the trainer has rejected the settings of this run
    return interrupted


def _report(
    trainer: Trainer,
    checkpoints: results.RunCheckpoints,
    run: Path,
    name: str,
    privacy: PrivacyOptions,
    json_output: bool,
) -> None:
    """Print which epoch was the best, why the run stopped, and where the results are."""
    best, last = Path(str(checkpoints.best_path)), Path(str(checkpoints.last_path))
    value = f"{checkpoints.monitor} {checkpoints.best:.4g}"
    adapter = language_models.write_adapter(trainer.folder, best)
    if json_output:
        app.print_json(
            {
                "checkpoint": best,
                "best": {"epoch": checkpoints.best_epoch, checkpoints.monitor: checkpoints.best},
                "last": last,
                "run": run,
                "name": name,
                "epochs": trainer.epoch,
                "steps": trainer.step,
                "stopped": trainer.stop_reason,
                "kept": checkpoints.kept,
                "history": trainer.history,
                **privacy.result(trainer),
                **({} if adapter is None else {"adapter": adapter}),
            }
        )
        return
    if trainer.stop_reason is not None:
        click.echo(f"stopped after epoch {trainer.epoch} of {trainer.epochs}: {trainer.stop_reason}")
    if checkpoints.best_epoch == 0:
        click.echo(f"best  {best}: as before training, {value}; no epoch was better")
    elif checkpoints.best_epoch is not None:
        click.echo(f"best  {best}: epoch {checkpoints.best_epoch}, {value}")
    click.echo(
        f"last  {last}: epoch {trainer.epoch}, {counted(trainer.step, 'step')}; run {name}, logs in {run}"
    )
    spent = privacy.shown(trainer)
    if spent is not None:
        click.echo(spent)
    if adapter is not None:
        click.echo(f"adapter  {adapter}: the adapters of the best epoch, as PEFT reads them")
    if checkpoints.kept:
        click.echo(f"kept  {', '.join(map(str, checkpoints.kept))}: results of earlier runs")


def _callbacks(
    run: Path,
    checkpoints: results.RunCheckpoints,
    samples: int,
    patience: int | None,
    tensorboard: bool,
    name: str | None,
    choice: Choice,
) -> list[Callback]:
    """Return the callbacks that log the run, save its checkpoints and may end it early."""
    callbacks: list[Callback] = [
        results.EarlierLogs(checkpoints),
        *([TokenSpeed(choice.text, choice.share or 0.0)] if choice.text is not None else []),
        CSVLogger(run / "log.csv"),
        JSONLogger(run / "log.jsonl", samples=samples, name=name),
        checkpoints,
        ProgbarLogger(),
    ]
    if patience is not None:
        callbacks.append(EarlyStopping(checkpoints.monitor, patience=patience))
    if tensorboard:
        callbacks.append(TensorBoard(run / "tensorboard", update_freq=1, histogram_freq=1, write_graph=True))
    return callbacks


def _schedule(name: str, options: tuple[str, ...], warmup: int, monitor: str | None) -> Schedule:
    """Return a schedule with the settings of the command line."""
    settings: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        try:
            numbers = [float(number) for number in value.split(":")]
        except ValueError:
            numbers = []
        if not equals or not numbers:
            raise click.UsageError(f"--schedule-option: expected NAME=NUMBER, found {option!r}")
        settings[key] = numbers[0] if len(numbers) == 1 else numbers
    per_epoch = bool(settings.pop("per_epoch", False))
    if monitor is not None and schedules.declared()[name]["reads_value"]:
        settings["monitor"] = monitor
    try:
        return Schedule(name, warmup=warmup, per_epoch=per_epoch, **settings)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"--schedule-option: {error}") from error


def _share(text: str) -> float | None:
    """Return the share of the rows to hold out; None if the text names other data."""
    try:
        return float(text)
    except ValueError:
        if not Path(text).exists():
            message = f"--validation: there is no file or folder {text}"
            raise FileNotFoundError(message) from None
        return None
