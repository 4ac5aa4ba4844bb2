"""Writes pages of ``reference/``: gradients, standard forms, conformance, losses, optimizers, schedules and metrics.

They follow from data that is elsewhere: what the installed library registers, ``tests/conformance/record.yaml``,
``tests/ops/standard_forms.yaml`` and ``tests/models/step_record.yaml``.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from ortrain import _ortrain
from ortrain.onnxblock.loss import LOSSES
from ortrain.onnxblock.optim.declarations import declared
from ortrain.trainer import schedules as known_schedules

from tests.conformance import record
from tests.models import step_record
from tests.ops import standard_forms

_GRADIENTS = """# Gradients

Every operator is in one of four groups. Tests compare each gradient with central finite differences in double precision, to a
relative error of 1e-5: with the attributes and shapes of the operator's test, in every opset that changes the operator, and with
tensors of one element and of none. Where the gradient consists of operators that have gradients, they compare the second
derivative as well.

## Trained through

{yes}

`QuantizeLinear`, `DequantizeLinear` and `com.microsoft.FakeQuant` pass the gradient through the rounding unchanged, which is not
a derivative.

## Decomposed

Replaced by other operators before a gradient is built; the gradients of those apply.

{decomposed}

## Gradients stop

Their derivative is zero or undefined. No error occurs; values that only such operators depend on get no gradient.

{stop}

## Without a gradient

Creating artifacts fails if these would be trained through. The error names the nodes. A gradient that contains one of them, such
as `GRUGrad`, has no derivative.

{no}
"""


_STANDARD_FORMS = """# Standard forms

How the gradients of ONNX's operators are written in [a step for any runtime](../step.md), with operators of ONNX alone. Tests
write every kind of case of the gradient tests this way, opset 17 or later, compare ortrain's result with that of its own
operators to a relative error of 1e-9 in double precision, and run it on stock onnxruntime's CPU provider where that has the
operator.

