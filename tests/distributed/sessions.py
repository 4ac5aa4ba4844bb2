"""A TrainingSession and its batches, for one process and for several."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx
import ortrain
from legacy_models import WEIGHTS, batch, mlp, parameters, path_only
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass
class Settings:
    """How to train."""

    optimizer: str = "AdamOptimizer"
    steps: int = 20
    first: int = 0
    size: int = 16
    overflows: tuple[int, int] = (-1, -2)  # in this step, on this rank; -1: on all
    load: str = ""
    dropout: bool = False
    bound: bool = False  # run with bindings
    own_state: bool = False  # load that of the rank, in a file for each, and save it
    config: dict[str, str] = field(default_factory=dict)
    floats: dict[str, float] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)


def with_dropout(model: bytes) -> bytes:
    """Return the classifier with a Dropout before its second layer."""
    changed = onnx.load_from_string(model)
    nodes = changed.graph.node
    (product,) = (node for node in nodes if "W2" in node.input)
    dropout = helper.make_node("Dropout", [product.input[0], "ratio", "train"], ["dropped"])
    product.input[0] = "dropped"
    nodes.insert(list(nodes).index(product), dropout)
    constants = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}
    changed.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return changed.SerializeToString()


def session_of(settings: Settings) -> ortrain.TrainingSession:
    ortrain.set_seed(7)
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    for key, value in {"ortrain.communication_timeout": "30", **settings.config}.items():
        options.add_session_config_entry(key, value)
    members = {"floats": settings.floats, "enable_grad_norm_clip": False, **settings.members}
    model = with_dropout(mlp()) if settings.dropout else mlp()
    return ortrain.TrainingSession(model, parameters(settings.optimizer, WEIGHTS, **members), options)


def run_bound(
    session: ortrain.TrainingSession, names: list[str], feed: dict[str, Array], options: Any = None
) -> list[Any]:
    """Run with a binding, the loss in an array of this function and the rest where the session puts it."""
    binding, loss = session.io_binding(), np.zeros((), np.float32)
    for name, value in feed.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("loss", "cpu", 0, np.float32, [], loss.ctypes.data)
    for name in names[1:]:
        binding.bind_output(name)
    session.run_with_iobinding(binding, options)
    found = binding.copy_outputs_to_cpu()
    assert loss == found[0]
    assert loss > 0
    return found


def train(
    session: ortrain.TrainingSession, settings: Settings, rank: int = 0, ranks: int = 1
) -> dict[str, list[Any]]:
    """Train on this rank's part of each batch and return what the runs returned besides the loss."""
    accumulated = max(1, settings.members.get("gradient_accumulation_steps", 1))
    more = [
        name
        for name in ("global_gradient_norm", "all_gradients_finite")
        if name in [entry.name for entry in session.get_outputs()]
    ]
    record: dict[str, list[Any]] = {name: [] for name in ("loss", *more)}
    run = partial(run_bound, session) if settings.bound else session.run
    for step in range(settings.first, settings.first + settings.steps):
        for k in range(accumulated):
            data = batch(step * accumulated + k, settings.size)
            part = slice(rank * settings.size // ranks, (rank + 1) * settings.size // ranks)
            feed = {name: value[part] for name, value in data.items()}
            feed["Learning_Rate"] = np.array([0.01], np.float32)
            if session.loss_scale_input_name:
                overflows = tuple(settings.overflows) in ((step, rank), (step, -1))
                feed[session.loss_scale_input_name] = np.array([3e38 if overflows else 64.0], np.float32)
            if k + 1 < accumulated:
                loss, _ = run(["loss", "Group_Accumulated_Gradients"], feed, path_only())
            else:
                loss, *found = run(["loss", *more], feed)
                for name, value in zip(more, found, strict=True):
                    record[name].append(value.item())
            record["loss"].append(float(loss))
    return record
