"""``ortrain export``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortrain._files.writing import folder_beside
from ortrain.cli import app, language_models, results, running
from ortrain.cli.language_models import KIND as LANGUAGE_MODEL
from ortrain.preprocessing.pictures import ImagePreprocessing, normalization_of
from ortrain.preprocessing.tables import TablePreprocessing
from ortrain.preprocessing.text import FILE as TOKENIZER
from ortrain.trainer import Trainer

if TYPE_CHECKING:
    import onnx


@app.command(
    "export",
    """
    ortrain export artifacts trained.onnx
    ortrain export artifacts trained.onnx --checkpoint artifacts/runs/1/epoch-3.ckpt --output logits
    ortrain export artifacts trained.onnx --with-preprocessing
    ortrain export artifacts trained.onnx --adapters merged --peft adapter
    ortrain export artifacts trained.onnx --adapters merged --into model/model.onnx
    """,
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("model", type=app.NewFile(), metavar="MODEL")
@running.model_options
@click.option(
    "--output", "outputs", multiple=True, metavar="NAME", help="output of the model; may be repeated"
)
@click.option(
    "--adapters",
    type=click.Choice(["inside", "merged", "requantized", "dequantized", "apart"]),
    default="inside",
    show_default=True,
    help="inside: adapters become nodes of MODEL; merged: they are added to its weights; requantized: they are added "
    "to its quantized weights, which are quantized again; dequantized: they are added to its quantized weights, which become "
    "float numbers; apart: they go into a file next to MODEL that ends in "
    ".onnx_adapter",
)
@click.option(
    "--peft",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="also write the adapters to a folder as PEFT does",
)
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="write this model with the trained weights: the model that DIR was made from, for example with its key-value cache",
)
@click.option(
    "--with-preprocessing",
    is_flag=True,
    help="put the preprocessing of the run in front of the model, which then takes raw columns or pictures",
)
@click.option(
    "--external-data",
    is_flag=True,
    help="write the weights to a file next to MODEL, with the ending .data (default: if one file cannot hold the model)",
)
@app.as_json
def command(
    folder: Path,
    model: Path,
    checkpoint: Path | None,
    threads: int,
    outputs: tuple[str, ...],
    adapters: str,
    peft: Path | None,
    into: Path | None,
    with_preprocessing: bool,
    external_data: bool,
    json_output: bool,
) -> None:
    """Write the trained model of DIR for inference to MODEL."""
    if into is not None:
        _check_into(folder, model, into, bool(outputs), with_preprocessing)
    read = results.chosen_checkpoint(running.artifacts_folder(folder), checkpoint)
    # A model that is written again is read one tensor after another, which takes less memory.
    apart = external_data or into is not None or adapters != "inside"
    config = {"ortrain.external_data": "always"} if apart else {}
    trainer = running.trainer_to_read(
        folder, read, outputs=list(outputs) or None, threads=threads, config=config
    )
    if with_preprocessing:
        _check_preprocessing(trainer)
    written, names = _export(trainer, model, adapters, peft, into, external_data or None)
    if with_preprocessing:
        _put_preprocessing_in_front(trainer, model, external_data or None)
    elif trainer.preprocessing not in (None, _plain(trainer)):
        click.echo(f"ortrain: {_what_it_takes(trainer)}", err=True)
    if json_output:
        app.print_json({"model": model, "checkpoint": read, "outputs": names})
    else:
        click.echo(
            f"wrote {' and '.join(map(str, written))} with the parameters of {read} ({results.origin_of(read, trainer)})"
            + (f", outputs {', '.join(names)}" if into is None else "")
        )


def _export(
    trainer: Trainer,
    model: Path,
    adapters: str,
    peft: Path | None,
    into: Path | None,
    external_data: bool | None,
) -> tuple[list[Path], list[str]]:
    """Write a model, and files and folders with its adapters; return the paths and the outputs of the model.

    With `into`, the model is the one in this file, with the trained weights.
    """
    from ortrain import artifacts

    written, names = [model], trainer.outputs
    if peft is not None:  # first, because it fails if there are no adapters
        artifacts.write_peft(trainer.state, peft)
    if into is None and adapters == "inside":
        trainer.export(model)
    else:
        # MODEL is written last: an error leaves a file that was there before.
        with folder_beside(model, "model") as temporary:
            made: Path | onnx.ModelProto = temporary / model.name
            trainer.export(made)
            del trainer.module, trainer.optimizer  # they map the weights
            if into is not None:
                base = language_models.base_of(trainer.folder, into, temporary)
                made = artifacts.with_weights_of(base, made)
                names = [value.name for value in made.graph.output]
            _write(made, model, adapters, external_data)
    if adapters == "apart":
        file = model.with_suffix(".onnx_adapter")
        artifacts.write_onnx_adapter(trainer.state, file)
        written.append(file)
    if peft is not None:
        written.append(peft)
    return written, names


def _write(made: Path | onnx.ModelProto, model: Path, adapters: str, external_data: bool | None) -> None:
    """Write a model with its adapters where `adapters` says."""
    from ortrain import artifacts
    from ortrain._files.weights import fits_into_a_file, write_copy

    if adapters in ("merged", "dequantized"):
        artifacts.write_merged(made, model, adapters == "dequantized", external_data=external_data)
        return
    if adapters == "apart":
        made = artifacts.with_adapter_inputs(made)
    elif adapters == "requantized":
        done = artifacts.requantized(made)
        click.echo(str(done), err=True)
        made = done.model
    assert not isinstance(made, Path)
    write_copy(made, model, not fits_into_a_file(made) if external_data is None else external_data)


def _check_into(folder: Path, model: Path, into: Path, has_outputs: bool, with_preprocessing: bool) -> None:
    """Reject options that do not fit ``--into``, and a model that the artifacts were not made from."""
    excluded = {
        "--output": has_outputs,
        "--with-preprocessing": with_preprocessing,
    }
    for option, is_given in excluded.items():
        if is_given:
            raise click.UsageError(f"--into cannot be combined with {option}")
    if model.exists() and model.samefile(into):
        raise click.UsageError(f"--into: expected MODEL to be another file, found {into} twice")
    if language_models.is_one(folder):
        language_models.check_made_from(folder, into)


def _plain(trainer: Trainer) -> dict[str, Any] | None:
    """Return the preprocessing if the data are pictures that are only resized and scaled, otherwise None."""
    stored = trainer.preprocessing
    if stored is None or stored["kind"] != "image":
        return None
    return normalization_of("none", len(stored["mean"])).as_json()


def _what_it_takes(trainer: Trainer) -> str:
    """Describe the input of an exported model whose rows were preprocessed in training."""
    assert trainer.preprocessing is not None
    if trainer.preprocessing["kind"] == LANGUAGE_MODEL:
        return f"the model takes the numbers of tokens, as the tokenizer in {trainer.folder / TOKENIZER} makes them"
    if trainer.preprocessing["kind"] == "text":
        return (
            f"the model takes the numbers of tokens, {trainer.preprocessing['length']} a row, as the tokenizer in "
            f"{trainer.folder / TOKENIZER} makes them"
        )
    return "the model takes preprocessed rows; --with-preprocessing writes a model that takes raw rows"


def _check_preprocessing(trainer: Trainer) -> None:
    """Reject a run without preprocessing, and preprocessing that ONNX nodes cannot do.

    Raises
    ------
    ValueError
        When the run has no preprocessing, or has a tokenizer.
    """
    stored = trainer.preprocessing
    if stored is not None and stored["kind"] not in ("text", LANGUAGE_MODEL):
        return
    found = "no preprocessing" if stored is None else "a tokenizer, for which ONNX has no operator"
    advice = "" if stored is None else f"; without the option, {_what_it_takes(trainer)}"
    raise ValueError(
        f"--with-preprocessing: expected a run on a table or on pictures whose preprocessing is stored, found {found}{advice}"
    )


def _put_preprocessing_in_front(trainer: Trainer, path: Path, external_data: bool | None) -> None:
    """Write the preprocessing of a run into an exported model."""
    from ortrain._files.weights import load_with_weights_apart, write_copy  # this module needs onnx
    from ortrain.preprocessing.nodes import with_preprocessing

    stored = trainer.preprocessing
    assert stored is not None
    kind = TablePreprocessing if stored["kind"] == "table" else ImagePreprocessing
    made = with_preprocessing(load_with_weights_apart(path), kind.of_json(stored), trainer.classes)
    write_copy(made, path, external_data)
