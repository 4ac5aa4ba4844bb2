"""The result of ``generate_artifacts``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ortrain.artifacts.choice.fates import Fate, InitializerReport
from ortrain.artifacts.graph import dynamic_batch
from ortrain.artifacts.graph.adapters import Adapters
from ortrain.artifacts.graph.changes import ChangeKind, WeightChange
from ortrain.artifacts.graph.head import NewHead
from ortrain.artifacts.report.findings import SharedWeight
from ortrain.artifacts.report.folded import FoldedWeight

_MANY, _SHOWN = 12, 3
"""More initializers than `_MANY` that are left out for one reason are shortened to `_SHOWN` lines of the table."""


@dataclass(frozen=True)
class ArtifactReport:
    """The files that :func:`ortrain.artifacts.generate_artifacts` wrote, and which weights are trained.

    ``print(report)`` shows a table of the floating-point initializers. Of many that are left out for the same reason, it shows
    the first ones and the number of the others.

    Attributes
    ----------
    initializers : tuple of InitializerReport
        Every floating-point initializer in the order of the model, with ``name``, ``shape``, ``dtype``,
        ``fate`` (trained, frozen or left out) and ``reason``.
    input_gradients : tuple of str
        The outputs of the training model that are gradients of inputs.
    training_model, eval_model, checkpoint : pathlib.Path
        The files that a training session needs.
    optimizer_model, nominal_checkpoint : pathlib.Path or None
        The files that are written on request.
    ort_models : tuple of pathlib.Path
        The models in ORT format, if they were requested.
    weights : pathlib.Path or None
        The file with constants of the models, if they are stored apart.
    fixed_batch : tuple of str and int, or None
        The first input and the number of rows that every step takes, if the model was exported with a fixed batch size.
    changes : tuple of WeightChange
        Changes of an exporter to the weights that were undone, with ``kind``, ``initializer`` (of the given model),
        ``parameters`` (that replace it) and ``reason``.
    shared : tuple of SharedWeight
        The trained initializers that several nodes read, with ``name`` and ``nodes``.
    folded : tuple of FoldedWeight
        The trained initializers that an exporter computed from parameters, with ``name``, ``sources`` and ``reason``.
        Training them is not training the parameters.
    absent : tuple of str
        Parameters of the network that the model does not have, although it has others of the same module: unused, or
        merged by the exporter with something equal.
    head : NewHead or None
        The new classifier, if there is one, with ``layer``, ``reason``, ``weight``, ``bias``, ``scores``.
    adapters : Adapters or None
        The adapters, if there are any, with ``layers``, ``skipped``, ``count`` and ``base``.
    """

    initializers: tuple[InitializerReport, ...]
    input_gradients: tuple[str, ...]
    training_model: Path
    eval_model: Path
    checkpoint: Path
    optimizer_model: Path | None = None
    nominal_checkpoint: Path | None = None
    ort_models: tuple[Path, ...] = ()
    weights: Path | None = None
    fixed_batch: tuple[str, int] | None = None
    changes: tuple[WeightChange, ...] = ()
    shared: tuple[SharedWeight, ...] = ()
    folded: tuple[FoldedWeight, ...] = ()
    absent: tuple[str, ...] = ()
    head: NewHead | None = None
    adapters: Adapters | None = None

    @property
    def files(self) -> list[Path]:
        """The paths of all files written."""
        written = (
            self.training_model, self.eval_model, self.optimizer_model, self.checkpoint, self.nominal_checkpoint,
            *self.ort_models, self.weights,
        )  # fmt: skip
        return [path for path in written if path is not None]

    @property
    def trained(self) -> list[str]:
        """The names of the parameters that training changes."""
        return self._named(Fate.TRAINED)

    @property
    def frozen(self) -> list[str]:
        """The names of the floating-point parameters that training does not change."""
        return self._named(Fate.FROZEN)

    @property
    def left_out(self) -> list[str]:
        """The names of the floating-point initializers that stay in the models as constants."""
        return self._named(Fate.LEFT_OUT)

    def _named(self, fate: Fate) -> list[str]:
        return [choice.name for choice in self.initializers if choice.fate is fate]

    def __repr__(self) -> str:
        return (
            f"<ArtifactReport: {len(self.trained)} trained, {len(self.frozen)} frozen, "
            f"{len(self.left_out)} left out, in {str(self.training_model.parent)!r}>"
        )

    def __str__(self) -> str:
        shown, others = _shortened(self.initializers)
        rows = [("initializer", "dtype", "shape", "fate", "reason")]
        rows += [
            (choice.name, choice.dtype, f"[{', '.join(map(str, choice.shape))}]", choice.fate.value, choice.reason)
            for choice in shown
        ]  # fmt: skip
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [
            "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[4]])
            for row in rows
        ]
        lines.insert(1, "  ".join("-" * width for width in (*widths, len("reason"))))
        lines += [f"... and {count} more left out: {reason}" for reason, count in others.items()]
        lines += self._lines_about_weights()
        lines += [str(edit) for edit in (self.head, self.adapters) if edit is not None]
        lines += [f"output  {name}" for name in self.input_gradients]
        lines += [f"wrote   {path}" for path in self.files]
        if self.fixed_batch is not None:
            lines.append(f"note    {dynamic_batch.note(self.fixed_batch)}")
        return "\n".join(lines)

    def _lines_about_weights(self) -> list[str]:
        restored = [c.parameters[0] for c in self.changes if c.kind is ChangeKind.RESTORED]
        lines = [str(change) for change in self.changes if change.kind is not ChangeKind.RESTORED]
        if restored:
            lines.append(
                f"restored    biases of zeros that the exporter left out: {len(restored)}, {_some(restored)}"
            )
        own = (
            [] if self.adapters is None else self.adapters.parameters
        )  # several nodes of an adapter read its parameters
        lines += [str(weight) for weight in self.shared if weight.name not in own]
        lines += [str(weight) for weight in self.folded]
        if self.absent:
            lines.append(
                f"absent      parameters of the network, unused or merged by the exporter: {_some(self.absent)}"
            )
        return lines


def _shortened(choices: Sequence[InitializerReport]) -> tuple[list[InitializerReport], dict[str, int]]:
    """Return the initializers that a table shows, and the number of the others by reason."""
    counts = Counter(choice.reason for choice in choices if choice.fate is Fate.LEFT_OUT)
    others = {reason: count - _SHOWN for reason, count in counts.items() if count > _MANY}
    shown, seen = [], Counter[str]()
    for choice in choices:
        if choice.fate is Fate.LEFT_OUT:
            seen[choice.reason] += 1
            if choice.reason in others and seen[choice.reason] > _SHOWN:
                continue
        shown.append(choice)
    return shown, others


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
