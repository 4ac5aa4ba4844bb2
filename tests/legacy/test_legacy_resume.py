"""Runs that fail change nothing, and a second session goes on from a saved state with the same bits, Dropout included."""

from __future__ import annotations

import pathlib
import threading
import time
from typing import Any

import numpy as np
import ortrain
import pytest
from legacy_models import Array, feed, parameters, path_only, rate, serialized, tensor
from onnx import helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer

MODES = {"training": 1, "frozen": 0}


def network(bn: str = "training", dropout: bool = True, width: int = 6, depth: int = 1) -> bytes:
    """Return layers with a batch normalization, a logarithm and a dropout, and a mean square as the loss."""
    rng = np.random.default_rng(3)
    values = {
        "scale": rng.normal(1, 0.1, width),
        "shift": rng.normal(size=width),
        "mean": rng.normal(size=width),
        "variance": rng.uniform(1, 2, width),
        "keep": np.array(0.5),
        **{f"W{i}": rng.normal(size=(width, width)) / np.sqrt(width) for i in range(depth)},
    }
    initializers: dict[str, Array] = {name: np.asarray(v, np.float32) for name, v in values.items()}
    initializers["yes"] = np.array(True)
    outputs = ["n", "new_mean", "new_variance"][: 3 if MODES[bn] else 1]
    nodes = [
        helper.make_node(
            "BatchNormalization",
            ["x", "scale", "shift", "mean", "variance"],
            outputs,
            training_mode=MODES[bn],
            momentum=0.75,
        ),
        helper.make_node("Log", ["given"], ["logarithm"]),
        helper.make_node("Mul", ["n", "logarithm"], ["h"]),
    ]
    last = "h"
    if dropout:
        nodes.append(helper.make_node("Dropout", ["h", "keep", "yes"], ["d"]))
        last = "d"
    for i in range(depth):
        nodes.append(helper.make_node("MatMul", [last, f"W{i}"], [f"m{i}"]))
        last = f"m{i}"
    nodes += [
        helper.make_node("Mul", [last, last], ["squares"]),
        helper.make_node("ReduceMean", ["squares"], ["loss"], keepdims=0),
    ]
    inputs = [tensor("x", ["n", width]), tensor("given", ["n", 1])]
    return serialized(nodes, inputs, [tensor("loss", [])], initializers)


NAMES = ("scale", "shift", "W0")


def batch(seed: int, width: int = 6, given: float = 2.0) -> dict[str, Array]:
    x = np.random.default_rng(seed).normal(size=(8, width)).astype(np.float32)
    return {"x": x, "given": np.full((8, 1), given, np.float32)}


def session(model: bytes, config: dict[str, str] | None = None, **members: Any) -> ortrain.TrainingSession:
    options = ortrain.SessionOptions()
    for key, value in (config or {}).items():
        options.add_session_config_entry(key, value)
    return ortrain.TrainingSession(model, parameters(**{"names": NAMES, **members}), options)


def assert_same(a: dict[str, Array], b: dict[str, Array]) -> None:
    assert set(a) == set(b)
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)


def test_dropout_goes_on_from_a_saved_state() -> None:
    ortrain.set_seed(41)
    one = session(network())
    for k in range(3):
        one.run(["loss"], feed(batch(k)))
    one.run(["loss"], feed(batch(9)), path_only())  # another set of nodes counts the same runs
    saved = one.get_state()
    np.testing.assert_array_equal(saved["Random_State"], [41, 4])
    expected = [one.run(["loss"], feed(batch(k)))[0] for k in range(3, 6)]
    assert (
        len({float(one.run(["loss"], feed(batch(1), 0.0))[0]) for _ in range(3)}) == 3
    )  # it drops at random

    ortrain.set_seed(7)  # another process has another seed
    other = session(network())
    other.load_state(saved, strict=True)
    assert [other.run(["loss"], feed(batch(k)))[0] for k in range(3, 6)] == expected
    assert "Random_State" not in session(network(dropout=False)).get_state()
    with pytest.raises(RuntimeError, match="Random_State"):
        other.load_state({"Random_State": np.arange(3)})


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_run_that_fails_changes_nothing(accumulated: int) -> None:
    s = session(network(), {"ortrain.check_finite": "1"}, gradient_accumulation_steps=accumulated)
    s.run(["loss"], feed(batch(0)))
    before = s.get_state()
    with pytest.raises(ortrain.OrtrainError, match="check_finite"):
        s.run(["loss"], feed(batch(1, given=-1.0)))  # after the statistics were updated
    assert_same(s.get_state(), before)
    twin = session(network(), gradient_accumulation_steps=accumulated)
    twin.load_state(before)
    for one in (s, twin):
        one.run(["loss"], feed(batch(2)))
    assert_same(s.get_state(), twin.get_state())


