"""``ortrain artifacts``."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ortrain import _ortrain
from ortrain.cli import app, results
from ortrain.cli.adapter_option import NEW, WEIGHTS, AdapterSettings, adapter_option, with_settings
from ortrain.cli.numbers import Integer, Number
from ortrain.cli.step_options import StepOptions, step_options
from ortrain.trainer import mezo

if TYPE_CHECKING:
    from ortrain.artifacts import ArtifactReport, LoRA

OPTIMIZERS = [*(declaration["name"] for declaration in json.loads(_ortrain.list_optimizers())), mezo.NAME]
"""Optimizers of the library, and optimizers that the trainer implements."""
# The losses of onnxblock.loss that take one output of a model. They are repeated here because that module loads slowly; a test
# compares the lists.
LOSSES = [
    "cross_entropy",
    "mse",
    "bce_with_logits",
    "l1",
    "soft_cross_entropy",
    "focal",
    "huber",
    "smooth_l1",
    "log_cosh",
    "quantile",
    "poisson_nll",
    "kl_div",
    "distillation",
    "hinge",
    "dice",
    "jaccard",
    "tversky",
    "token_cross_entropy",
    "none",
]


@app.command(
    "artifacts",
    """
    ortrain artifacts model.onnx --loss cross_entropy
    ortrain artifacts model.onnx --loss cross_entropy --weight-decay 0.01
    ortrain artifacts model.onnx --loss cross_entropy --optimizer lion --setting beta2=0.98
    ortrain artifacts model.onnx --loss cross_entropy --output logits
    ortrain artifacts model.onnx --loss cross_entropy --batch dynamic
    ortrain artifacts model.onnx --classes 4
    ortrain artifacts model.onnx --classes 4 --train last:2
    ortrain artifacts model.onnx --loss cross_entropy --freeze 'encoder.*' --freeze embeddings
    ortrain artifacts model.onnx --loss cross_entropy --adapter lora --rank 8 --target q_proj --target v_proj
    ortrain artifacts model.onnx --loss cross_entropy --adapter dora --target Conv
    ortrain artifacts model.onnx --loss cross_entropy --adapter lora --rank 64 --rslora --dropout 0.1 --bias lora_only
    ortrain artifacts model.onnx --loss mse --optimizer sgd --train fc.weight --train fc.bias --out head
    ortrain artifacts model.onnx --loss cross_entropy --step
    """,
)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("artifacts"),
    show_default=True,
    help="folder to which the files are written",
)
@click.option(
    "--loss",
    type=click.Choice(LOSSES),
    help="the loss; none if the first output of the model is the loss (default cross_entropy with --classes)",
)
@click.option(
    "--classes",
    type=Integer(min=2),
    metavar="N",
    help="replace the classifier of the model by a new one for N classes, and train it",
)
@click.option(
    "--output",
    metavar="NAME",
    help="value of the model that the loss is computed from (default its first output); for cross_entropy the scores before "
    "a Softmax",
)
@click.option(
    "--classes-last",
    is_flag=True,
    help="for cross_entropy: the classes are in the last dimension of the scores, as in language models, whose scores have the "
    "shape [batch, tokens, classes] (default: in the second one, unless Keras or JAX exported the model)",
)
@click.option(
    "--sample-weight",
    "weighted",
    is_flag=True,
    help="let steps take a weight for each row, as `ortrain train --sample-weight COLUMN` gives them",
)
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), default="adamw", show_default=True)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="a setting of the optimizer, such as momentum=0.9 of sgd; may be repeated",
)
@click.option(
    "--weight-decay",
    type=Number(min=0),
    help="weight decay of the optimizer; biases and normalizations, the group no_decay, do not decay",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="NAME:SETTING=VALUE",
    help="parameters with other settings, by a name, pattern or module, such as 'encoder:lr_factor=0.1,weight_decay=0'; may be "
    "repeated",
)
@click.option(
    "--layer-decay",
    type=Number(min=0, max=1, min_open=True),
    help="factor that multiplies the learning rate of a layer once for each layer above it",
)
@click.option(
    "--clip",
    type=Number(min=0, min_open=True),
    metavar="NORM",
    help="clip the norm of all gradients together to this value",
)
@click.option(
    "--clip-value",
    type=Number(min=0, min_open=True),
    metavar="LIMIT",
    help="clip the absolute value of each element of a gradient to this value",
)
@click.option(
    "--clip-group",
    type=Number(min=0, min_open=True),
    metavar="NORM",
    help="clip the norm of the gradients of each group to this value",
)
@click.option(
    "--clip-adaptive",
    type=Number(min=0, min_open=True),
    metavar="SHARE",
    help="clip the norm of a parameter's gradient to this fraction of the parameter's norm",
)
@click.option(
    "--ema",
    type=Number(min=0, max=1, max_open=True),
    metavar="DECAY",
    help="keep an exponential moving average of the weights with this decay, such as 0.999; evaluate, predict and "
    "export use the average",
)
@click.option(
    "--train",
    "trained",
    multiple=True,
    metavar="NAME",
    help="train these parameters: a name, a pattern such as '*.bias', or the path of a module such as encoder.layer.1; may be "
    "repeated. With --classes also head (default), last:N for the last N layers, or all",
)
@click.option(
    "--freeze",
    "frozen",
    multiple=True,
    metavar="NAME",
    help="store these parameters in the checkpoint, but do not train them; a name, pattern or module, may be repeated",
)
@click.option(
    "--seed",
    type=Integer(min=0),
    default=0,
    show_default=True,
    help="seed of the weights of a new classifier, and of new adapters",
)
@adapter_option("none")
@with_settings("16")
@click.option("--dora", is_flag=True, help="with --adapter lora, the same as --adapter dora")
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="NAME",
    help="layers that get an adapter: a module, the end of its name such as q_proj, a pattern, an operator such as "
    "Conv, or all-linear (default); may be repeated",
)
@click.option(
    "--qat",
    is_flag=False,
    flag_value="per_channel",
    type=click.Choice(["per_channel", "per_tensor"]),
    help="train with weights and activations rounded to 8 bits, so that the network learns to compensate for the "
    "rounding; export writes a quantized model. Scales are per channel of a weight (default) or per weight",
)
@click.option(
    "--batch",
    type=click.Choice(["fixed", "dynamic"]),
    default="fixed",
    show_default=True,
    help="dynamic: let a model that was exported with a fixed batch size take batches of any size",
)
@click.option(
    "--untie",
    multiple=True,
    metavar="NAME",
    help="give each module that reads this initializer a separate parameter; a name or pattern, may be repeated; none "
    "separates nothing (default: initializers that the exporter merged because they were equal)",
)
@click.option(
    "--tie",
    multiple=True,
    metavar="NAME",
    help="tie this matrix and all matrices with the same elements, also transposed, to one parameter; a name or "
    "pattern, may "
    "be repeated; none ties nothing (default: initializers that the exporter made of one parameter)",
)
@click.option(
    "--external-data",
    is_flag=True,
    help="store constants of the models in the file weights.data next to them (default: if a model would exceed 2 GB, or if they "
    "are external data of MODEL)",
)
@step_options
@app.as_json
def command(
    model: Path,
    out: Path,
    loss: str | None,
    classes: int | None,
    output: str | None,
    classes_last: bool,
    weighted: bool,
    optimizer: str,
    settings: tuple[str, ...],
    weight_decay: float | None,
    groups: tuple[str, ...],
    layer_decay: float | None,
    clip: float | None,
    clip_value: float | None,
    clip_group: float | None,
    clip_adaptive: float | None,
    ema: float | None,
    trained: tuple[str, ...],
    frozen: tuple[str, ...],
    seed: int,
    adapter: str | None,
    new_adapters: AdapterSettings,
    dora: bool,
    targets: tuple[str, ...],
    qat: str | None,
    batch: str,
    untie: tuple[str, ...],
    tie: tuple[str, ...],
    external_data: bool,
    step: StepOptions,
    json_output: bool,
) -> None:
    """Create training artifacts from the inference model MODEL, and print what is trained and why."""
    from ortrain.trainer.creation import make_artifacts

    head = _head(classes, loss, trained, seed)
    if output is not None and loss == "none":
        raise click.UsageError(
            "--output names the value that a loss is computed from, but with --loss none the model computes its own loss"
        )
    if classes_last and (loss or "cross_entropy") != "cross_entropy":
        raise click.UsageError(f"--classes-last is for --loss cross_entropy, found --loss {loss}")
    chosen: Any = optimizer
    limits = {"value": clip_value, "adaptive": clip_adaptive, "group": clip_group, "norm": clip}
    recipe = _recipe(groups, layer_decay, weight_decay, limits, ema)
    estimated = None
    if optimizer == mezo.NAME:
        estimated, settings, optimizer = _mezo(settings), (), "sgd"
    if recipe or settings or estimated:
        chosen = _optimizer(optimizer, settings, recipe)
    report = make_artifacts(
        step.source(model),
        None if loss == "none" else loss,
        chosen,
        out,
        None if head else list(trained) or None,
        list(frozen) or None,
        output,
        weighted=weighted,
        classes_last=classes_last,
        head=head,
        adapter=_adapter(adapter, new_adapters, dora, targets, seed),
        qat=_quantization(qat),
        batch="dynamic" if batch == "dynamic" else None,
        untie=_named(untie),
        tie=_named(tie),
        external_data=external_data or None,
        mezo=estimated,
    )
    for path in results.set_aside(out):  # they belong to the earlier artifacts
        click.echo(f"ortrain: the result of training that was in {out} is now {path}", err=True)
    files = [*report.files, *step.write(report, out)]
    if json_output:
        app.print_json(_as_json(report, files))
    else:
        click.echo(str(report))
        for path in files[len(report.files) :]:
            click.echo(f"{step.kind}: {path}")


def _as_json(report: ArtifactReport, files: Sequence[Path]) -> dict[str, Any]:
    return {
        "initializers": [
            {
                "name": choice.name,
                "shape": list(choice.shape),
                "dtype": str(choice.dtype),
                "fate": choice.fate.value,
                "reason": choice.reason,
            }
            for choice in report.initializers
        ],
        "changes": [
            {
                "kind": change.kind.value,
                "initializer": change.initializer,
                "parameters": list(change.parameters),
                "reason": change.reason,
            }
            for change in report.changes
        ],
        "shared": {weight.name: list(weight.nodes) for weight in report.shared},
        "folded": {weight.name: weight.reason for weight in report.folded},
        "absent": list(report.absent),
        "head": None if report.head is None else asdict(report.head),
        "adapters": None if report.adapters is None else asdict(report.adapters),
        "files": [str(path) for path in files],
        "fixed_batch": None if report.fixed_batch is None else report.fixed_batch[1],
    }


def _adapter(
    given: str | None, settings: AdapterSettings, dora: bool, targets: tuple[str, ...], seed: int
) -> LoRA | None:
    """Return the adapters that the options ask for."""
    if targets and given not in NEW:
        raise click.UsageError(
            "--target names the layers of new adapters: expected --adapter lora or --adapter dora"
        )
    if dora and given not in NEW:
        raise click.UsageError("--dora is a setting of new adapters: expected --adapter lora")
    if given not in NEW:
        settings.refuse(given or WEIGHTS)
    if given in (None, WEIGHTS):
        return None
    if given not in NEW:
        from ortrain.artifacts import read_peft

        return read_peft(given)
    use_dora = dora or given == "dora"
    return settings.lora(targets=list(targets) or "all-linear", use_dora=use_dora, seed=seed)


def _head(classes: int | None, loss: str | None, trained: tuple[str, ...], seed: int) -> Any:
    """Return the new classifier that the options ask for."""
    if classes is None:
        if loss is None:
            raise click.UsageError(
                f"expected --loss, one of {', '.join(LOSSES)}; or --classes N, for a new classifier and its loss"
            )
        return None
    if loss == "none":
        raise click.UsageError(
            "--classes replaces the classifier, whose scores need a --loss other than none"
        )
    from ortrain.artifacts import Head

    return Head(classes, _trained_with_head(trained), seed)


def _quantization(weights: str | None) -> Any:
    """Return how the network is quantized while it trains."""
    if weights is None:
        return None
    from ortrain.artifacts import Int8

    return Int8(weights=weights)


def _trained_with_head(names: tuple[str, ...]) -> str | list[str]:
    """Return what is trained with a new head: one of the option's words, or names."""
    if not names:
        return "head"
    words = [name for name in names if name in ("head", "all") or name.startswith("last:")]
    if words and len(names) > 1:
        raise click.UsageError(f"--train {words[0]} must be the only option --train, found {len(names)}")
    return words[0] if words else list(names)


