"""Artifacts for a trainer, made from an inference model or a network of a framework."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortrain._files.weights import with_all_data
from ortrain._files.writing import write_file
from ortrain._support.suggestions import did_you_mean
from ortrain.api import CheckpointState
from ortrain.trainer.mezo import NAME, MeZO, mezo_of, store

try:
    import onnx

    from ortrain import artifacts, onnxblock
    from ortrain._frameworks.record import export_of
    from ortrain.artifacts.blocks import CLASSES_LAST, LOSS_NAMES, OPTIMIZER_NAMES, named_elsewhere
    from ortrain.artifacts.loading import load
    from ortrain.trainer.weighted_loss import WeightedLoss
except ImportError as error:
    raise ImportError(
        "Trainer: creating artifacts from a model needs onnx: pip install 'ortrain[artifacts]'"
    ) from error

_OPTIONAL_OUTPUTS = "ortrain.optional_outputs"
"""The key of an entry in the metadata of a training or eval model. The entry lists, one per line, outputs that a session only
returns if its configuration has the entry of this name."""


def _named(kind: str, given: Any, known: Mapping[str, str], enum: Any) -> Any:
    if not isinstance(given, str):
        return given
    if given not in known:
        same = named_elsewhere(given) if enum is artifacts.LossType else None
        here = next((name for name, other in known.items() if same and other == same.name), given)
        raise ValueError(
            f"{kind}: there is no {kind} {given!r}{did_you_mean(here, known)}; known are {', '.join(known)}"
        )
    return enum[known[given]]


def floating_outputs(graph: onnx.GraphProto) -> list[str]:
    """Return the outputs of a model that a loss can be computed from."""
    kinds = {
        onnx.TensorProto.DataType.Value(name)
        for name in ("UNDEFINED", "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")
    }
    return [
        value.name
        for value in graph.output
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in kinds
    ]


def _declared(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return a model that declares the type and shape of a value; exporters often leave out intermediate values."""
    outputs = [value.name for value in model.graph.output]
    if name not in outputs and not any(name in node.output for node in model.graph.node):
        raise ValueError(
            f"output: the model has no value named {name!r}; its outputs are {', '.join(outputs)}"
        )
    known = [*model.graph.value_info, *model.graph.output]
    return model if any(value.name == name for value in known) else onnx.shape_inference.infer_shapes(model)


def _check_scalar(output: onnx.ValueInfoProto) -> None:
    """Reject an output that cannot be a loss because it has several elements."""
    shape = [dim.dim_value or dim.dim_param or "?" for dim in output.type.tensor_type.shape.dim]
    if any(dim != 1 for dim in shape):
        raise ValueError(
            f"loss: without one, the first output of the model is the loss, but {output.name!r} has the shape "
            f"[{', '.join(map(str, shape))}]; name a loss: {', '.join(map(repr, LOSS_NAMES))} "
            "(cross_entropy for classes, mse for numbers)"
        )


def make_artifacts(
    model: Any,
    loss: Any,
    optimizer: Any,
    folder: Path,
    requires_grad: Sequence[str] | None,
    frozen_params: Sequence[str] | None,
    output: str | None = None,
    args: Any = None,
    weighted: bool = False,
    classes_last: bool = False,
    head: Any = None,
    adapter: Any = None,
    soft_targets: bool = False,
    mezo: MeZO | None = None,
    **settings: Any,
) -> artifacts.ArtifactReport:
    """Create artifacts whose steps return the outputs of the model besides the loss, first the one that it is computed from.

    These outputs are optional: a session returns the loss alone unless it is configured otherwise, as that of `Trainer` is. So
    the training loop that is written for artifacts with a loss runs with these too. With ``weighted``, a loss given by its name
    takes a weight for each row. With ``classes_last``, cross entropy takes the classes from the last dimension of the scores.
    With ``soft_targets``, cross entropy takes a probability for each class. With ``mezo``, or the optimizer "mezo", a trainer
    estimates the gradients, and the optimizer is SGD unless there is another one.

    Beside adapters, weights that are not trained are in a file that the training and the eval model map, so that sessions and
    processes share them.
    """
    settings.setdefault("external_data", True if adapter is not None else None)
    mezo = mezo or mezo_of(optimizer)
    chosen_loss = _named("loss", loss, LOSS_NAMES, artifacts.LossType)
    if head is not None and chosen_loss is None:
        chosen_loss = artifacts.LossType.CrossEntropyLoss
    loaded = (
        model if isinstance(model, onnx.ModelProto) and args is None else load(model, args, apart=True)[0]
    )
    model = model if isinstance(model, (str, os.PathLike)) else loaded
    names = [value.name for value in loaded.graph.output]
    if output is not None and isinstance(chosen_loss, artifacts.LossType):
        declared = _declared(loaded, output)
        model = model if declared is loaded else with_all_data(declared)
        names = [output, *(name for name in names if name != output)]
    elif output is not None:
        raise ValueError("output: expected the name of a loss as well, which is computed from this output")
    elif isinstance(chosen_loss, artifacts.LossType) and names[0] not in floating_outputs(loaded.graph):
        others = [repr(name) for name in names if name in floating_outputs(loaded.graph)]
        raise ValueError(
            f"the first output of the model, {names[0]!r}, has no floating-point numbers to compute a loss from; name a value "
            "with such numbers (ortrain artifacts --output, Trainer(output=...))"
            + (f", such as the output {' or '.join(others)}" if others else "")
        )
    if chosen_loss is None:
        _check_scalar(loaded.graph.output[0])
    # With a new head, the scores become the first output; only the edit of the model finds them.
    returned = None if head is not None else names if chosen_loss is not None else names[1:]
    is_named = isinstance(chosen_loss, artifacts.LossType) and (head is None or output is not None)
    if soft_targets and chosen_loss is artifacts.LossType.CrossEntropyLoss:
        export = export_of(loaded)
        classes_last = classes_last or (export is not None and export.framework in CLASSES_LAST)
        chosen_loss = onnxblock.loss.SoftCrossEntropyLoss(axis=-1 if classes_last else 1)
    if weighted:
        chosen_loss = _weighted(chosen_loss, loaded, classes_last)
    elif classes_last and chosen_loss is artifacts.LossType.CrossEntropyLoss:
        chosen_loss = onnxblock.loss.CrossEntropyLoss(axis=-1)
    with warnings.catch_warnings():
        # Neither is intended here, so both raise, before files are written.
        mistakes = (artifacts.NothingToTrainWarning, artifacts.UnknownParameterWarning)
        for mistake in mistakes:
            warnings.simplefilter("error", mistake)
        try:
            report = artifacts.generate_artifacts(
                model,
                requires_grad=requires_grad,
                frozen_params=frozen_params,
                loss=chosen_loss,
                optimizer=_optimizer_of(optimizer),
                artifact_directory=folder,
                additional_output_names=returned,
                loss_input_names=names[:1] if is_named else None,
                head=head,
                adapter=adapter,
                **settings,
            )
        except mistakes as found:
            raise ValueError(str(found)) from None
    _declare_optional(report)
    if mezo is not None:
        state = CheckpointState.load_checkpoint(report.checkpoint)
        store(state, mezo)
        CheckpointState.save_checkpoint(state, report.checkpoint)
    return report


