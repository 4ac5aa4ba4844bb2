"""``ortrain convert``."""

from __future__ import annotations

import importlib
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain import _model_files
from ortrain.api import CheckpointState
from ortrain.cli import app, checkpoints, stored_state

_ARRAYS = (".npz", ".safetensors")
_MODELS = {".onnx": "ONNX", ".ort": "ORT"}


@app.command(
    "convert",
    """
    ortrain convert artifacts/trained.ckpt weights.safetensors
    ortrain convert weights.npz trained.ckpt --like artifacts/checkpoint
    ortrain convert old/checkpoint trained.ckpt
    ortrain convert trained.ckpt old/checkpoint --folder
    ortrain convert model.onnx model.ort
    """,
)
@click.argument("source", type=click.Path(path_type=Path), metavar="FROM")
@click.argument("result", type=click.Path(path_type=Path), metavar="TO")
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="checkpoint whose parameters get the values; needed to write a checkpoint",
)
@click.option(
    "--folder", "as_folder", is_flag=True, help="write the folder that onnxruntime 1.14 and 1.15 read"
)
@app.as_json
def command(source: Path, result: Path, like: Path | None, as_folder: bool, json_output: bool) -> None:
    """Convert parameters between checkpoints, NPZ and safetensors, and models between ONNX and ORT format.

    The endings say what is what: .npz and .safetensors are arrays, .onnx and .ort are models. Weights that an ONNX model
    stores in other files become part of the new file.

    A file with any other ending is a checkpoint, and so is a folder of .pbseq files, as onnxruntime 1.14 and 1.15 wrote it.
    From one kind of checkpoint to the other, optimizer state and properties are converted too. From arrays, a checkpoint is
    written from the one given with --like, whose parameters that FROM has get its values; FROM may not have others.
    """
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
        click.echo(f"wrote {result}, {len(names)} parameters")


def _convert_model(source: Path, result: Path, like: Path | None, as_folder: bool) -> None:
    """Write a model in the other format; what the file holds decides in which it is, not its name."""
    for path in (source, result):
        if path.suffix not in _MODELS:
            raise ValueError(f"expected a model, a file ending in .onnx or .ort, found {path}")
    if like is not None or as_folder:
        raise ValueError(f"--like and --folder are for checkpoints, but {source} is a model")
    if not source.exists():
        raise FileNotFoundError(f"there is no model {source}")
    # What the model names beside it is read now; a file has to be complete before it takes the place of another.
    try:
        model = _model_files.load_model(source).SerializeToString()
    except OSError:
        raise
    except Exception as error:  # protobuf and onnx raise several kinds, with nothing in common
        raise ValueError(f"{source} is not a model: {error}") from error
    written = model if result.suffix == ".onnx" else _model_files.in_ort_format(model)
    with tempfile.NamedTemporaryFile(dir=result.parent, delete=False) as file:
        file.write(written)
    Path(file.name).replace(result)


def _convert_checkpoint(source: Path, result: Path, as_folder: bool) -> list[str]:
    """Convert everything that a checkpoint holds."""
    if not source.exists():
        raise FileNotFoundError(f"there is no checkpoint {source}")
    if stored_state.is_folder_of_tensors(source):
        state = stored_state.read_folder(source)
    else:
        state = stored_state.read_file(source / "checkpoint" if source.is_dir() else source)
    if as_folder:
        stored_state.write_folder(state, result)
    else:
        stored_state.write_file(state, result)
        CheckpointState.load_checkpoint(result)
    return [*state.trained, *state.frozen]


def _convert_arrays(source: Path, result: Path, like: Path | None) -> list[str]:
    arrays = _read(source)
    if result.suffix == ".npz":
        np.savez(result, **arrays)
    elif result.suffix == ".safetensors":
        _safetensors().save_file(
            {name: np.ascontiguousarray(array) for name, array in arrays.items()}, str(result)
        )
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
        if not zipfile.is_zipfile(path):
            raise ValueError(f"expected an NPZ file as written by numpy.savez, found {path}")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    if path.suffix == ".safetensors":
        package = _safetensors()
        if not path.exists():
            raise FileNotFoundError(f"there is no file {path}")
        try:
            arrays: dict[str, Any] = package.load_file(str(path))
        except Exception as error:  # the package has exceptions of its own
            raise ValueError(f"{path} is not a safetensors file: {error}") from error
        return arrays
    if stored_state.is_folder_of_tensors(path):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "checkpoint"
            stored_state.write_file(stored_state.read_folder(path), file)
            return checkpoints.parameters_of(checkpoints.open_checkpoint(file))
    return checkpoints.parameters_of(checkpoints.open_checkpoint(path))


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise ImportError("safetensors files need safetensors: pip install safetensors") from error
