"""Shared code of the commands that run a model: their options, the trainer and its data."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain import _ortrain
from ortrain._files.system import system
from ortrain._support.counts import counted
from ortrain._support.places import DATA, known_lines
from ortrain._support.session_config import used_entries, without_effect
from ortrain.api import CheckpointState
from ortrain.cli import language_models, preparing, results
from ortrain.cli.datasets import ENDINGS, KINDS, load
from ortrain.cli.language_options import LanguageOptions
from ortrain.cli.numbers import Integer, picture_size
from ortrain.cli.wanted import Choice, Wanted
from ortrain.errors import OrtrainError
from ortrain.inference_session import InferenceSession
from ortrain.options import SessionOptions
from ortrain.trainer import Trainer, mezo
from ortrain.trainer.metrics import METRIC_NAMES
from ortrain.trainer.weighting import WEIGHTS

COUNT = Integer(min=1)
_SHOWN = 10
_LARGE = 64 << 20  # bytes; models of `ortrain new` are smaller

header_option = click.option(
    "--header/--no-header",
    default=None,
    help="whether the first line of a CSV file has the names of the columns (default: decided from the file)",
)


def _entries(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    entries = {}
    for text in values:
        key, separator, value = text.partition("=")
        if not key or not separator:
            raise click.BadParameter(f"expected KEY=VALUE, found {text}")
        entries[key] = value
    options = SessionOptions()
    try:
        used, ignored = used_entries(entries)
        for key, value in used.items():
            options.add_session_config_entry(key, value)  # checks the key and the value
    except (ValueError, OrtrainError) as error:
        raise click.BadParameter(str(error)) from error
    if ignored:
        click.echo(f"ortrain: --config: {without_effect(ignored)}", err=True)
    return used


config_option = click.option(
    "--config",
    multiple=True,
    callback=_entries,
    metavar="KEY=VALUE",
    help="configuration entry of the session, such as ortrain.check_finite=1; may be repeated",
)


def _names(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for text in values for name in text.split(",") if name.strip())


metrics_option = click.option(
    "--metrics",
    "--metric",
    "metrics",
    multiple=True,
    callback=_names,
    metavar="NAME,...",
    help=f"values to compute besides the loss: {', '.join(METRIC_NAMES)} and top<k>; may be repeated",
)


def data_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that describe the data."""
    for option in (
        header_option,
        click.option("--batch", type=COUNT, default=32, show_default=True, help="rows per batch"),
        click.option(
            "--target", metavar="NAME", help="array or column that is the target (default the last)"
        ),
        click.option("--data", type=click.Path(path_type=Path), required=True, metavar="PATH", help=KINDS),
    ):
        function = option(function)
    return function


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the model."""
    for option in (
        click.option("--threads", type=int, default=0, help="threads of a step (default one per processor)"),
        click.option(
            "--checkpoint",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="checkpoint with the parameters (default the first of DIR/best.ckpt, last.ckpt, trained.ckpt and checkpoint)",
        ),
    ):
        function = option(function)
    return function


def preprocessing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the preprocessing of data."""
    for option in (
        click.option(
            "--tokenizer",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="tokenizer.json for the column of text",
        ),
        click.option(
            "--size",
            callback=picture_size,
            metavar="HEIGHTxWIDTH",
            help="height and width of pictures, for a model that takes pictures of any size",
        ),
        click.option(
            "--normalize",
            metavar="measured|imagenet|half|none|FILE",
            help="mean and deviation of pictures, also those of a preprocessor_config.json (default measured for networks of "
            "`ortrain new`, else none)",
        ),
        click.option(
            "--preprocess/--no-preprocess",
            default=None,
            help="whether the columns of a table are encoded: numbers standardized, categories, dates and missing cells as "
            "numbers (default: for networks of `ortrain new`, and if the model cannot take the cells as they are)",
        ),
    ):
        function = option(function)
    return function


def wanted_of(
    trainer: Trainer, header: bool | None, choice: Choice | None = None, weight: str | None = None
) -> Wanted:
    """Return what is to be read for the steps of a trainer. ``header`` and ``weight`` are options."""
    every = trainer.module.get_inputs()
    inputs = [argument for argument in every if argument.name != WEIGHTS]
    takes_weights = len(inputs) < len(every)
    if weight is not None and not takes_weights:
        raise ValueError(
            f"--sample-weight: the artifacts in {trainer.folder} take no weights; `ortrain artifacts --sample-weight` makes "
            "artifacts that do"
        )
    return Wanted(
        [argument.name for argument in inputs],
        [argument.shape for argument in inputs],
        has_classes=trainer.inputs.forms[-1].has_classes,
        classes=trainer.classes,
        columns=trainer.columns,
        header=header,
        preprocessing=trainer.preprocessing,
        choice=choice,
        folder=trainer.folder,
        weight=weight,
        takes_weights=takes_weights,
    )


def optimizer_of(folder: Path) -> str | None:
    """Return the name of the optimizer that artifacts are made for, as the command takes it; None if that is not known."""
    checkpoint, model = folder / results.INITIAL, folder / "optimizer_model.onnx"
    if checkpoint.exists() and mezo.stored_in(CheckpointState.map_checkpoint(checkpoint)) is not None:
        return mezo.NAME
    try:
        return str(json.loads(_ortrain.get_optimizer_formulas(model.read_bytes()))["optimizer"])
    except (OrtrainError, OSError):
        return None