Of {all} operators, {yes} have a standard form for every case, {part} for some, and {no} have none. Of operators that are not
listed, gradients stop there, or they are [decomposed](gradients.md#decomposed) first, or their gradients are tested in whole
models: control flow, sequences and operators of `ai.onnx.ml`, whose gradients consist of listed ones.

{table}

## Fused and quantized operators of onnxruntime

The same for a model with operators of `com.microsoft`, which onnxruntime's optimizers write: of {fused} that were tried,
{refused_fused} {have} none, and a step of a model with one of these is rejected. The operators that are listed replace the
operator itself too.

{fused_table}

## Exported models

Twenty steps with each of {models} models that PyTorch's exporters wrote, and that `tests` has with their data: as a step model
on stock onnxruntime's CPU provider, and in ortrain, with half of the learning rate that the model's test records. At the full
rate, the losses of some models rise, and rounding grows with them, to 2.4e-5 at most. The last column is the largest relative
difference of a loss, rounded up; tests allow 1e-5. Every step model passes `onnx.checker` with full check. Of these models,
{refused}. Networks whose Dropout draws masks run as step models on both sides, since a training session draws other masks.

{steps}
"""


_ERROR = """The last column is the largest error that the tests found: relative to expected values of magnitude above 1, absolute
below. `make oracle-errors` measures it again."""

# What the table says of the optimizer that has another oracle.
_RECORDED_RUNS = "compared with recorded runs of onnxruntime-training"

_OPTIMIZERS = """# Optimizers

Each is a class of `ortrain.onnxblock.optim`, a member of `OptimType`, and a name for the trainer and
`ortrain artifacts --optimizer`. Tests compare 50 steps of each with PyTorch, or with the formula of the authors where PyTorch
does not have it, and resume from a checkpoint to the bit.

`w` is a weight, `g` its gradient, `lr` the learning rate, `t` the step from 1, ε `epsilon`, β₁ `beta1`, `decay` `weight_decay`.
`AdamW`, `TorchAdamW` and `SGD` without settings are operators of onnxruntime. Optimizer models of all others are for ortrain.
Classes take `betas` and `eps` in place of beta1, beta2 and epsilon, or of alpha and beta.

{error}

{table}
"""


_SCHEDULES = """# Learning rate schedules

Each is a name for `RegisterLRScheduler` and the methods after it in every language, `ortrain.api.LRScheduler`,
`Trainer(schedule=...)` and `ortrain train --schedule`. Tests compare 40 rates of each with PyTorch's scheduler, or with that of
Hugging Face's transformers where PyTorch has none, and resume in between.

The learning rate is the initial rate times `f`, where `t` is the number of optimizer steps since `first_step` and the warmup,
divided by `interval` and rounded down, and `total` is `total_steps` without the warmup. In the warmup, `f` is that of `t` = 0
times a factor that rises from `warmup_factor` to 1.

{error}

{table}

All have these settings too:

{common}

`on_plateau` follows values that the program reports with `SchedulerReport`. The trainer reports the validation loss after each
epoch.
"""


_LOSSES = """# Losses

Each is a class of `ortrain.onnxblock.loss`, a member of `LossType`, and a name for `ortrain artifacts --loss`, the trainer and
[losses of several outputs](../artifacts.md#the-loss). Tests compare value and gradient of each with PyTorch.

{error}

{table}
"""


def _errors() -> dict[str, dict[str, str]]:
    """Return the errors that tests recorded, for each kind of declaration and each name, as the tables show them."""
    recorded = json.loads((Path(__file__).parent / "oracle_errors.json").read_text("utf-8"))

    def shown(errors: dict[str, float]) -> str:
        return ", ".join(f"{error:.0e} in {precision}" for precision, error in errors.items())

    return {kind: {name: shown(errors) for name, errors in names.items()} for kind, names in recorded.items()}


def losses() -> str:
    """Return the page of losses."""
    errors = _errors()["losses"]
    rows = ["| name | class | loss | settings, by default | error |", "| --- " * 5 + "|"]
    for name, loss in LOSSES.items():
        settings = ", ".join(
            f"`{parameter.name}` {parameter.default}"
            for parameter in inspect.signature(loss).parameters.values()
        )
        meaning = (inspect.getdoc(loss) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
        rows.append(
            f"| `{name}` | `{loss.__name__}` | {meaning.replace('|', chr(92) + '|')} | {settings} | {errors[name]} |"
        )
    return _LOSSES.format(error=_ERROR, table="\n".join(rows))


def optimizers() -> str:
    """Return the page of optimizers."""
    errors = _errors()["optimizers"]
    rows = ["| name | class | step | settings, by default | states | source | error |", "| --- " * 7 + "|"]
    for name, optimizer in declared().items():
        settings = ", ".join(f"`{s.name}` {s.default:g}" for s in optimizer.settings) or "none"
        states = ", ".join(f"`{s.name}`" + (f" with `{s.when}`" if s.when else "") for s in optimizer.states)
        formula = optimizer.formula.replace("|", "\\|")
        error = _RECORDED_RUNS if name == "adamw" else errors[name]
        rows.append(
            f"| `{name}` | `{optimizer.title}` | {formula} | {settings} | {states} | {optimizer.source} | {error} |"
        )
    return _OPTIMIZERS.format(error=_ERROR, table="\n".join(rows))


def schedules() -> str:
    """Return the page of learning rate schedules."""
    declared = known_schedules.declared()
    common = ("total_steps", "warmup_steps", "warmup_factor", "interval", "first_step")
    errors = _errors()["schedules"]
    rows = ["| name | factor | settings, by default | source | error |", "| --- " * 5 + "|"]
    for name, schedule in declared.items():
        needed = ["`total_steps`"] * schedule["needs_total"]
        settings = [
            f"`{s['name']}`" + ("" if s["default"] is None else f" {s['default']:g}") + f": {s['meaning']}"
            for s in schedule["settings"]
            if s["name"] not in common
        ]
        shown = "; ".join([*needed, *settings]) or "none"
        rows.append(f"| `{name}` | {schedule['formula']} | {shown} | {schedule['source']} | {errors[name]} |")
    first = next(iter(declared.values()))
    others = ["| setting | default | meaning |", "| --- " * 3 + "|"]
    others += [
        f"| `{s['name']}` | {s['default']:g} | {s['meaning']} |"
        for s in first["settings"]
        if s["name"] in common
    ]
    return _SCHEDULES.format(error=_ERROR, table="\n".join(rows), common="\n".join(others))


_METRICS = """# Metrics

Each is a name for `CreateMetric` and the class `Metric` of every language, `ortrain.trainer.CoreMetric`,
`Trainer(metrics=[...])` and `ortrain train --metric`. `top<k>`, such as `top5`, is `top_k` with this k. Tests compare each with
scikit-learn, in batches of different sizes, and resume in between.

An item is a row, or each position in a row, such as a token or a pixel. TP, FP and FN are the true positives, false positives and
false negatives of a class.

{table}

Scores are floats `[batch, classes, ...]` or `[batch, ..., classes]`, or a logit for each row. Targets are class indices, or a
probability for each class, of which the likeliest counts. Counts are exact up to 2^53; sums are in double. `auc` is exact up to
65,536 different scores of a class; beyond, scores are rounded so that there are no more.
"""


def metrics() -> str:
    """Return the page of metrics."""
    rows = ["| name | value | options, by default | source |", "| --- " * 4 + "|"]
    for metric in json.loads(_ortrain.list_metrics()):
        options = (
            "; ".join(f"`{o['name']}` {o['default']}: {o['meaning']}" for o in metric["options"]) or "none"
        )
        formula = metric["formula"].replace("|", "\\|")
        rows.append(f"| `{metric['name']}` | {formula} | {options} | {metric['source']} |")
    return _METRICS.format(table="\n".join(rows))


def standard_form_page() -> str:
    """Return the page of gradients with operators of ONNX alone."""
    forms, fused = standard_forms.split(standard_forms.read())
    answers = [form.answer for form in forms.values()]
    refused_fused = sum(form.answer == "no" for form in fused.values())
    steps = step_record.read()
    refused = sum(bool(entry.refused) for entry in steps.values())
    return _STANDARD_FORMS.format(
        yes=answers.count("yes"),
        part=answers.count("in part"),
        no=answers.count("no"),
        all=len(answers),
        table=standard_forms.table(forms),
        fused=len(fused),
        refused_fused=refused_fused,
        have="has" if refused_fused == 1 else "have",
        fused_table=standard_forms.table(fused),
        models=len(steps),
        refused=f"{refused} are rejected" if refused else "none is rejected",
        steps=step_record.table(steps),
    )


def gradients() -> str:
    """Return the page of gradients."""
    groups: dict[str, dict[str, list[str]]] = {}
    for line in _ortrain.list_operators().splitlines():
        domain, operator, gradient = line.split(",")
        groups.setdefault(gradient, {}).setdefault(domain or "ai.onnx", []).append(f"`{operator}`")
    tables = {
        gradient: "\n".join(
            ["| domain | operators |", "| --- | --- |"]
            + [f"| {domain} | {', '.join(operators)} |" for domain, operators in domains.items()]
        )
        for gradient, domains in groups.items()
    }
    return _GRADIENTS.format(**tables)


def write(folder: Path) -> None:
    """Write the pages into a folder."""
    pages = {
        "losses": losses(),
        "optimizers": optimizers(),
        "schedules": schedules(),
        "metrics": metrics(),
        "gradients": gradients(),
        "standard-forms": standard_form_page(),
        "conformance": record.render(record.read()),
    }
    for name, page in pages.items():
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