def _group(text: str) -> tuple[str, dict[str, float]]:
    """Return the pattern and the settings of an option --group."""
    name, _, stated = text.rpartition(":")
    settings: dict[str, float] = {}
    for setting in stated.split(","):
        key, _, value = setting.partition("=")
        try:
            settings[key] = float(value)
        except ValueError:
            name = ""
    if not name:
        raise click.UsageError(
            f"--group: expected NAME:SETTING=NUMBER, such as 'encoder:lr_factor=0.1', found {text!r}"
        )
    return name, settings


def _recipe(
    groups: tuple[str, ...],
    layer_decay: float | None,
    weight_decay: float | None,
    limits: dict[str, float | None],
    ema: float | None,
) -> dict[str, Any]:
    """Return the arguments of an optimizer's block that options ask for."""
    given: dict[str, Any] = {}
    if groups or layer_decay is not None or weight_decay is not None:
        from ortrain.onnxblock.optim import ParamGroup, ParamGroups

        stated = []
        for name, settings in map(_group, groups):
            keys = [key for key in ("lr_factor", "weight_decay") if key in settings]
            own: dict[str, Any] = {key: settings.pop(key) for key in keys}
            stated.append(ParamGroup(name, [name], settings=settings, **own))
        no_decay = "norm_and_bias" if weight_decay is not None else None
        given["param_groups"] = ParamGroups(stated, no_decay=no_decay, layer_decay=layer_decay)
    if weight_decay is not None:
        given["weight_decay"] = weight_decay
    if any(limit is not None for limit in limits.values()):
        from ortrain.onnxblock.optim import ClipAdaptive, ClipGradNorm, ClipGradValue, ClipGroupNorm

        blocks = {
            "value": ClipGradValue,
            "adaptive": ClipAdaptive,
            "group": ClipGroupNorm,
            "norm": ClipGradNorm,
        }
        given["clip_grad"] = [blocks[kind](limit) for kind, limit in limits.items() if limit is not None]
    if ema is not None:
        given["ema"] = ema
    return given