def artifacts_folder(path: Path) -> Path:
    """Return a folder of artifacts that a user named.

    Raises
    ------
    ValueError
        When it is a file, such as the model itself.
    FileNotFoundError
        When there is nothing.
    """
    if path.is_file():
        found = f"DIR: expected a folder of training artifacts, found the file {path}"
        if path.suffix.lower() in ENDINGS:
            raise ValueError(f"{found}; --data names data")
        raise ValueError(
            f"{found}; `ortrain artifacts {path} --loss LOSS` creates artifacts from a model, in ./artifacts"
        )
    if not path.exists():
        raise FileNotFoundError(f"DIR: there is no folder {path}")
    return path


def trainer_to_read(folder: Path, checkpoint: Path, **settings: Any) -> Trainer:
    """Return a trainer that evaluates, predicts and exports.

    It maps the checkpoint, which takes less memory, unless that would keep a run in another process from saving.
    """
    return Trainer(folder, checkpoint=checkpoint, read_only=system.CAN_REPLACE_MAPPED_FILES, **settings)


def scaled(rows: Any, trainer: Trainer) -> Any:
    """Return data whose pixels, bytes of images, are numbers from 0 to 1, as those of image files.

    Other bytes are not changed. Both cases are reported.
    """
    if not isinstance(rows, dict):
        return rows
    found = dict(rows)
    for form in trainer.inputs.forms:
        array = found.get(form.name)
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
            continue
        if form.dtype is None or form.dtype.kind != "f" or not array.size or array.max() <= 1:
            continue
        is_image = array.ndim > 2
        found[form.name] = array.astype(np.float32) / np.float32(255 if is_image else 1)
        done = (
            "divided by 255, like the bytes of image files"
            if is_image
            else f"not scaled; the largest is {array.max()}"
        )
        click.echo(f"ortrain: the bytes of {form.name} are {done}", err=True)
    return found


def say_remarks(wanted: Wanted) -> None:
    """Print on standard error how data were understood."""
    for remark in wanted.remarks:
        click.echo(f"ortrain: {remark}", err=True)


def is_standard(folder: Path) -> bool:
    """Whether the model in a folder of artifacts is made for preprocessed rows, as those of `ortrain new` are."""
    path = folder / "eval_model.onnx"
    if not path.exists() or path.stat().st_size > _LARGE:
        return False
    return preparing.MARK in InferenceSession(path).get_modelmeta().custom_metadata_map


def load_all(
    path: Path,
    trainer: Trainer,
    target: str | None,
    header: bool | None,
    choice: Choice | None = None,
    weight: str | None = None,
    whose: str = DATA,
) -> Any:
    """Read data for train or eval steps. Names and preprocessing that the trainer lacks are stored in it.

    Later messages of the command name the lines of the file instead of the rows, if the file has a line for each row. ``whose``
    says which data of the trainer these are.
    """
    tokenizer = None if choice is None else choice.tokenizer
    if language_models.takes_text(trainer, path, tokenizer):
        options = LanguageOptions() if choice is None else choice.language
        known = trainer.preprocessing
        made = language_models.rows_of(trainer, path, options, tokenizer, trainer.seed)
        if choice is not None:
            choice.text = made
            language_models.say_how_to_lengthen(made, trainer, options, is_first=known is None)
        return made.arrays
    language_models.check_data(trainer.folder, path)
    wanted = wanted_of(trainer, header, choice, weight)
    rows = load(path, wanted, target)
    say_remarks(wanted)
    if wanted.columns is not None:
        wanted.columns = replace(wanted.columns, weight=wanted.weight)
    trainer.classes, trainer.columns = wanted.classes, wanted.columns
    trainer.preprocessing = wanted.preprocessing
    if wanted.lines is not None:
        click.get_current_context().with_resource(known_lines(wanted.lines, str(path), whose))
    if choice is not None:
        _say_classes_without_rows(rows, trainer, path)
    return scaled(rows, trainer)


def _say_classes_without_rows(rows: Any, trainer: Trainer, path: Path) -> None:
    """Print which classes of a model have no rows in data to train on."""
    form = trainer.inputs.forms[-1]
    targets = rows.get(form.name) if isinstance(rows, dict) else None
    if not form.takes_classes or targets is None or not targets.size or targets.size != len(targets):
        return
    count = _score_count(trainer.folder)
    missing = sorted({*range(count or 0)} - set(np.unique(targets).tolist()))
    if not missing:
        return
    names = trainer.classes or []
    shown = ", ".join(
        f"{number} ({names[number]})" if number < len(names) else str(number) for number in missing[:_SHOWN]
    )
    click.echo(
        f"ortrain: the model has scores for {counted(count or 0, 'class')}, and {path} has no rows of {len(missing)} of them: "
        f"{shown}{', ...' if len(missing) > _SHOWN else ''}",
        err=True,
    )


def _score_count(folder: Path) -> int | None:
    """Return the number of scores for each row of the model in a folder of artifacts; None if it is not known."""
    path = folder / "eval_model.onnx"
    if not path.exists() or path.stat().st_size > _LARGE:
        return None
    outputs = InferenceSession(path).get_outputs()
    shape = outputs[1].shape if len(outputs) > 1 else []
    return shape[1] if len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1 else None
