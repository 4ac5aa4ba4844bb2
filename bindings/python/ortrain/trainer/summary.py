"""The summary of a model: its parameters, the trained part, and the memory that training takes."""

from __future__ import annotations

from collections.abc import Sequence

from ortrain._support.counts import counted
from ortrain.api import CheckpointState

_MOST_ROWS = 60


def summary_of(state: CheckpointState, inputs: Sequence[str], optimizer_states: int | None) -> str:
    """Return a table of the parameters, and the memory that training keeps in use.

    Parameters
    ----------
    state : CheckpointState
        The parameters.
    inputs : sequence of str
        The inputs of a step, with type and shape.
    optimizer_states : int, optional
        Arrays of the size of a parameter that the optimizer keeps for it. None if that is not known.
    """
    rows = [("parameter", "shape", "elements", "")]
    elements = trained = stored = of_trained = 0
    for name, parameter in state.parameters:
        values = parameter.data
        elements, stored = elements + values.size, stored + values.nbytes
        if parameter.requires_grad:
            trained, of_trained = trained + values.size, of_trained + values.nbytes
        shape = " x ".join(map(str, values.shape)) or "1"
        rows.append((name, shape, f"{values.size:,}", "trained" if parameter.requires_grad else "frozen"))
    left = len(rows) - 1 - _MOST_ROWS
    if left > 0:
        rows = [*rows[: _MOST_ROWS + 1], (f"... {left} more", "", "", "")]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = [
        "  ".join(
            text.rjust(width) if column == 2 else text.ljust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    kept = stored + of_trained * (1 + (optimizer_states or 0))
    moments = (
        ""
        if optimizer_states is None
        else f", state of the optimizer {_megabytes(of_trained * optimizer_states)}"
    )
    return "\n".join(
        [
            f"inputs: {'; '.join(inputs)}",
            *lines,
            f"{counted(elements, 'element', ',')}, {trained:,} trained, {elements - trained:,} frozen",
            f"{_megabytes(kept)} are kept while training: parameters {_megabytes(stored)}, gradients {_megabytes(of_trained)}"
            f"{moments}; intermediate values of a step need further memory",
        ]
    )


def _megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
