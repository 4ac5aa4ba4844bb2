"""Training artifacts: from an inference model to what a training session loads.

Needs ``onnx`` (``pip install 'ortrain[artifacts]'``). Artifacts are made once, on any machine; the device that
trains needs only the files.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from ortrain import _model_files, onnxblock
from ortrain._artifact_report import ArtifactReport
from ortrain._parameter_choice import Fate, InitializerReport, choose
from ortrain.onnxblock import _graph
from ortrain.onnxblock.model_accessor import load_custom_op_library

__all__ = ["ArtifactReport", "Fate", "InitializerReport", "LossType", "OptimType", "generate_artifacts"]

_log = logging.getLogger(__name__)


class LossType(Enum):
    """Losses that :func:`generate_artifacts` can add to a model."""

    MSELoss = 1
    """Mean squared error, :class:`ortrain.onnxblock.loss.MSELoss`."""
    CrossEntropyLoss = 2
    """Cross entropy of scores and class indices, :class:`ortrain.onnxblock.loss.CrossEntropyLoss`."""
    BCEWithLogitsLoss = 3
    """Binary cross entropy of logits, :class:`ortrain.onnxblock.loss.BCEWithLogitsLoss`."""
    L1Loss = 4
    """Mean absolute error, :class:`ortrain.onnxblock.loss.L1Loss`."""


class OptimType(Enum):
    """Optimizers that :func:`generate_artifacts` can create a model for."""

    AdamW = 1
    """AdamW, :class:`ortrain.onnxblock.optim.AdamW`."""
    SGD = 2
    """Stochastic gradient descent, :class:`ortrain.onnxblock.optim.SGD`."""


_LOSSES: dict[LossType, type[onnxblock.Block]] = {
    LossType.MSELoss: onnxblock.loss.MSELoss,
    LossType.CrossEntropyLoss: onnxblock.loss.CrossEntropyLoss,
    LossType.BCEWithLogitsLoss: onnxblock.loss.BCEWithLogitsLoss,
    LossType.L1Loss: onnxblock.loss.L1Loss,
}
_OPTIMIZERS: dict[OptimType, type[onnxblock.Block]] = {
    OptimType.AdamW: onnxblock.optim.AdamW,
    OptimType.SGD: onnxblock.optim.SGD,
}


class _LossOnModel(onnxblock.TrainingBlock):
    """The loss on some values of the model, and further outputs."""

    def __init__(
        self, loss: onnxblock.Block, loss_inputs: Sequence[str], other_outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self._loss = loss
        self._loss_inputs = loss_inputs
        self._other_outputs = other_outputs

    def build(self) -> tuple[str, ...]:
        made = self._loss(*self._loss_inputs)
        return (*([made] if isinstance(made, str) else made), *self._other_outputs)


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str],
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
    disabled_passes: Sequence[str] | None = None,
) -> ArtifactReport:
    """Create the files that a training session needs from an inference model.

    Written are ``training_model.onnx``, ``eval_model.onnx`` and ``checkpoint``, with an optimizer
    ``optimizer_model.onnx``, with ``nominal_checkpoint`` also ``nominal_checkpoint``, and with ``ort_format`` the
    models once more, as ``training_model.ort`` and so on. Opsets and IR
    version are those of ``model``. The eval model has batch normalization and dropout in inference mode.
    Nothing is written if the model is rejected.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike
        The model, or the path of an ONNX file or of a file in ORT format. A model with external weights must be given
        by its path.
    requires_grad : list of str, optional
        Initializers to train, of the model's graph or of the graphs inside If, Loop and Scan, which move to
        the model's graph under their name (with a number if it is taken). Also inputs of the model, whose
        gradients become outputs of the training model, ``<input>_grad``. By default, all floating-point
        initializers of the model's graph that are not in ``frozen_params`` and are parameters: those that
        the exporter recorded as parameters, or, without a record, those that are not named or used like a
        constant of the code (an exponent, an epsilon, a bound, a rotary frequency). Parameters that no
        gradient reaches are left out. The report gives the reason for each.
    frozen_params : list of str, optional
        Initializers that are parameters, stored in the checkpoint, but not trained. Names that the model does
        not have are ignored with a warning. Initializers that are neither trained nor frozen stay in the
        models as constants.
    loss : LossType or onnxblock.Block, optional
        The loss to add. A custom block is called with the names of the loss inputs and returns the
        name of the loss. Left out, the first output of the model is the loss.
    optimizer : OptimType or onnxblock.Block, optional
        The optimizer, with its defaults or as a block such as :class:`ortrain.onnxblock.optim.AdamW`. Left
        out, no optimizer model is written.
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
        Values that the training and eval model return besides the loss, such as the prediction.
    nominal_checkpoint : bool, default: False
        Whether to write a second checkpoint with names, types and shapes but no values.
    loss_input_names : list of str, optional
        The values that the loss is called with. All outputs of the model by default.
    disabled_passes : list of str, optional
        Passes that do not rewrite the model before its gradient is built, such as ``"hoist_selection"``; for
        debugging.

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
        When the model is not valid, a name is not in it, there is no such pass, it cannot be trained, or
        ``requires_grad`` is left out and nothing is to be trained; the message names every node and parameter
        that stands in the way, and why.
    LookupError
        When a loss input or an additional output is not a value of the model.
    FileNotFoundError
        When there is no model at the path.
    NotImplementedInOrtrainError
        When a model has something that ORT format lacks.
    OSError
        When a file cannot be written.
    """
    load_custom_op_library(custom_op_library)
    additional = _names("additional_output_names", additional_output_names)
    loss_block = _loss_block(loss)
    optimizer_block = _optimizer_block(optimizer)
    directory = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))

    loaded, path = _load(model)
    outputs = [output.name for output in loaded.graph.output]
    loss_inputs = _names("loss_input_names", loss_input_names) or outputs
    if isinstance(loss, LossType) and len(loss_inputs) > 2:
        raise ValueError(
            f"{loss.name} takes a prediction and, as a second value, the target, "
            f"but it would get {', '.join(loss_inputs)}; choose with loss_input_names"
        )
    frozen = _names("frozen_params", frozen_params)
    block = _LossOnModel(loss_block, loss_inputs, additional)
    block.disabled_passes = _names("disabled_passes", disabled_passes)
    if requires_grad is None:
        loaded = _with_weights_as_initializers(loaded)
    choices = _name_parameters(loaded, block, requires_grad, frozen)
    with onnxblock.base(loaded, path):
        block()
    training_model, eval_model = block.to_model_proto()
    initializers = _settled(block, choices, frozen)
    _log_choices(initializers, chosen_here=requires_grad is None)
    if requires_grad is None and not block.parameters()[0]:
        raise ValueError(
            "there is no parameter to train; name at least one in requires_grad. Floating-point initializers: "
            + ("; ".join(f"{c.name} ({c.reason})" for c in initializers[:20]) or "none")
        )
    optimizer_model = None
    if optimizer_block is not None:
        with onnxblock.empty_base(_graph.opset_of(loaded), loaded.ir_version):
            optimizer_block(block.parameters())
            optimizer_model = optimizer_block.to_model_proto()  # type: ignore[attr-defined]

    outputs = [output.name for output in training_model.graph.output]
    report = ArtifactReport(
        initializers=tuple(initializers),
        input_gradients=tuple(
            name for name in outputs if name.removesuffix("_grad") in (requires_grad or ())
        ),
        training_model=directory / f"{prefix}training_model.onnx",
        eval_model=directory / f"{prefix}eval_model.onnx",
        checkpoint=directory / f"{prefix}checkpoint",
        optimizer_model=None if optimizer_model is None else directory / f"{prefix}optimizer_model.onnx",
        nominal_checkpoint=directory / f"{prefix}nominal_checkpoint" if nominal_checkpoint else None,
    )
    models = [(training_model, report.training_model), (eval_model, report.eval_model)]
    if optimizer_model is not None and report.optimizer_model is not None:
        models.append((optimizer_model, report.optimizer_model))
    else:
        _log.info("no optimizer is given, so no optimizer model is written")
    files = {path: made.SerializeToString() for made, path in models}
    if ort_format:
        in_ort_format = {path.with_suffix(".ort"): _model_files.in_ort_format(files[path]) for path in files}
        report = replace(report, ort_models=tuple(in_ort_format))
        files |= in_ort_format
    directory.mkdir(parents=True, exist_ok=True)
    for file, data in files.items():
        _save(data, file)
    _save_checkpoint(block, report.checkpoint, nominal=False)
    if report.nominal_checkpoint is not None:
        _save_checkpoint(block, report.nominal_checkpoint, nominal=True)
    return report


def _names(argument: str, value: Iterable[str] | None) -> list[str]:
    if value is None:
        return []
    names = [] if isinstance(value, str) else list(value)
    if isinstance(value, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument} must be a list of names, not {value!r}")
    return list(dict.fromkeys(names))


def _loss_block(loss: object) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        return _LOSSES[loss]()
    if isinstance(loss, onnxblock.Block):
        return loss
    raise TypeError(f"loss must be a LossType or an onnxblock.Block, not {type(loss).__name__}")


def _optimizer_block(optimizer: object) -> onnxblock.Block | None:
    if optimizer is None:
        return None
    if isinstance(optimizer, OptimType):
        return _OPTIMIZERS[optimizer]()
    if isinstance(optimizer, onnxblock.Block) and hasattr(optimizer, "to_model_proto"):
        return optimizer
    raise TypeError(
        f"optimizer must be an OptimType or a block that builds a model, such as onnxblock.optim.AdamW, "
        f"not {type(optimizer).__name__}"
    )


def _load(model: object) -> tuple[onnx.ModelProto, str | None]:
    """Return the model with its weights loaded and its functions inlined, and the path it came from."""
    path: str | None = None
    if isinstance(model, onnx.ModelProto):
        loaded = model
        outside = [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        if outside:
            raise ValueError(
                f"the weights {', '.join(outside[:5])}{', ...' if len(outside) > 5 else ''} are outside "
                "the given model; pass the path of the model, or load it with onnx.load"
            )
    elif isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no model at {path!r}")
        try:
            loaded = _model_files.load_model(path)
        except OSError:
            raise
        except Exception as error:  # protobuf and onnx raise several kinds, with nothing in common
            raise ValueError(f"{path!r} is not an ONNX model: {error}") from error
    else:
        raise TypeError(f"model must be an onnx.ModelProto or a path, not {type(model).__name__}")
    if not loaded.graph.output:
        raise ValueError(
            f"{path or 'the given model'!r} is not an ONNX model with a graph: it has no outputs"
        )
    if loaded.functions:
        loaded = onnx.inliner.inline_local_functions(loaded)
    return loaded, path


def _with_weights_as_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its weights among the initializers of its main graph.

    Most exporters put them there. PaddlePaddle's stores them in Constant nodes, and some models have them inside
    the branches of If.
    """

    def has_weights(model: onnx.ModelProto) -> bool:
        return any(tensor.data_type in _graph.FLOATING for tensor in model.graph.initializer)

    if has_weights(model):
        return model
    changed: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    _graph.constants_to_initializers(changed, _graph.floating_constants(changed.graph))
    if has_weights(changed):
        return changed
    inner = list(_graph.subgraphs(changed.graph))
    _graph.constants_to_initializers(
        changed, {name for graph in inner for name in _graph.floating_constants(graph)}
    )
    names = [t.name for graph in inner for t in graph.initializer if t.data_type in _graph.FLOATING]
    _graph.lift_initializers(changed, names)
    return changed