def _optimizer(name: str, settings: tuple[str, ...], recipe: dict[str, Any]) -> Any:
    """Return the block of an optimizer with settings."""
    from ortrain.onnxblock import optim

    block = optim.BLOCKS[name]
    known = [
        key
        for key in inspect.signature(block).parameters
        if key not in ("clip_grad", "param_groups", "betas", "ema")
    ]
    if issubclass(block, optim.DeclaredOptimizer):
        known += [setting.name for setting in block.declaration.settings if setting.name not in known]
    given: dict[str, Any] = {}
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in known:
            raise click.UsageError(f"--setting {setting}: {name} has no {key}; it has {', '.join(known)}")
        try:
            given[key] = float(value)
        except ValueError:
            raise click.UsageError(
                f"--setting {setting}: expected NAME=NUMBER, such as momentum=0.9"
            ) from None
    try:
        return block(**given, **recipe)
    except (TypeError, ValueError) as error:
        raise click.UsageError(f"--optimizer {name}: {error}") from None


def _mezo(settings: tuple[str, ...]) -> mezo.MeZO:
    """Return the settings of MeZO."""
    given = mezo.MeZO()
    for setting in settings:
        key, _, value = setting.partition("=")
        if key != "epsilon":
            raise click.UsageError(f"--setting {setting}: mezo has no {key}; it has epsilon")
        try:
            given = mezo.MeZO(float(value))
        except ValueError:
            raise click.UsageError(
                f"--setting {setting}: expected NAME=NUMBER above 0, such as epsilon=1e-3"
            ) from None
    return given


def _named(names: tuple[str, ...]) -> list[str] | None:
    """Return the names given to an option: an empty tuple for ``none``, None if the option was omitted."""
    return [name for name in names if name != "none"] if names else None
