"""The session of a run, created from artifacts and a checkpoint. The checkpoint has the position of an earlier run."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortrain import _ortrain
from ortrain._support.session_config import used_entries, without_effect
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.options import SessionOptions
from ortrain.trainer.accountant import Accountant
from ortrain.trainer.columns import Columns
from ortrain.trainer.data import Inputs

_POSITION = "ortrain.trainer"  # the property of a checkpoint with the position of the run
_ADAPTERS = "ortrain.adapter"  # the property with the record of adapters, as ortrain.artifacts writes it
_CLASSES = "ortrain.classes"  # the property that holds the names of the classes, as JSON
_COLUMNS = "ortrain.columns"  # the property that holds the names of the columns of the data, as JSON
_REHEARSAL = "ortrain.rehearsal"  # the property that holds rows of earlier runs, as ortrain.trainer.rehearsal writes it
_PREPROCESSING = "ortrain.preprocessing"  # the property that holds what was done to the data, as JSON
_PRIVACY = "ortrain.privacy"  # the property that holds the private steps of all runs, as JSON


@dataclass(frozen=True)
class Opened:
    """What a run works on."""

    state: CheckpointState
    module: Module
    optimizer: Optimizer
    inputs: Inputs
    train_outputs: list[str]
    eval_outputs: list[str]
    """The names of the eval model's outputs; empty if there is no eval model."""
    position: dict[str, Any] | None
    """The position of the run that wrote the checkpoint; None if no trainer wrote it."""
    classes: list[str] | None
    """The names of the classes; None if the checkpoint has none."""
    columns: Columns | None
    """The names of the columns that the model was trained on; None if the checkpoint has none."""
    preprocessing: dict[str, Any] | None = None
    """The preprocessing of the data; None if there was none."""
    rehearsal: str | None = None
    """Rows of earlier runs; None if the checkpoint has none."""
    accountant: Accountant | None = None
    """The private steps of all runs; None if there were none."""


def open_run(
    folder: Path, checkpoint: Any, threads: int, config: Mapping[str, str], read_only: bool = False
) -> Opened:
    """Create state, module and optimizer from a checkpoint, and read where its run was.

    With `read_only`, the checkpoint is mapped, and the module cannot train.
    """
    open_checkpoint = CheckpointState.map_checkpoint if read_only else CheckpointState.load_checkpoint
    state = open_checkpoint(checkpoint)
    properties = state.properties
    _check_base(folder, state)
    position = json.loads(str(properties[_POSITION])) if _POSITION in properties else None
    classes = None
    if _CLASSES in properties:
        classes = [str(name) for name in json.loads(str(properties[_CLASSES]))]
    columns = None
    if _COLUMNS in properties:
        columns = Columns.of_json(json.loads(str(properties[_COLUMNS])))
    preprocessing = json.loads(str(properties[_PREPROCESSING])) if _PREPROCESSING in properties else None
    rehearsal = str(properties[_REHEARSAL]) if _REHEARSAL in properties else None
    accountant = Accountant.of_json(str(properties[_PRIVACY])) if _PRIVACY in properties else None
    options = options_of(threads, config, position["runs"] if position else 0)
    has_eval_model = (folder / "eval_model.onnx").exists()
    module, optimizer = sessions_of(folder, state, options)
    train_outputs = module.train().output_names()
    inputs = _inputs_of(module, training=True)
    module.eval()
    eval_outputs = module.output_names() if has_eval_model else []
    module.train()
    return Opened(
        state,
        module,
        optimizer,
        inputs,
        train_outputs,
        eval_outputs,
        position,
        classes,
        columns,
        preprocessing,
        rehearsal,
        accountant,
    )


def store_accounting(state: CheckpointState, accountant: Accountant | None) -> None:
    """Let a state know the private steps that its parameters come from, so that every file of it has them."""
    if accountant is not None and accountant.history:
        state.properties[_PRIVACY] = accountant.to_json()


def _check_base(folder: Path, state: CheckpointState) -> None:
    """Reject adapters that were trained with other base weights than those in a folder of artifacts."""
    if _ADAPTERS not in state.properties or not (folder / "checkpoint").exists():
        return
    here = CheckpointState.map_checkpoint(folder / "checkpoint").properties
    mine, theirs = (json.loads(str(p[_ADAPTERS])) if _ADAPTERS in p else {} for p in (here, state.properties))
    if mine.get("base") != theirs.get("base"):
        raise ValueError(
            f"the adapters of the checkpoint are of another base than the artifacts in {folder}: expected the digest "
            f"{mine.get('base')} of {mine.get('model')}, found {theirs.get('base')} of {theirs.get('model')}"
        )


def session_config(precision: str, config: Mapping[str, str] | None) -> dict[str, str]:
    """Return the entries of a session with a precision; warn of entries that have no effect.

    Raises
    ------
    ValueError
        If the precision, the key of an entry or the value of an entry is unknown.
    """
    if precision not in ("fp32", "bf16"):
        raise ValueError(f"precision: expected fp32 or bf16, found {precision!r}")
    try:
        used, ignored = used_entries(config or {})
    except ValueError as error:
        raise ValueError(f"config: {error}") from error
    options = SessionOptions()
    for key, value in used.items():
        options.add_session_config_entry(key, value)  # checks the key and the value
    if ignored:
        warnings.warn(f"config: {without_effect(ignored)}", stacklevel=3)
    return {"ortrain.mixed_precision": "bf16", **used} if precision == "bf16" else used


def options_of(threads: int, config: Mapping[str, str], runs: int) -> SessionOptions:
    """Return the options of a session, whose random operators draw as after a number of runs."""
    options = SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("ortrain.optional_outputs", "1")  # for metrics and predictions
    for key, value in config.items():
        options.add_session_config_entry(key, value)
    if runs:
        options.add_session_config_entry("ortrain.first_run", str(runs))
    return options


def sessions_of(folder: Path, state: CheckpointState, options: SessionOptions) -> tuple[Module, Optimizer]:
    """Return module and optimizer of the artifacts in a folder, on a state."""
    eval_model = folder / "eval_model.onnx"
    module = Module(
        folder / "training_model.onnx",
        state,
        eval_model if eval_model.exists() else None,
        session_options=options,
    )
    return module, Optimizer(folder / "optimizer_model.onnx", module)


def save_run(
    state: CheckpointState,
    path: Path,
    position: Mapping[str, Any],
    classes: Sequence[str] | None,
    columns: Columns | None,
    preprocessing: Mapping[str, Any] | None = None,
    rehearsal: str | None = None,
) -> None:
    """Write a checkpoint with where the run is."""
    state.properties[_POSITION] = json.dumps(position)
    if classes is not None:
        state.properties[_CLASSES] = json.dumps(classes)
    if columns is not None:
        state.properties[_COLUMNS] = json.dumps(columns.as_json())
    if preprocessing is not None:
        state.properties[_PREPROCESSING] = json.dumps(preprocessing)
    if rehearsal is not None:
        state.properties[_REHEARSAL] = rehearsal
    path.parent.mkdir(parents=True, exist_ok=True)
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)


def _inputs_of(module: Module, training: bool) -> Inputs:
    names = module.input_names()
    types = [_ortrain.get_model_input_type_info(module._handle, training, i)[0] for i in range(len(names))]
    shapes = [
        argument.shape or None for argument in module.get_inputs()
    ]  # a shape without dimensions is unknown
    return Inputs(names, [_ortrain.numpy_type(element) if element else None for element in types], shapes)