def test_an_update_that_has_begun_is_completed() -> None:
    """The first weight becomes infinite: what looks for such values must not stop the update of the others."""
    s = session(
        network(), {"ortrain.check_finite": "1"}, optimizer="SGDOptimizer", enable_grad_norm_clip=False
    )
    before = s.get_state()
    s.run(["loss"], {**batch(0), "Learning_Rate": rate(3e38)})
    after = s.get_state()
    assert not np.isfinite(after["W0"]).all()
    for name in NAMES:
        assert (after[name] != before[name]).any(), name


def test_a_run_that_is_terminated_updates_everything_or_nothing() -> None:
    depth, width = 6, 256
    names = ("scale", "shift", *(f"W{i}" for i in range(depth)))
    s = session(network(width=width, depth=depth), names=names, enable_grad_norm_clip=False)
    given = feed(batch(0, width))
    times = []
    for _ in range(4):
        began = time.monotonic()
        s.run(["loss"], given)
        times.append(time.monotonic() - began)
    before, stopped, done = s.get_state(), 0, 0
    rng = np.random.default_rng(0)
    for number in range(200):
        options = ortrain.RunOptions()
        given = feed(
            batch(1 + number, width)
        )  # of the same batch again and again, the mean would stop changing
        timer = threading.Timer(rng.uniform(0, 1.2 * min(times)), setattr, (options, "terminate", True))
        timer.start()
        try:
            s.run(["loss"], given, options)
        except ortrain.OrtrainError:
            stopped += 1
            assert_same(s.get_state(), before)
        else:
            done += 1
            after = s.get_state()
            for name in (*names, "mean", "Random_State"):
                assert (after[name] != before[name]).any(), name
            before = after
        timer.join()
        if stopped > 20 and done > 20:
            break
    assert stopped > 0


# ---- batch normalization with fixed statistics ----


def gradients_of_frozen(w: dict[str, Array], data: dict[str, Array]) -> dict[str, Array]:
    """Return the gradients of the network without dropout whose statistics are fixed."""
    v = {name: value.astype(np.float64) for name, value in w.items()}
    z = (data["x"] - v["mean"]) / np.sqrt(v["variance"] + 1e-5)
    log = np.log(data["given"].astype(np.float64))
    h = (z * v["scale"] + v["shift"]) * log
    y = h @ v["W0"]
    dy = 2 * y / y.size
    dh = dy @ v["W0"].T * log
    return {"scale": (dh * z).sum(0), "shift": dh.sum(0), "W0": h.T @ dy}


def initial() -> dict[str, Array]:
    import onnx

    model = onnx.load_from_string(network("frozen", dropout=False))
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def test_statistics_can_be_fixed_in_the_older_api() -> None:
    s = session(network("frozen", dropout=False), optimizer="SGDOptimizer", enable_grad_norm_clip=False)
    assert set(s.get_state()) == set(NAMES)  # no statistics
    w, g = initial(), gradients_of_frozen(initial(), batch(0))
    s.run(["loss"], feed(batch(0), 0.5))
    for name in NAMES:
        np.testing.assert_allclose(s.get_state()[name], w[name] - 0.5 * g[name], rtol=2e-5, atol=1e-6)


def test_statistics_can_be_fixed_in_the_on_device_api(tmp_path: pathlib.Path) -> None:
    import onnx

    model = onnx.load_from_string(network("frozen", dropout=False))
    artifacts.generate_artifacts(
        model, requires_grad=list(NAMES), frozen_params=["mean", "variance"],
        optimizer=artifacts.OptimType.SGD, artifact_directory=tmp_path,
    )  # fmt: skip
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.5)
    w, g = initial(), gradients_of_frozen(initial(), batch(0))
    module(*batch(0).values())
    optimizer.step()
    for name in NAMES:
        np.testing.assert_allclose(state.parameters[name].data, w[name] - 0.5 * g[name], rtol=2e-5, atol=1e-6)
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(state.parameters[name].data, w[name])
