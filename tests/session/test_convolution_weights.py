"""Convolution weights are stored in another order while they are trained, which is not visible from outside."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import numpy as np
import onnx
import onnxruntime
import ortrain
import pytest
import training
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, artifacts
from ortrain.api import CheckpointState
from training import Array

OFF = {"ortrain.disable_pass.keep_convolution_weights": "1"}
BF16 = {"ortrain.mixed_precision": "bf16"}


def network() -> tuple[onnx.ModelProto, list[str]]:
    """Return a model with convolutions of many kinds, and the names of its weights.

    Among these are weights that two convolutions share, and weights that another operator reads too.
    """
    rng = np.random.default_rng(11)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        scale = max(1, int(np.prod(shape[1:]))) ** -0.5
        weights.append(numpy_helper.from_array(rng.normal(0, scale, shape).astype(np.float32), name))
        return name

    nodes: list[onnx.NodeProto] = []

    def conv(x: str, w: str, y: str, **attributes: Any) -> str:
        nodes.append(
            helper.make_node("Conv", [x, w, weight(f"{y}.bias", bias[w])], [f"{y}.sum"], **attributes)
        )
        nodes.append(helper.make_node("Relu", [f"{y}.sum"], [y]))
        return y

    bias = {"first": 32, "square": 32, "grouped": 64, "depthwise": 64, "point": 48, "odd": 10, "back": 32}
    same = {"pads": [1, 1, 1, 1]}
    last = conv("x", weight("first", 32, 3, 3, 3), "a", **same)
    last = conv(last, weight("square", 32, 32, 3, 3), "b", **same)
    last = conv(last, "square", "c", **same)
    last = conv(last, weight("grouped", 64, 16, 3, 3), "d", group=2, strides=[2, 2], **same)
    last = conv(last, weight("depthwise", 64, 1, 3, 3), "e", group=64, **same)
    last = conv(last, weight("point", 48, 64, 1, 1), "f")
    last = conv(last, weight("odd", 10, 48, 3, 3), "g", dilations=[2, 2], pads=[2, 2, 2, 2])
    last = conv(last, weight("back", 32, 10, 3, 3), "h", **same)
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node(
            "Gemm", ["flat", weight("dense", 10, 32), weight("dense.bias", 10)], ["z"], transB=1
        ),
        # The weights of a convolution, read by an operator that depends on their order.
        helper.make_node("ReduceMean", ["point"], ["row"], axes=[1, 2, 3], keepdims=0),
        helper.make_node("ReduceMean", ["row"], ["mean"], axes=[0], keepdims=0),
        helper.make_node("Add", ["z", "mean"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    return model, [w.name for w in weights]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("convolutions")
    model, names = network()
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=made,
    )
    return made


def batch(seed: int, size: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, 3, 12, 12), dtype=np.float32), rng.integers(0, 10, size)


class Training(training.Training):
    """Inputs are given as the seed and the size of a batch."""

    def loss(self, seed: int, size: int) -> float:
        return super().loss(*batch(seed, size))

    def evaluate(self, seed: int = 99, size: int = 7) -> float:
        return super().evaluate(seed, size)


def story(session: Training, folder: pathlib.Path, config: dict[str, str]) -> list[Any]:
    """Use everything that a session offers, and return all results."""
    seen: list[Any] = [session.evaluate(), session.parameters()]
    for seed, size in enumerate([8, 5, 8]):
        seen.append(session.step(seed, size))
    seen += [session.evaluate(), session.parameters()]

    # Gradients of several steps, read in between.
    session.module.train()
    for seed, size in [(10, 8), (11, 5), (12, 8)]:
        seen += [session.loss(seed, size), session.gradients()]
    session.optimizer.step()
    session.module.lazy_reset_grad()

    # Values from outside, by name and by buffer.
    for name in ("square", "depthwise", "point"):
        changed = session.state.parameters[name].data[::-1] * np.float32(0.5)
        session.state.parameters[name] = np.ascontiguousarray(changed)
        np.testing.assert_array_equal(session.state.parameters[name].data, changed)
    seen += [session.evaluate(), session.step(20, 8)]
    for trainable_only in (True, False):
        values = session.module.get_contiguous_parameters(trainable_only).numpy()
        seen.append(values.copy())
        moved = values * np.float32(0.9)
        session.module.copy_buffer_to_parameters(moved, trainable_only)
        again = session.module.get_contiguous_parameters(trainable_only).numpy()
        np.testing.assert_array_equal(again, moved)
    seen += [session.parameters(), session.step(21, 5)]

    # Files.
    session.module.eval()
    session.module.export_model_for_inferencing(folder / "out.onnx", ["y"])
    CheckpointState.save_checkpoint(session.state, folder / "saved", include_optimizer_state=True)
    seen += [(folder / "out.onnx").read_bytes(), (folder / "saved").read_bytes()]
    resumed = Training(folder, config, checkpoint="saved")
    for seed in (30, 31):
        expected = session.step(seed, 8)
        assert resumed.step(seed, 8) == expected
        seen.append(expected)
    for name, value in session.parameters().items():
        np.testing.assert_array_equal(resumed.parameters()[name], value, err_msg=name)
    return [*seen, session.evaluate()]


def assert_same(found: Any, expected: Any, what: str = "") -> None:
    if isinstance(expected, dict):
        for name, value in expected.items():
            assert_same(found[name], value, f"{what} {name}")
    else:
        np.testing.assert_array_equal(found, expected, err_msg=what)


@pytest.mark.parametrize("more", [{}, BF16], ids=["float", "bf16"])
def test_everything_is_as_with_row_major_weights(folder: pathlib.Path, more: dict[str, str]) -> None:
    kept = story(Training(folder, more), folder, more)
    exported = (folder / "out.onnx").read_bytes()
    plain = story(Training(folder, {**OFF, **more}), folder, {**OFF, **more})
    for i, (found, expected) in enumerate(zip(kept, plain, strict=True)):
        assert_same(found, expected, f"thing {i}")

    # The exported model has the values that the eval model computes with.
    training = Training(folder, more)
    training.module.export_model_for_inferencing(folder / "start.onnx", ["y"])
    x, labels = batch(99, 7)
    for path, loss in [(folder / "start.onnx", training.evaluate())]:
        session = onnxruntime.InferenceSession(path)
        logits = session.run(["y"], {"x": x})[0].astype(np.float64)
        rates = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]
        np.testing.assert_allclose(loss, rates.mean(), rtol=2e-2 if more else 1e-5)
    assert exported != (folder / "start.onnx").read_bytes()


def test_less_memory_changes_no_bit(folder: pathlib.Path) -> None:
    def losses(config: dict[str, str]) -> list[float]:
        training = Training(folder, config)
        return [training.step(seed, 16) for seed in range(3)]

    with pytest.raises(OrtrainError, match=r"too few.*at least \d+ bytes") as refused:
        losses({"ortrain.memory_budget": "1"})
    named = re.search(r"at least (\d+) bytes with recomputation, (\d+) without", str(refused.value))
    assert named
    least, whole = map(int, named.groups())
    assert losses({"ortrain.memory_budget": f"{(least + whole) // 2048}K"}) == losses(OFF)


def test_sessions_over_one_state_take_it_over_in_any_order(folder: pathlib.Path) -> None:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    alone = Training(folder, OFF)
    found = []
    one: Training | None = None
    for first, config in ((0, {}), (2, {}), (4, OFF), (6, {})):  # the third prefers another order
        one = None  # a state belongs to one session at a time
        one = Training(folder, config, state)
        found += [one.step(first, 8), one.step(first + 1, 5), one.evaluate()]
    expected = []
    for first in (0, 2, 4, 6):
        expected += [alone.step(first, 8), alone.step(first + 1, 5), alone.evaluate()]
    assert found == expected
    assert one is not None
    assert_same(one.parameters(), alone.parameters())


def test_a_checkpoint_without_values_takes_them_from_a_buffer(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    model, names = network()
    artifacts.generate_artifacts(
        model,
        requires_grad=names,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
        nominal_checkpoint=True,
    )
    whole = Training(tmp_path, OFF)
    nominal = Training(tmp_path, {}, checkpoint="nominal_checkpoint")
    values = whole.module.get_contiguous_parameters(trainable_only=False)
    nominal.module.copy_buffer_to_parameters(values, trainable_only=False)
    assert_same(nominal.parameters(), whole.parameters())
    assert [nominal.step(i, 8) for i in range(3)] == [whole.step(i, 8) for i in range(3)]
    assert_same(nominal.parameters(), whole.parameters())


def test_an_invalid_convolution_is_still_named_when_it_runs(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    for name in ("checkpoint", "eval_model.onnx", "optimizer_model.onnx"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    model = onnx.load(folder / "training_model.onnx")
    broken = next(n for n in model.graph.node if n.op_type == "Conv" and "grouped" in n.input)
    next(a for a in broken.attribute if a.name == "group").i = 3
    onnx.save(model, tmp_path / "training_model.onnx")
    with pytest.raises(ortrain.OrtrainError, match=r"Conv.*group"):
        Training(tmp_path, {}).step(0, 8)
