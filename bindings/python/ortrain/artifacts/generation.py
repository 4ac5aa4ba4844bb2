"""generate_artifacts: the files that a training session needs, from an inference model."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import onnx

from ortrain import _graph, onnxblock
from ortrain._files.models import in_ort_format
from ortrain._files.weights import with_all_data, write_models
from ortrain._files.writing import make_folder, write_file
from ortrain._frameworks.record import export_of
from ortrain._support.checks import names_of
from ortrain.api import CheckpointState
from ortrain.artifacts.blocks import (
    CLASSES_LAST,
    LossOnModel,
    LossType,
    OptimType,
    activation_of,
    expect_fitting,
    loss_block,
    optimizer_block,
    outputs_of_losses,
)
from ortrain.artifacts.choice.declaration import name_parameters, settled
from ortrain.artifacts.choice.export_record import note_modules
from ortrain.artifacts.graph import dynamic_batch
from ortrain.artifacts.graph.adapters import BASE, LoRA
from ortrain.artifacts.graph.adapters import KEY as ADAPTERS
from ortrain.artifacts.graph.changes import WeightChange
from ortrain.artifacts.graph.edited import edited
from ortrain.artifacts.graph.head import Head
from ortrain.artifacts.graph.lifted import with_weights_as_initializers
from ortrain.artifacts.graph.quantization_aware import Int8, with_observers
from ortrain.artifacts.graph.restore import with_weights_restored
from ortrain.artifacts.loading import load
from ortrain.artifacts.report.artifact_report import ArtifactReport
from ortrain.artifacts.report.findings import find
from ortrain.artifacts.report.messages import log_choices, log_probabilities, log_weights
from ortrain.onnxblock.model_accessor import load_custom_op_library

_log = logging.getLogger("ortrain.artifacts")


class NothingToTrainWarning(UserWarning):
    """Warns that :func:`generate_artifacts`, which was to choose the parameters to train, found none."""


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str] | Any,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | Mapping[Any, Any] | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    disabled_passes: Sequence[str] | None = None,
    batch: str | None = None,
    untie: Sequence[str] | Literal[False] | None = None,
    tie: Sequence[str] | Literal[False] | None = None,
    *,
    args: Any = None,
    head: Head | None = None,
    adapter: LoRA | None = None,
    qat: Int8 | None = None,
    external_data: bool | None = None,
) -> ArtifactReport:
    """Create the files that a training session needs from an inference model.

    The files are ``training_model.onnx``, ``eval_model.onnx`` and ``checkpoint``; with an optimizer also
    ``optimizer_model.onnx``; with ``nominal_checkpoint`` also ``nominal_checkpoint``; and with ``ort_format`` also the
    models in ORT format, ``training_model.ort`` and so on. Their opsets and IR version are those of ``model``. In the
    eval model, batch normalization and dropout are in inference mode. If the model is rejected, no file is written.

    Changes that exporters make to weights are undone first: merged parameters are separated, shared parameters are
    tied, and omitted biases of zeros and repeated rows are restored. If ``requires_grad`` names only initializers that
    the model has, and neither ``untie`` nor ``tie`` is given, the weights are not changed.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike or torch.nn.Module or keras.Model or network of JAX
        The model, or the path of an ONNX file or of a file in ORT format. A model with external weights must be given
        by its path. Or a network of PyTorch, which is exported as by :func:`ortrain.torch.export`, a model of Keras, as by
        :func:`ortrain.keras.export`, or a module of Flax or a function of JAX, as by :func:`ortrain.jax.export`.
    requires_grad : list of str, optional
        Initializers to train, of the model's graph or of the graphs inside If, Loop and Scan, which move to the model's
        graph under their name (with a number if it is taken). Also inputs of the model, whose gradients become outputs
        of the training model, ``<input>_grad``. Also patterns such as ``"*.bias"`` and paths of modules such as
        ``"encoder.layer.1"``, which stand for the matching parameters. By default, all floating-point initializers of
        the model's graph that are not in ``frozen_params`` and are parameters: those that the exporter recorded as
        parameters (:func:`ortrain.torch.export` records what requires a gradient, and the other parameters are frozen),
        or, without a record, those that are not named or used like a constant of the code (an exponent, an epsilon, a
        bound, a rotary frequency). Parameters that no gradient reaches are left out. The report gives the reason for
        each.
    frozen_params : list of str, optional
        Initializers that are parameters, stored in the checkpoint, but not trained, by name, pattern or module. Names
        that the model does not have are ignored with a warning. Initializers that are neither trained nor frozen stay
        in the models as constants. If both arguments match a parameter, a name takes precedence over a pattern, and
        ``frozen_params`` over ``requires_grad``.
    loss : LossType or onnxblock.Block or mapping, optional
        The loss to add. A custom block is called with the names of the loss inputs and returns the name of the loss. A
        mapping gives several outputs of the model their losses, whose sum is the loss: ``{"logits": "cross_entropy",
        "energy": ("mse", 0.3)}``, where a number is the weight of a loss. The keys are outputs, or tuples of outputs
        for a loss that takes several; the losses are names, members of LossType or blocks; the target of ``logits`` is
        the input ``logits_target``. Without this argument, the first output of the model is the loss; with a ``head``,
        the loss is cross entropy.
    optimizer : OptimType or onnxblock.Block, optional
        The optimizer, with its defaults or as a block such as :class:`ortrain.onnxblock.optim.AdamW`. Without this
        argument, no optimizer model is written; with a ``head`` or an ``adapter``, that of AdamW is.
    artifact_directory : str or bytes or os.PathLike, optional
        The folder of the files; it is created if it does not exist. The current directory by default.
    prefix : str, default: ""
        Prefix of the file names.
    ort_format : bool, default: False
        Whether to write the models in ORT format too, which training sessions read like ONNX files. The format has
        no optional values, so models with these are rejected.
    custom_op_library : str or os.PathLike, optional
        A library of custom operators, for sessions to load. Their gradients are those that were given to
        :func:`ortrain.register_gradient`.
    additional_output_names : list of str, optional
        Values that the training and eval model return besides the loss, such as the prediction. With a ``head`` or an
        ``adapter``, the scores and the outputs of the model by default.
    nominal_checkpoint : bool, default: False
        Whether to write a second checkpoint with names, types and shapes but no values.
    loss_input_names : list of str, optional
        The values that the loss is called with. By default all outputs of the model; of a network of a framework, for a
        `LossType`, the first one.
    disabled_passes : list of str, optional
        Passes that do not rewrite the model before its gradient is built, such as ``"hoist_selection"``; for
        debugging.
    batch : "dynamic", optional
        "dynamic" lets a model that was exported with a fixed batch size, PyTorch's default, take batches of any size.
        Constants that hold it, in Reshape, Expand and other nodes, are replaced. The result is compared with the given
        model, row by row, on random inputs of several batch sizes. By default the model is not changed, and the report
        says whether its batch size is fixed.
    untie : list of str or False, optional
        Initializers that become a parameter for each module that reads them, by name or by a pattern such as
        ``"encoder.*"``; False for none. By default those that an exporter merged because their values were equal.
    tie : list of str or False, optional
        Matrices that become one parameter with those that have the same elements, also in transposed order, by name
        or by pattern; False for none. By default those that an exporter made of one parameter.
    args : tensor, tuple, list or mapping, optional
        For a network: example arguments, one of them, a tuple of positional arguments, or arguments by name. The first
        dimension of arrays is that of the batch; anything but an array is a constant. A model of Keras needs ``args``
        only if its inputs are unknown; a dictionary is then a single argument. For JAX these are the arguments of a
        ``flax.nnx.Module``, of ``apply`` of a ``flax.linen.Module``, or of the function: ``(variables, inputs, True)``
        if the network is called like ``network.apply(variables, inputs, train=True)``.
    head : Head, optional
        A new classifier in place of the model's. It is trained, and the rest of the model is not unless ``head.train`` says so:
        it computes as in inference, with fixed running statistics. ``requires_grad`` must be left out.
    adapter : LoRA, optional
        Low-rank adapters for layers of the model. The adapters are trained and, with a ``head``, the head too. All
        other weights are constants of the models, and not in the checkpoint. ``requires_grad`` must be left out.
    qat : Int8, optional
        Quantization-aware training: the weights and inputs of Conv, Gemm and MatMul pass through QuantizeLinear and
        DequantizeLinear, with straight-through gradients, so that the network learns to compensate for 8 bits. The ranges of
        activations are in the checkpoint.
    external_data : bool, optional
        Whether constants of the models are stored in the file ``weights.data`` next to them, once for all models.
        Training sessions map this file: its pages are shared by all sessions and processes that use it. By default they
        are if a model would exceed the 2 GB that an ONNX file can hold, or if they are external data of the given
        model.

    Returns
    -------
    ArtifactReport
        What happens to each floating-point initializer and why, and the paths of the files. It prints as a
        table.

    Raises
    ------
    TypeError
        When an argument has the wrong type.
    ValueError
        When the model is not valid, a name is not in it, there is no such pass, it cannot be trained, or its batch
        cannot be made dynamic; the message names every node and parameter that prevents it, and why. Also when
        a name or pattern of ``untie`` or ``tie`` fits no initializer.
    LookupError
        When a loss input or an additional output is not a value of the model.
    FileNotFoundError
        When there is no model at the path.
    NotImplementedInOrtrainError
        When a model has something that ORT format lacks.
    OSError
        When a file cannot be written.

    Warns
    -----
    NothingToTrainWarning
        When ``requires_grad`` is left out and there is nothing to train. The files are written: a train step
        computes the loss and changes nothing.
    """
    load_custom_op_library(custom_op_library)
    additional = names_of("additional_output_names", additional_output_names)
    loss_block(loss)  # reject an invalid loss before the export of a network, which takes time
    loss = LossType.CrossEntropyLoss if loss is None and head is not None else loss
    chosen_optimizer = optimizer_block(optimizer or (OptimType.AdamW if head or adapter else None))
    directory = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))

    loaded, path, changes = _restored(model, args, requires_grad, untie, tie, batch)
    fixed_batch = dynamic_batch.fixed_batch(loaded)
    if fixed_batch is not None:
        _log.warning("%s", dynamic_batch.note(fixed_batch))
    activation = activation_of(loss) if isinstance(loss, LossType) else None
    output = next(iter(names_of("loss_input_names", loss_input_names)), None)
    edit = edited(loaded, head, adapter, output, activation, requires_grad, frozen_params, path=path)
    loaded = edit.model
    loss_inputs = [edit.head.scores] if edit.head else _loss_inputs(loss, loss_input_names, loaded)
    export = export_of(loaded)
    axis = edit.class_axis or (-1 if export is not None and export.framework in CLASSES_LAST else None)
    block = LossOnModel(loss_block(loss, axis), loss_inputs, additional or edit.outputs(loss_inputs))
    block.disabled_passes = names_of("disabled_passes", disabled_passes)
    if activation is not None:
        log_probabilities(loaded, loss_inputs[0], activation)
    choices = name_parameters(loaded, block, edit.wanted)
    edit.explain(choices)
    with onnxblock.base(loaded if qat is None else with_observers(loaded, qat), path):
        block()
    training_model, eval_model = block.to_model_proto()
    note_modules(loaded, eval_model)
    initializers = settled(block, choices, edit.wanted.frozen)
    findings = find(loaded, initializers)
    log_choices(initializers, chosen_here=edit.wanted.trained is None and export is None)
    log_weights(changes, findings)
    if requires_grad is None and not block.parameters()[0]:
        warnings.warn(
            "there is no parameter to train; name at least one in requires_grad. Floating-point initializers: "
            + ("; ".join(f"{c.name} ({c.reason})" for c in initializers[:20]) or "none"),
            NothingToTrainWarning,
            stacklevel=2,
        )
    models = {"training_model": training_model, "eval_model": eval_model}
    if chosen_optimizer is not None:
        models["optimizer_model"] = _optimizer_model(chosen_optimizer, block, loaded)
    report = ArtifactReport(
        initializers=tuple(initializers),
        input_gradients=_input_gradients(training_model, requires_grad),
        **_paths(directory, prefix, models, nominal_checkpoint),
        fixed_batch=fixed_batch,
        changes=tuple(changes),
        shared=findings.shared,
        folded=findings.folded,
        absent=findings.absent,
        head=edit.head,
        adapters=edit.adapters,
    )
    return _written(report, models, block, ort_format, prefix, external_data)


def _restored(
    model: object,
    args: Any,
    requires_grad: Sequence[str] | None,
    untie: Sequence[str] | Literal[False] | None,
    tie: Sequence[str] | Literal[False] | None,
    batch: str | None,
) -> tuple[onnx.ModelProto, str | None, list[WeightChange]]:
    """Return a model with the weights of its network restored, the path of its file, and the changes."""
    loaded, path = load(model, args, apart=batch is None)
    if requires_grad is None:
        loaded = with_weights_as_initializers(loaded)
    loaded, changes = with_weights_restored(loaded, path, requires_grad, untie, tie)
    # Only now: an exporter stores class tokens once per row, and they had to become single rows first.
    return _with_batch(loaded, batch, requires_grad), path, changes


def _input_gradients(model: onnx.ModelProto, requires_grad: Sequence[str] | None) -> tuple[str, ...]:
    """Return the outputs of a training model that are gradients of inputs."""
    names = [output.name for output in model.graph.output]
    return tuple(name for name in names if name.removesuffix("_grad") in (requires_grad or ()))


def _paths(directory: Path, prefix: str, models: Iterable[str], nominal: bool) -> dict[str, Any]:
    """Return the paths of the files by the attributes of the report."""
    paths = {name: directory / f"{prefix}{name}.onnx" for name in models}
    checkpoints = ["checkpoint", *(["nominal_checkpoint"] if nominal else [])]
    return paths | {name: directory / f"{prefix}{name}" for name in checkpoints}


def _loss_inputs(loss: object, names: Sequence[str] | None, model: onnx.ModelProto) -> list[str]:
    """Return the values that the loss takes: the named ones, or the outputs of the model."""
    outputs = [output.name for output in model.graph.output]
    if isinstance(loss, Mapping):
        if names is not None:
            raise ValueError(
                "loss_input_names: expected None, because a mapping of losses already names the outputs"
            )
        wanted = outputs_of_losses(loss)
        known = {*outputs, *(name for node in model.graph.node for name in node.output)}
        for name in wanted:
            if name not in known:
                raise LookupError(
                    f"loss: the model has no output {name!r}; its outputs are {', '.join(outputs)}"
                )
        return wanted
    if not isinstance(loss, LossType):
        return names_of("loss_input_names", names) or outputs
    chosen = names_of("loss_input_names", names) or (outputs[:1] if export_of(model) is not None else outputs)
    expect_fitting(loss, chosen, {o.name: o.type.tensor_type.elem_type for o in model.graph.output})
    return chosen


def _optimizer_model(
    optimizer: onnxblock.Block, block: onnxblock.TrainingBlock, model: onnx.ModelProto
) -> onnx.ModelProto:
    """Return the optimizer model for the parameters of a training block."""
    with onnxblock.empty_base(_graph.opset_of(model), model.ir_version):
        optimizer(block.parameters())
        made: onnx.ModelProto = optimizer.to_model_proto()  # type: ignore[attr-defined]
    return made


def _written(
    report: ArtifactReport,
    models: dict[str, onnx.ModelProto],
    block: onnxblock.TrainingBlock,
    ort_format: bool,
    prefix: str,
    external_data: bool | None,
) -> ArtifactReport:
    """Write the files of a report; return the report with the paths of the files in ORT format."""
    if report.optimizer_model is None:
        _log.info("no optimizer is given, so no optimizer model is written")
    files = {getattr(report, name): model for name, model in models.items()}
    converted: dict[Path, bytes] = {}
    if ort_format:
        converted = {
            path.with_suffix(".ort"): in_ort_format(with_all_data(model).SerializeToString())
            for path, model in files.items()
        }
        report = replace(report, ort_models=tuple(converted))
    make_folder(report.training_model.parent, "artifacts")
    weights = report.training_model.with_name(f"{prefix}weights.data")
    written = write_models(files, weights, external_data)
    report = replace(report, weights=weights if weights in written else None)
    for file, data in converted.items():
        write_file(file, "model", data)
    for file in (*written, *converted):
        _log.info("wrote %s (%d bytes)", file, file.stat().st_size)
    _save_checkpoint(block, report.checkpoint, nominal=False)
    if report.adapters is not None:
        state = CheckpointState.load_checkpoint(report.checkpoint)
        state.properties[ADAPTERS] = report.adapters.to_json()
        state.properties[BASE] = report.adapters.base
        CheckpointState.save_checkpoint(state, report.checkpoint)
    if report.nominal_checkpoint is not None:
        _save_checkpoint(block, report.nominal_checkpoint, nominal=True)
    return report


def _with_batch(
    model: onnx.ModelProto, batch: object, requires_grad: Sequence[str] | None
) -> onnx.ModelProto:
    if batch is None:
        return model
    if batch != "dynamic":
        raise ValueError(f'batch: expected "dynamic" or None, found {batch!r}')
    return dynamic_batch.with_dynamic_batch(model, requires_grad or ())


def _save_checkpoint(block: onnxblock.TrainingBlock, path: Path, nominal: bool) -> None:
    parameters: Any = block.parameters()
    onnxblock.save_checkpoint(parameters, path, nominal_checkpoint=nominal)
    _log.info("wrote %s", path)
