"""Models whose layers are divided, their sessions and batches, for one process and for several."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import ortrain
from legacy_models import WEIGHTS, Transformer, batch, mlp, parameters, path_only, serialized, tensor
from onnx import helper, numpy_helper
from sessions import with_dropout

Array = np.ndarray[Any, Any]
TESTS = pathlib.Path(__file__).parents[1]
EXPORTS = {
    "encoder": TESTS / "data" / "fixtures" / "encoder" / "model.onnx",
    "gpt2": TESTS / "models" / "data" / "gpt2" / "dynamo_20.onnx",
    "llama": TESTS / "models" / "data" / "llama" / "torchscript_17.onnx",
    "gpt_neox": TESTS / "data" / "exports" / "hf_gpt_neox__dyn20d" / "model.onnx",
}


@dataclass
class Layers:
    """What to train, and how."""

    model: str = "mlp"
    steps: int = 20
    first: int = 0
    size: int = 8
    optimizer: str = "AdamOptimizer"
    load: str = ""
    evaluates: bool = True  # after training
    parts: bool = False  # of a batch, for ranks that should have the same
    lost: bool = False  # rank 1 leaves after two steps
    unlike: bool = False  # rank 1 has the first two layers the other way round
    floats: dict[str, float] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)


def with_square_loss(model: onnx.ModelProto) -> bytes:
    """Return a model whose only output is the mean square of its first one, the loss."""
    output = model.graph.output[0].name
    model.graph.node.append(helper.make_node("Mul", [output, output], ["squares"]))
    model.graph.node.append(helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, []))
    return model.SerializeToString()


def dropped_before() -> bytes:
    """Return the classifier with a Dropout of its inputs."""
    model = onnx.load_from_string(mlp())
    model.graph.node.insert(0, helper.make_node("Dropout", ["x", "ratio", "train"], ["dropped"]))
    model.graph.node[1].input[0] = "dropped"
    constants = {"ratio": np.array(0.5, np.float32), "train": np.array(True)}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return model.SerializeToString()


def shared_layers(*layers: str) -> bytes:
    """Return a network whose layers have the weights named after them, so that layers may share some."""
    rng = np.random.default_rng(3)
    weights, nodes, value = {}, [], "x"
    for k, layer in enumerate(layers):
        for name in (f"{layer}.in", f"{layer}.out"):
            weights[name] = (rng.normal(size=(4, 12) if name.endswith("in") else (12, 4)) * 0.4).astype(
                np.float32
            )
        nodes += [
            helper.make_node("MatMul", [value, f"{layer}.in"], [f"h{k}"]),
            helper.make_node("Relu", [f"h{k}"], [f"r{k}"]),
            helper.make_node("MatMul", [f"r{k}", f"{layer}.out"], [f"s{k}"]),
            helper.make_node("Add", [value, f"s{k}"], [f"x{k}"]),
        ]
        value = f"x{k}"
    nodes += [
        helper.make_node("Mul", [value, value], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ]
    return serialized(nodes, [tensor("x", ["n", 4])], [tensor("loss", [])], weights)


def in_another_order(model: bytes) -> bytes:
    """Return a model of two layers side by side with the second one first."""
    changed = onnx.load_from_string(model)
    nodes = list(changed.graph.node)
    del changed.graph.node[:]
    changed.graph.node.extend([*nodes[3:6], *nodes[:3], *nodes[6:]])
    return changed.SerializeToString()


def side_by_side() -> bytes:
    """Return a network whose two layers read the same."""
    model = onnx.load_from_string(shared_layers("a", "b"))
    model.graph.node[4].input[0] = "x"  # of the second layer
    (first,) = (node for node in model.graph.node if node.output[0] == "x0")
    model.graph.node.remove(first)
    model.graph.node[-3].input[0] = "s0"
    return model.SerializeToString()


def exported(name: str) -> tuple[bytes, tuple[str, ...], Callable[[int, int], dict[str, Array]]]:
    model = onnx.load(EXPORTS[name])
    floats = [t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    kept = [t.name for t in floats if 0 < len(t.dims) < 3]  # others are constants
    others = {}
    for entry in model.graph.input:
        dims = entry.type.tensor_type.shape.dim
        dims[1].dim_value = 12  # with which what depends on it, such as masks, is of known size
        others[entry.name] = [d.dim_value for d in dims[1:]]

    def feed(step: int, size: int) -> dict[str, Array]:
        rng = np.random.default_rng(step)
        return {
            name: np.ones([size, *rest], np.int64) if "mask" in name else rng.integers(0, 2, [size, *rest])
            for name, rest in others.items()
        }

    return with_square_loss(model), tuple(sorted(kept)), feed


def described(name: str) -> tuple[bytes, tuple[str, ...], Callable[[int, int], dict[str, Array]]]:
    """Return a model, the names of its weights, and its batches."""
    small = {"mlp": mlp, "dropped inside": lambda: with_dropout(mlp()), "dropped before": dropped_before}
    if name in small:
        return small[name](), WEIGHTS, lambda step, size: batch(step, size)
    if name.startswith("layers "):
        layers = name.split()[1:]
        names = tuple(sorted({f"{layer}.{side}" for layer in layers for side in ("in", "out")}))
        return shared_layers(*layers), names, lambda step, size: {"x": batch(step, size)["x"]}
    if name == "side by side":
        return (
            side_by_side(),
            ("a.in", "a.out", "b.in", "b.out"),
            lambda step, size: {"x": batch(step, size)["x"]},
        )
    if name == "transformer":
        model = Transformer(2, width=16, heads=4, tokens=6)
        return (
            model.model(),
            tuple(model.weights),
            lambda step, size: {"x": model.feed(size, step)["x"]},
        )
    return exported(name)


def session_of(settings: Layers) -> ortrain.TrainingSession:
    """Create the session of this process."""
    ortrain.set_seed(7)
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("ortrain.communication_timeout", "30")
    model, names, _ = described(settings.model)
    if settings.unlike and settings.members.get("world_rank") == 1:
        model = in_another_order(model)
    members = {"enable_grad_norm_clip": False, "floats": settings.floats, **settings.members}
    return ortrain.TrainingSession(model, parameters(settings.optimizer, names, **members), options)


def train(
    session: ortrain.TrainingSession, settings: Layers, part: int = 0, parts: int = 1
) -> dict[str, list[Any]]:
    """Train on a part of each batch and return what the runs returned."""
    feed_of = described(settings.model)[2]
    accumulated = max(1, settings.members.get("gradient_accumulation_steps", 1))
    known = [entry.name for entry in session.get_outputs()]
    more = [name for name in ("global_gradient_norm", "all_gradients_finite") if name in known]
    record: dict[str, list[Any]] = {name: [] for name in ("loss", "evaluated", *more)}
    for step in range(settings.first, settings.first + settings.steps):
        for k in range(accumulated):
            whole = feed_of(step * accumulated + k, settings.size)
            own = slice(part * settings.size // parts, (part + 1) * settings.size // parts)
            feed = {name: value[own] for name, value in whole.items()}
            feed["Learning_Rate"] = np.array([0.01], np.float32)
            if session.loss_scale_input_name:
                feed[session.loss_scale_input_name] = np.array([64.0], np.float32)
            if k + 1 < accumulated:
                loss, _ = session.run(["loss", "Group_Accumulated_Gradients"], feed, path_only())
            else:
                loss, *found = session.run(["loss", *more], feed)
                for name, value in zip(more, found, strict=True):
                    record[name].append(value.item())
            record["loss"].append(float(loss))
    if settings.evaluates:
        record["evaluated"].append(float(session.run(["loss"], feed, path_only())[0]))
    return record
