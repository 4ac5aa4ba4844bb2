"""``ortrain convert``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain._files import models as model_files
from ortrain._files import stored_state
from ortrain._files.reading import check_file, explained, read_npz
from ortrain._files.writing import make_folder, replaced_file, write_file
from ortrain._support.counts import counted
from ortrain.api import CheckpointState
from ortrain.cli import app, checkpoints
from ortrain.errors import OrtrainError

_ARRAYS = (".npz", ".safetensors")
_MODELS = {".onnx": "ONNX", ".ort": "ORT"}


@app.command(
    "convert",
    """
    ortrain convert artifacts/best.ckpt weights.safetensors
    ortrain convert weights.npz trained.ckpt --like artifacts/checkpoint
    ortrain convert old/checkpoint trained.ckpt
    ortrain convert trained.ckpt old/checkpoint --folder
    ortrain convert model.onnx model.ort
    """,
)
@click.argument("source", type=click.Path(path_type=Path), metavar="FROM")
@click.argument("to", type=click.Path(), metavar="TO")
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="checkpoint that receives the values in a copy; needed to write a checkpoint",
)
@click.option(
    "--folder", "as_folder", is_flag=True, help="write the folder that onnxruntime 1.14 and 1.15 read"
)
@app.as_json
def command(source: Path, to: str, like: Path | None, as_folder: bool, json_output: bool) -> None:
    """Convert parameters between checkpoints, NPZ and safetensors, and models between ONNX and ORT format.

    The endings of the names say what the files are: .npz and .safetensors are arrays, .onnx and .ort are models. Weights
    that an ONNX model stores in other files become part of the new file.

    A file with any other ending is a checkpoint, and so is a folder of .pbseq files, as onnxruntime 1.14 and 1.15 wrote
    it. From one kind of checkpoint to the other, optimizer state and properties are converted too. From arrays, the new
    checkpoint is a copy of the one given with --like, in which the arrays of FROM replace the parameters with their
    names; FROM must not contain other names.
    """
    if app.names_a_folder(to) and not as_folder:
        raise click.UsageError(f"TO: expected a file name, found the folder {to}")
    result = Path(to)
    if source.suffix in _MODELS or result.suffix in _MODELS:
        _convert_model(source, result, like, as_folder)
        if json_output:
            app.print_json({"file": result, "format": _MODELS[result.suffix]})
        else:
            click.echo(f"wrote {result}, in {_MODELS[result.suffix]} format")
        return
    if result.suffix not in _ARRAYS and source.suffix not in _ARRAYS and like is None:
        names = _convert_checkpoint(source, result, as_folder)
    else:
        if as_folder:
            raise ValueError(
                f"--folder: expected to convert a checkpoint to a folder, found {source} and {result}"
            )
        names = _convert_arrays(source, result, like)
    if json_output:
        app.print_json({"file": result, "parameters": names})
    else:
        click.echo(f"wrote {result}, {counted(len(names), 'parameter')}")


def _convert_model(source: Path, result: Path, like: Path | None, as_folder: bool) -> None:
    """Write a model in the other format. The content of the file, not its name, shows its present format."""
    for path in (source, result):
        if path.suffix not in _MODELS:
            raise ValueError(f"expected a model, a file ending in .onnx or .ort, found {path}")
    if like is not None or as_folder:
        raise ValueError(f"--like and --folder are for checkpoints, but {source} is a model")
    if not source.exists():
        raise FileNotFoundError(f"there is no model {source}")
    # Files with weights beside the model are read here.
    model = model_files.load_model(source).SerializeToString()
    written = model if result.suffix == ".onnx" else model_files.in_ort_format(model)
    write_file(result, "model", written)


def _convert_checkpoint(source: Path, result: Path, as_folder: bool) -> list[str]:
    """Convert a checkpoint with all its contents."""
    if not source.exists():
        raise FileNotFoundError(f"there is no checkpoint {source}")
    if stored_state.is_folder_of_tensors(source):
        state = stored_state.read_folder(source)
    else:
        state = stored_state.read_file(source / "checkpoint" if source.is_dir() else source)
    if as_folder:
        stored_state.write_folder(state, result)
    else:
        content = _as_file(state, source)
        make_folder(result.parent, "result")
        write_file(result, "checkpoint", content)
    return [*state.trained, *state.frozen]


def _as_file(state: stored_state.StoredState, source: Path) -> bytes:
    """Return the contents of an old checkpoint as a checkpoint file of the current format."""
    try:
        return stored_state.as_file(state)
    except OrtrainError as error:
        raise type(error)(f"{source}: {error}", error.code) from error


def _convert_arrays(source: Path, result: Path, like: Path | None) -> list[str]:
    arrays = _read(source)
    if result.suffix == ".npz":
        with replaced_file(result, "arrays") as file:
            np.savez(file, **arrays)
    elif result.suffix == ".safetensors":
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_file(result, "arrays", _safetensors().save(contiguous))
    else:
        if like is None:
            raise ValueError(f"--like: expected a checkpoint whose parameters {result} gets, found none")
        state = checkpoints.open_checkpoint(like)
        known = {name for name, _ in state.parameters}
        unknown = [name for name in arrays if name not in known]
        if unknown:
            raise ValueError(
                f"{source}: {like} has no parameter {', '.join(unknown)}; it has {', '.join(sorted(known))}"
            )
        for name, array in arrays.items():
            state.parameters[name] = array
        CheckpointState.save_checkpoint(state, result)
    return list(arrays)


def _read(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        return read_npz(path, "FROM")
    if path.suffix == ".safetensors":
        package = _safetensors()
        check_file(path, "FROM")
        with explained(path, "FROM", "a safetensors file"):
            arrays: dict[str, Any] = package.load_file(str(path))
        return arrays
    if stored_state.is_folder_of_tensors(path):
        content = _as_file(stored_state.read_folder(path), path)
        return checkpoints.parameters_of(CheckpointState.load_checkpoint_from_buffer(content))
    return checkpoints.parameters_of(checkpoints.open_checkpoint(path))


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise ImportError("safetensors files need safetensors: pip install safetensors") from error