def _name_parameters(
    model: onnx.ModelProto,
    block: onnxblock.TrainingBlock,
    requires_grad: Sequence[str] | None,
    frozen: list[str],
) -> dict[str, InitializerReport]:
    """Declare to a block what to train and what to freeze; return the reports by name."""
    floats = [tensor for tensor in model.graph.initializer if tensor.data_type in _graph.FLOATING]
    if requires_grad is None:
        choices = {choice.name: choice for choice in choose(model)}
        trainable = [
            name for name, choice in choices.items() if choice.fate is Fate.TRAINED and name not in frozen
        ]
        block.leave_out_unreached = True
    else:
        trainable = _names("requires_grad", requires_grad)
        both = [name for name in trainable if name in frozen]
        if both:
            raise ValueError(f"requires_grad and frozen_params both name {', '.join(both)}")
        choices = {
            tensor.name: InitializerReport.of(tensor, Fate.TRAINED, "named in requires_grad")
            if tensor.name in trainable
            else InitializerReport.of(tensor, Fate.LEFT_OUT, "not named in requires_grad")
            for tensor in floats
        }
    for name in trainable:
        block.requires_grad(name)
    for name in frozen:
        block.requires_grad(name, False)
    return choices


def _settled(
    block: onnxblock.TrainingBlock, choices: dict[str, InitializerReport], frozen: list[str]
) -> list[InitializerReport]:
    """Return the final reports, which include what only the block finds: unreached parameters, updated statistics."""
    settled = dict(choices)
    for name in block.unreached:
        settled[name] = replace(
            choices[name], fate=Fate.LEFT_OUT, reason="no gradient of the loss reaches it"
        )
    for tensors, fate in zip(block.parameters(), (Fate.TRAINED, Fate.FROZEN), strict=True):
        for tensor in tensors:
            if tensor.data_type not in _graph.FLOATING:
                continue
            if tensor.name not in settled:  # it came from a subgraph
                settled[tensor.name] = InitializerReport.of(tensor, fate, "named, moved from a subgraph")
            elif fate is Fate.FROZEN:
                reason = "named in frozen_params" if tensor.name in frozen else "running statistic, updated"
                settled[tensor.name] = replace(settled[tensor.name], fate=fate, reason=reason)
    return list(settled.values())


