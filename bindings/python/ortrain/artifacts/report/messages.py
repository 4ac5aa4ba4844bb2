"""Messages of the log about the choice of parameters, and about the trained weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import onnx

from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.graph.changes import WeightChange
from ortrain.artifacts.report.findings import Findings
from ortrain.artifacts.report.probabilities import scores_before

_log = logging.getLogger("ortrain.artifacts")


def log_choices(choices: Sequence[InitializerReport], chosen_here: bool) -> None:
    """Log what is trained; warn of what is not, unless the caller or an export by ortrain decided."""
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


def log_weights(changes: Sequence[WeightChange], findings: Findings) -> None:
    """Log what was undone of the export; warn of weights that are computed from parameters."""
    for change in changes:
        _log.info("%s", change)
    if findings.folded:
        names = [
            f"{weight.name} (from {', '.join(weight.sources)})" if weight.sources else weight.name
            for weight in findings.folded
        ]
        several = f"{len(names)} trained weights are not parameters of the network but computed from them"
        single = "1 trained weight is not a parameter of the network but computed from its parameters"
        _log.warning(
            "%s: %s%s. Training keeps this form; ortrain.torch.export(module, args, path) writes a model with the "
            "parameters themselves. %s: %s",
            single if len(names) == 1 else several, ", ".join(names[:8]), ", ..." if len(names) > 8 else "",
            findings.folded[0].name, findings.folded[0].reason,
        )  # fmt: skip


def log_probabilities(model: onnx.ModelProto, output: str, activation: str | None) -> None:
    """Warn of a loss that applies an activation to its own result."""
    scores = scores_before(model, output, activation) if activation else None
    if scores:
        _log.warning(
            "the loss is computed from probabilities, %r, the result of a %s, and applies another %s. The scores before "
            "it are %r: name them in loss_input_names, output of Trainer, or --output of the command",
            output, activation, activation, scores,
        )  # fmt: skip
