"""Training artifacts: from an inference model to what a training session loads.

Needs ``onnx`` (``pip install ortrain[artifacts]``). Artifacts are made once, on any machine; the device that
trains needs only the files.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from ortrain import onnxblock
from ortrain.onnxblock import _graph

__all__ = ["LossType", "OptimType", "generate_artifacts"]

_log = logging.getLogger(__name__)

#: Inputs that set how an operator works. A float initializer that is read nowhere else is no parameter.
_SETTINGS = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1,),
    "OneHot": (2,),
    "Pad": (2,),
    "Range": (0, 1, 2),
    "Resize": (1, 2),
    "RotaryEmbedding": (1, 2),
    "Upsample": (1,),
}


class LossType(Enum):
    """Losses that :func:`generate_artifacts` can add to a model."""

    MSELoss = 1
    """Mean squared error, :class:`ortrain.onnxblock.loss.MSELoss`."""
    CrossEntropyLoss = 2
    """Cross entropy of scores and class numbers, :class:`ortrain.onnxblock.loss.CrossEntropyLoss`."""
    BCEWithLogitsLoss = 3
    """Binary cross entropy of logits, :class:`ortrain.onnxblock.loss.BCEWithLogitsLoss`."""
    L1Loss = 4
    """Mean absolute error, :class:`ortrain.onnxblock.loss.L1Loss`."""


class OptimType(Enum):
    """Optimizers that :func:`generate_artifacts` can make a model of."""

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
    """The loss on some values of the model, and further outputs beside it."""

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
) -> None:
    """Make the files that a training session needs from an inference model.

    Written are ``training_model.onnx``, ``eval_model.onnx`` and ``checkpoint``, with an optimizer
    ``optimizer_model.onnx``, and with ``nominal_checkpoint`` also ``nominal_checkpoint``. Opsets and IR
    version are those of ``model``. The eval model has batch normalization and dropout in inference mode.
    Nothing is written when the model is refused.

    Parameters
    ----------
    model : onnx.ModelProto or str or os.PathLike
        The model, or its path. A model whose weights lie in files of their own is given by its path.
    requires_grad : list of str, optional
        Initializers to train, of the model's graph or of the graphs inside If, Loop and Scan, which move to
        the model's graph under their name (with a number where it is taken). Left out, every float
        initializer of the model's graph is trained that is not in ``frozen_params``, save running statistics
        of batch normalization and initializers that only set how an operator works (the bounds of Clip, say).
    frozen_params : list of str, optional
        Initializers that are parameters, and so in the checkpoint, but are not trained. With
        ``requires_grad``, initializers in neither list stay in the models as constants.
    loss : LossType or onnxblock.Block, optional
        The loss to add. A block of one's own is called with the names of the loss inputs and returns the
        name of the loss. Left out, the first output of the model is the loss.
    optimizer : OptimType or onnxblock.Block, optional
        The optimizer, with its defaults or as a block such as :class:`ortrain.onnxblock.optim.AdamW`. Left
        out, no optimizer model is written.
    artifact_directory : str or bytes or os.PathLike, optional
        Where the files go; it is made when it is not there. The current directory by default.
    prefix : str, default: ""
        What the file names begin with.
    ort_format : bool, default: False
        Not implemented.
    custom_op_library : str or os.PathLike, optional
        Not implemented.
    additional_output_names : list of str, optional
        Values that training and eval model give beside the loss, such as the prediction.
    nominal_checkpoint : bool, default: False
        Whether to write a second checkpoint with names, types and shapes but no values.
    loss_input_names : list of str, optional
        What the loss is called with. All outputs of the model by default.
    disabled_passes : list of str, optional
        Passes that do not rewrite the model before its gradient is built, such as ``"select_early"``; for
        debugging.

    Raises
    ------
    TypeError
        When an argument has another type than those above.
    ValueError
        When the model is not valid, a name is not in it, there is no such pass, or it cannot be trained; the
        message names every node and parameter that stands in the way, and why.
    LookupError
        When a loss input or an additional output is not a value of the model.
    FileNotFoundError
        When there is no model at the path.
    NotImplementedError
        For ``ort_format`` and ``custom_op_library``.
    OSError
        When a file cannot be written.
    """
    if ort_format:
        raise NotImplementedError(
            "cannot write artifacts in ORT format: ortrain reads and writes ONNX; leave ort_format out"
        )
    if custom_op_library is not None:
        raise NotImplementedError(
            f"cannot use the custom operator library {os.fspath(custom_op_library)!r}: "
            "ortrain only runs its built-in operators"
        )
    additional = _names("additional_output_names", additional_output_names)
    loss_block = _loss_block(loss)
    optimizer_block = _optimizer_block(optimizer)
    directory = Path.cwd() if artifact_directory is None else Path(os.fsdecode(artifact_directory))

    loaded, path = _load(model)
    outputs = [output.name for output in loaded.graph.output]
    loss_inputs = _names("loss_input_names", loss_input_names) or outputs
    if isinstance(loss, LossType) and len(loss_inputs) > 2:
        raise ValueError(
            f"{loss.name} takes a prediction and, as a second value, what it is compared with, "
            f"but it would get {', '.join(loss_inputs)}; choose with loss_input_names"
        )
    trainable, frozen = _choose_parameters(
        loaded, requires_grad, _names("frozen_params", frozen_params), [*loss_inputs, *additional]
    )
    _log.info("training %d parameters: %s", len(trainable), ", ".join(trainable))
    if frozen:
        _log.info("%d parameters are frozen: %s", len(frozen), ", ".join(frozen))

    block = _LossOnModel(loss_block, loss_inputs, additional)
    block.disabled_passes = _names("disabled_passes", disabled_passes)
    for name in trainable:
        block.requires_grad(name)
    for name in frozen:
        block.requires_grad(name, False)
    with onnxblock.base(loaded, path):
        block()
    training_model, eval_model = block.to_model_proto()
    optimizer_model = None
    if optimizer_block is not None:
        with onnxblock.empty_base(_graph.opset_of(loaded), loaded.ir_version):
            optimizer_block(block.parameters())
            optimizer_model = optimizer_block.to_model_proto()  # type: ignore[attr-defined]

    directory.mkdir(parents=True, exist_ok=True)
    _save(training_model, directory / f"{prefix}training_model.onnx")
    _save(eval_model, directory / f"{prefix}eval_model.onnx")
    if optimizer_model is not None:
        _save(optimizer_model, directory / f"{prefix}optimizer_model.onnx")
    else:
        _log.info("no optimizer is given, so no optimizer model is written")
    _save_checkpoint(block, directory / f"{prefix}checkpoint", nominal=False)
    if nominal_checkpoint:
        _save_checkpoint(block, directory / f"{prefix}nominal_checkpoint", nominal=True)


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
        f"optimizer must be an OptimType or a block that makes a model, such as onnxblock.optim.AdamW, "
        f"not {type(optimizer).__name__}"
    )


def _load(model: object) -> tuple[onnx.ModelProto, str | None]:
    """Return the model with its weights inside and its functions inlined, and the path it came from."""
    path: str | None = None
    if isinstance(model, onnx.ModelProto):
        loaded = model
        outside = [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        if outside:
            raise ValueError(
                f"the weights {', '.join(outside[:5])}{', ...' if len(outside) > 5 else ''} lie outside "
                "the given model; pass the path of the model, or load it with onnx.load"
            )
    elif isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if not os.path.exists(path):
            raise FileNotFoundError(f"there is no model at {path!r}")
        try:
            loaded = onnx.load(path)
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


def _choose_parameters(
    model: onnx.ModelProto, requires_grad: Sequence[str] | None, frozen: list[str], wanted: Iterable[str]
) -> tuple[list[str], list[str]]:
    """Return the names of trainable and of frozen parameters."""
    if requires_grad is not None:
        trainable = _names("requires_grad", requires_grad)
        both = [name for name in trainable if name in frozen]
        if both:
            raise ValueError(f"requires_grad and frozen_params both name {', '.join(both)}")
        return trainable, frozen
    read = _read_for(model.graph, wanted)
    statistics = set(_graph.running_statistics(model))
    trainable = []
    for tensor in model.graph.initializer:
        if tensor.data_type not in _graph.FLOATING or tensor.name in frozen or tensor.name in statistics:
            continue
        if tensor.name in read:
            trainable.append(tensor.name)
        else:
            _log.info("initializer %s is not trained: it does not take part in the computation", tensor.name)
    scalars = [t.name for t in model.graph.initializer if t.name in trainable and not t.dims]
    if scalars:
        _log.warning(
            "every float initializer is trained, single numbers too: %s; "
            "name those that are constants in frozen_params",
            ", ".join(scalars),
        )
    return trainable, frozen


def _read_for(graph: onnx.GraphProto, wanted: Iterable[str]) -> set[str]:
    """Return the values that the wanted ones are computed from, without mere settings of operators."""
    producers = {output: node for node in graph.node for output in node.output if output}
    read: set[str] = set()
    waiting = list(wanted)
    while waiting:
        name = waiting.pop()
        if not name or name in read:
            continue
        read.add(name)
        node = producers.get(name)
        if node is None:
            continue
        settings = _SETTINGS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
        waiting.extend(value for index, value in enumerate(node.input) if index not in settings)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                waiting.extend(value for inner in _graph.walk(attribute.g) for value in inner.input)
    return read


def _save(model: onnx.ModelProto, path: Path) -> None:
    """Replace the file in one step: a failure leaves the old file or none."""
    data = model.SerializeToString()
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