def _log_choices(choices: Sequence[InitializerReport], chosen_here: bool) -> None:
    for choice in choices:
        _log.info("%s %s, %s: %s", choice.name, list(choice.shape), choice.fate.value, choice.reason)
    counts = {fate: [choice.name for choice in choices if choice.fate is fate] for fate in Fate}
    _log.info("training %d parameters, %d are frozen", len(counts[Fate.TRAINED]), len(counts[Fate.FROZEN]))
    left_out = counts[Fate.LEFT_OUT]
    if not chosen_here:
        return
    if left_out:
        _log.warning(
            "%d of %d floating-point initializers are not trained: %s%s; the report gives the reasons, and "
            "requires_grad (--train on the command line) overrides this choice",
            len(left_out), len(choices), ", ".join(left_out[:8]), ", ..." if len(left_out) > 8 else "",
        )  # fmt: skip
    numbers = [
        choice.name
        for choice in choices
        if choice.fate is Fate.TRAINED and not choice.shape and not choice.recorded
    ]
    if numbers:
        _log.warning(
            "scalars are trained too: %s; if some are constants, name them in frozen_params (--freeze on the command line)",
            ", ".join(numbers),
        )


def _save(data: bytes, path: Path) -> None:
    """Replace the file atomically: a failure leaves the old file or none."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _log.info("wrote %s (%d bytes)", path, len(data))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def _save_checkpoint(block: onnxblock.TrainingBlock, path: Path, nominal: bool) -> None:
    parameters: Any = block.parameters()
    onnxblock.save_checkpoint(parameters, path, nominal_checkpoint=nominal)
    _log.info("wrote %s", path)