def _optimizer_of(given: Any) -> Any:
    """Return the argument of generate_artifacts for an optimizer that a caller names. MeZO uses SGD."""
    if mezo_of(given) is not None:
        return artifacts.OptimType.SGD
    return _named("optimizer", given, {**OPTIMIZER_NAMES, NAME: ""}, artifacts.OptimType)


def _weighted(loss: Any, model: onnx.ModelProto, classes_last: bool) -> WeightedLoss:
    """Return a block that weights rows, for the name of a loss."""
    if not isinstance(loss, artifacts.LossType):
        raise ValueError(
            f"sample_weight: expected a loss by its name with it, {', '.join(LOSS_NAMES)}, found {loss!r:.60}; a block may use "
            "ortrain.trainer.weighted_loss.WeightedLoss"
        )
    if loss is artifacts.LossType.CrossEntropyLoss:
        export = export_of(model)
        classes_last = classes_last or (export is not None and export.framework in CLASSES_LAST)
        axis = -1 if classes_last else 1
        return WeightedLoss(onnxblock.loss.CrossEntropyLoss(reduction="none", axis=axis))
    return WeightedLoss(getattr(onnxblock.loss, loss.name)(reduction="none"))


def with_settings(optimizer: Any, settings: Mapping[str, Any]) -> Any:
    """Return an optimizer given by its name as a block with these arguments, of which some may be None."""
    given = {name: value for name, value in settings.items() if value is not None}
    if "weight_decay" in given:
        given.setdefault("param_groups", onnxblock.optim.ParamGroups(no_decay="norm_and_bias"))
    if not given:
        return optimizer
    chosen = _optimizer_of(optimizer)
    own = {"clip": "clip_grad"}
    if not isinstance(chosen, artifacts.OptimType):
        name = next(iter(given))
        raise ValueError(
            f"{name}: expected an optimizer by its name with it, such as adamw or sgd, found a block; use its argument "
            f"{own.get(name, name)}"
        )
    if isinstance(given.get("clip"), (int, float)):
        if not given["clip"] > 0:
            raise ValueError(f"clip: expected a norm above 0, found {given['clip']}")
        given["clip"] = onnxblock.optim.ClipGradNorm(given["clip"])
    return getattr(onnxblock.optim, chosen.name)(**{own.get(key, key): value for key, value in given.items()})


def _declare_optional(report: artifacts.ArtifactReport) -> None:
    """Declare the outputs of the eval model after the loss as optional, in the training model too."""
    outputs = onnx.load(report.eval_model, load_external_data=False).graph.output
    names = [value.name for value in outputs[1:]]
    for path in (report.training_model, report.eval_model):
        model = onnx.load(path, load_external_data=False)
        onnx.helper.set_model_props(
            model,
            {
                **{entry.key: entry.value for entry in model.metadata_props},
                _OPTIONAL_OUTPUTS: "\n".join(names),
            },
        )
        write_file(path, "model", model.SerializeToString())
