"""The training step as one model with only standard operators of ONNX, for runtimes that cannot train."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter

from ortrain import onnxblock
from ortrain._files.models import load_model
from ortrain._files.writing import write_file
from ortrain._graph import opset_of
from ortrain.api import CheckpointState
from ortrain.artifacts.blocks import LossType, OptimType
from ortrain.artifacts.generation import generate_artifacts
from ortrain.artifacts.loading import load
from ortrain.artifacts.report.artifact_report import ArtifactReport
from ortrain.step._assembly import Kind, Source, assemble

_FIRST_OPSET = 17
_KINDS = ("step", "gradients", "evaluation")


def generate_step(
    model: onnx.ModelProto | str | os.PathLike[str] | Any,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    path: str | os.PathLike[str] = "step.onnx",
    *,
    kind: Kind = "step",
    accumulate: int = 1,
    rows: int | None = None,
    initializers: bool = True,
    loss_scaling: bool = False,
    opset: int | None = None,
    args: Any = None,
    **options: Any,
) -> ArtifactReport:
    """Write the training step of a model as one ONNX model that any runtime runs, and the artifacts beside it.

    The step model has only standard operators of ONNX. Its inputs are the batch, the parameters, the optimizer's
    moments, the learning rate and the number of steps taken; its outputs are the loss, the values of
    ``additional_output_names`` and, for each input ``x`` that a step changes, ``x.next``. The entry ``ortrain.step`` of
    its metadata lists them all, as JSON (see the guide "A step for any runtime"). :class:`ortrain.step.Session` runs it
    with onnxruntime.

    Parameters
    ----------
    model, loss, optimizer
        As in :func:`generate_artifacts`. Only a step needs an optimizer; with a ``head`` or an ``adapter`` it is AdamW by
        default, and the loss of a head cross entropy.
    path : str or os.PathLike, default: "step.onnx"
        The file of the step model. The artifacts are written into its folder.
    kind : {"step", "gradients", "evaluation"}, default: "step"
        What the model computes: a training step; the gradients ``w.grad`` of the parameters, for optimizers outside of the
        model; or the loss and outputs without training, as the eval model does.
    accumulate : int, default: 1
        The number of batches of one step. With more than one, every input of the batch has a new first axis of this size, loss
        and gradients are the means over the batches, and other outputs have the axis too. Several calls of a
        :class:`ortrain.Module` before an optimizer step add up gradients instead.
    rows : int, optional
        The fixed number of rows of each batch, for runtimes that need fixed shapes; any number by default. With 1, the
        step is shorter, because the gradient of a matrix is then the product of a column and a row.
    initializers : bool, default: True
        Whether the model contains the values of the parameters, which are then the defaults of its inputs.
    loss_scaling : bool, default: False
        Whether the model has an input ``loss_scale``: the loss is multiplied by it before the gradients are computed, and the
        gradients are divided by it at the end, in float. If one of their elements is not finite, the step changes nothing
        and the output ``all_finite`` is false. For parameters in float16.
    opset : int, optional
        The opset of the models, 17 or later. By default that of the given model, or 17 if that is older.
    args
        For a network, as in :func:`generate_artifacts`.
    **options
        Further arguments of :func:`generate_artifacts`, such as ``head`` and ``adapter``.

    Returns
    -------
    ArtifactReport
        What happens to each floating-point initializer and why, and the paths of the artifacts.

    Raises
    ------
    ValueError
        As :func:`generate_artifacts`. Also when the model cannot be converted to the opset, or when it has a node without a
        standard form; the message names all of them.
    TypeError, LookupError, FileNotFoundError, OSError
        As :func:`generate_artifacts`.
    """
    file = Path(path)
    has_default = any(options.get(name) is not None for name in ("head", "adapter"))
    _check(kind, accumulate, rows, optimizer is not None or has_default)
    report = generate_artifacts(
        in_standard_opset(model, args, opset),
        loss=loss,
        optimizer=optimizer,
        **{"artifact_directory": file.parent, **options},
    )
    write_step(
        report,
        file,
        kind=kind,
        accumulate=accumulate,
        rows=rows,
        initializers=initializers,
        loss_scaling=loss_scaling,
    )
    return report


def in_standard_opset(model: Any, args: Any = None, opset: int | None = None) -> onnx.ModelProto:
    """Return a model in an opset in which gradients can be written with operators of ONNX alone.

    Parameters
    ----------
    model, args
        As in :func:`generate_artifacts`.
    opset : int, optional
        The opset, 17 or later; by default that of the model, or 17 if that is older.

    Raises
    ------
    ValueError
        When the opset is older than 17, or onnx.version_converter cannot convert the model.
    """
    if opset is not None and opset < _FIRST_OPSET:
        raise ValueError(f"opset: expected {_FIRST_OPSET} or later, found {opset}")
    loaded, _ = load(model, args)
    own = opset_of(loaded) or 0
    wanted = max(own, _FIRST_OPSET) if opset is None else opset
    if wanted == own:
        return loaded
    try:
        converted: onnx.ModelProto = onnx.version_converter.convert_version(loaded, wanted)
    except Exception as error:  # the converter's exceptions have no common base
        raise ValueError(
            f"the model, of opset {own}, cannot be converted to opset {wanted} by onnx.version_converter: {error}"
        ) from error
    del converted.metadata_props[:]
    converted.metadata_props.extend(loaded.metadata_props)  # the exporter's record
    return converted


def write_step(
    artifacts: ArtifactReport | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    kind: Kind = "step",
    accumulate: int = 1,
    rows: int | None = None,
    initializers: bool = True,
    loss_scaling: bool = False,
) -> None:
    """Write the step model of artifacts that exist already, such as those of onnxruntime-training.

    Parameters
    ----------
    artifacts : ArtifactReport or str or os.PathLike
        The report of :func:`generate_artifacts`, or the folder of the files.
    path, kind, accumulate, rows, initializers, loss_scaling
        As in :func:`generate_step`.

    Raises
    ------
    ValueError
        When the models have an opset older than 17, or a node without a standard form; the message names all of them.
    FileNotFoundError
        When a file of the artifacts is missing.
    OSError
        When the file cannot be written.
    """
    if isinstance(artifacts, ArtifactReport):
        training, evaluation = artifacts.training_model, artifacts.eval_model
        optimizer, checkpoint = artifacts.optimizer_model, artifacts.checkpoint
    else:
        folder = Path(artifacts)
        training, evaluation = folder / "training_model.onnx", folder / "eval_model.onnx"
        optimizer, checkpoint = folder / "optimizer_model.onnx", folder / "checkpoint"
    _check(kind, accumulate, rows, optimizer is not None and optimizer.exists())
    source = Source(
        model=load_model(evaluation if kind == "evaluation" else training),
        optimizer=load_model(optimizer) if kind == "step" and optimizer is not None else None,
        parameters={
            name: parameter.data
            for name, parameter in CheckpointState.load_checkpoint(str(checkpoint)).parameters
        },
    )
    made = assemble(
        source,
        kind,
        accumulate=accumulate,
        rows=rows,
        initializers=initializers,
        loss_scaling=loss_scaling,
    )
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_file(Path(path), "model", made.SerializeToString())


def _check(kind: str, accumulate: int, rows: int | None, has_optimizer: bool) -> None:
    if kind not in _KINDS:
        raise ValueError(f"kind: expected one of {', '.join(_KINDS)}, found {kind!r}")
    if accumulate < 1 or (accumulate > 1 and kind == "evaluation"):
        raise ValueError(
            f"accumulate: expected {'1 for an evaluation' if kind == 'evaluation' else '1 or more'}, found {accumulate}"
        )
    if rows is not None and rows < 1:
        raise ValueError(f"rows: expected 1 or more, found {rows}")
    if kind == "step" and not has_optimizer:
        raise ValueError(
            'a step needs an optimizer; name one, or write the gradients alone with kind="gradients"'
        )
