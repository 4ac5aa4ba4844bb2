"""``ortrain convert``."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from ortrain.api import CheckpointState
from ortrain.cli import app, checkpoints


@app.command(
    "convert",
    """
    ortrain convert artifacts/trained.ckpt weights.safetensors
    ortrain convert weights.npz trained.ckpt --like artifacts/checkpoint
    """,
)
@click.argument("source", type=click.Path(path_type=Path), metavar="FROM")
@click.argument("result", type=click.Path(path_type=Path), metavar="TO")
@click.option(
    "--like",
    type=click.Path(path_type=Path),
    help="checkpoint whose parameters get the values; needed to write a checkpoint",
)
@app.as_json
def command(source: Path, result: Path, like: Path | None, json_output: bool) -> None:
    """Convert parameters between checkpoints, NPZ and safetensors, by the endings .npz and .safetensors.

    A file with any other ending is a checkpoint. A checkpoint is written from the one given with --like, whose parameters
    that FROM has get its values; FROM may not have others.
    """
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
    if json_output:
        app.print_json({"file": result, "parameters": list(arrays)})
    else:
        click.echo(f"wrote {result}, {len(arrays)} parameters")


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
    return checkpoints.parameters_of(checkpoints.open_checkpoint(path))


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.numpy")
    except ImportError as error:
        raise ImportError("safetensors files need safetensors: pip install safetensors") from error
