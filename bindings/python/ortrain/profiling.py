"""Where the time of a training step goes: the ``ortrain profile`` command."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortrain import _ortrain
from ortrain._support.counts import sized
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.api.generated.session_options import SessionOptions


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    name : str
        The operator, followed by the node's name if rows are nodes.
    calls : float
        Kernels per step.
    milliseconds : float
        Their time per step.
    """

    name: str
    calls: float
    milliseconds: float


def make_inputs(module: Module, batch: int, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Create inputs for a step: the given ones, random floats or zeros for the others.

    Parameters
    ----------
    module : Module
        The module whose train step they are for.
    batch : int
        Size of every dimension that the model does not fix.
    given : mapping of str to array
        Inputs by name.

    Raises
    ------
    ValueError
        When a given name is not an input.
    """
    names = module.input_names()
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ValueError(
            f"the training model has no input {', '.join(unknown)}; its inputs are {', '.join(names)}"
        )
    rng = np.random.default_rng(0)
    inputs: list[NDArray[Any]] = []
    for i, name in enumerate(names):
        element, dims, _ = _ortrain.get_model_input_type_info(module._handle, True, i)
        if name in given:
            inputs.append(np.asarray(given[name], order="C"))
            continue
        shape = [batch if dim < 0 else dim for dim in dims]
        dtype = _ortrain.numpy_type(element)
        # Zero is a valid label and token in every model; other integers may be invalid.
        values = rng.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
        inputs.append(values.astype(dtype))
    return inputs


def record(
    folder: Path,
    steps: int,
    batch: int,
    given: Mapping[str, NDArray[Any]],
    threads: int = 0,
    config: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run some training steps and record them.

    Parameters
    ----------
    folder : Path
        Artifacts as `generate_artifacts` writes them. Without an optimizer model no optimizer steps are taken.
    steps : int
        Number of recorded steps; three more run before them.
    batch, given
        As in `make_inputs`.
    threads : int, default 0
        Threads of a step; 0 for one per processor.
    config : mapping of str to str, optional
        Configuration entries of the session.

    Returns
    -------
    dict
        The recording in Chrome's trace event format.

    Raises
    ------
    FileNotFoundError
        When there are no artifacts in the folder.
    OrtrainError
        When the step fails.
    """
    options = SessionOptions()
    options.intra_op_num_threads = threads
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options)
    optimizer_model = folder / "optimizer_model.onnx"
    optimizer = Optimizer(optimizer_model, module) if optimizer_model.exists() else None
    inputs = make_inputs(module, batch, given)
    for step in range(-3, steps):
        if step == 0:
            module.start_profiling()
        module(*inputs)
        if optimizer is not None:
            optimizer.step()
        module.lazy_reset_grad()
    trace: dict[str, Any] = json.loads(module.end_profiling())
    return trace


def steps_in(trace: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what a recording says of each train step; of each eval step if training takes these alone, as with MeZO."""
    events = [event for event in trace["traceEvents"] if event["cat"] == "run"]
    found = [event["args"] for event in events if event["name"] == "train step"]
    return found or [event["args"] for event in events if event["name"] == "eval step"]


def summarize(trace: Mapping[str, Any], by_node: bool = False) -> tuple[list[Row], float]:
    """Summarize a recording.

    Parameters
    ----------
    trace : dict
        As `record` returns it.
    by_node : bool, default False
        Whether rows are nodes instead of operators.

    Returns
    -------
    rows : list of Row
        The most expensive first.
    milliseconds : float
        Time of a step from its first kernel to its last, train step and optimizer step together.
    """
    runs = [event for event in trace["traceEvents"] if event["cat"] == "run"]
    steps = max(1, len(steps_in(trace)))
    time_of: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in trace["traceEvents"]:
        if event["cat"] == "run":
            continue
        node = event["args"]["node"]
        name = f"{event['name']}  {node}" if by_node and node else event["name"]
        time_of[name] = time_of.get(name, 0.0) + event["dur"]
        calls[name] = calls.get(name, 0) + 1
    rows = [Row(name, calls[name] / steps, time / 1e3 / steps) for name, time in time_of.items()]
    rows.sort(key=lambda row: row.milliseconds, reverse=True)
    return rows, sum(event["dur"] for event in runs) / 1e3 / steps


def memory_line(trace: Mapping[str, Any]) -> str:
    """Describe how much memory the intermediate values of a recorded train step take and need."""
    steps = steps_in(trace)
    arena, live = (max((step[key] for step in steps), default=0) for key in ("arena_bytes", "live_bytes"))
    return f"intermediate values: {sized(arena)}, of which {sized(live)} are in use at the same time"


def table(rows: list[Row], total: float, limit: int = 0) -> str:
    """Format rows as a text table, with their share of the kernels' time; `limit` 0 shows all of them."""
    shown = rows[:limit] if limit else rows
    busy = sum(row.milliseconds for row in rows)
    width = max([len(row.name) for row in shown] + [len("operator")])
    lines = [f"{'operator':<{width}}  {'calls':>7}  {'ms':>9}  {'share':>6}"]
    lines += [
        f"{row.name:<{width}}  {row.calls:>7.4g}  {row.milliseconds:>9.3f}  "
        f"{row.milliseconds / busy if busy else 0:>6.1%}"
        for row in shown
    ]
    if len(shown) < len(rows):
        rest = rows[len(shown) :]
        lines.append(
            f"{f'{len(rest)} more':<{width}}  {sum(r.calls for r in rest):>7.4g}  "
            f"{sum(r.milliseconds for r in rest):>9.3f}  "
            f"{sum(r.milliseconds for r in rest) / busy if busy else 0:>6.1%}"
        )
    lines.append(f"{'all kernels':<{width}}  {sum(r.calls for r in rows):>7.4g}  {busy:>9.3f}")
    lines.append(f"{'step':<{width}}  {'':>7}  {total:>9.3f}")
    return "\n".join(lines)
