"""An optimizer model runs in a forward session, over sequences, with the results of a training session's optimizer."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

Array = NDArray[Any]


def with_clip(path: pathlib.Path, target: pathlib.Path, largest: float) -> pathlib.Path:
    """The optimizer model with gradients that are clipped first."""
    model = onnx.load(path)
    for name in model.graph.node[0].input:
        if name == "gradients":
            model.graph.node[0].input[list(model.graph.node[0].input).index(name)] = "clipped"
    clip = helper.make_node(
        "InplaceClipGradNorm", ["gradients"], ["clipped"], domain="com.microsoft", max_norm=largest
    )
    model.graph.node.insert(0, clip)
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("clips", [False, True])
def test_an_optimizer_model_does_what_the_optimizer_does(
    recorded: Fixture, tmp_path: pathlib.Path, clips: bool
) -> None:
    folder = recorded.folder
    path = folder / "optimizer_model.onnx"
    if clips:
        path = with_clip(path, tmp_path / "optimizer_model.onnx", 0.05)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(path, module)
    session = ortrain.InferenceSession(path)
    inputs = {value.name: value.type for value in session.get_inputs()}
    assert inputs["params"] == "seq(tensor(float))"
    names = [name for name, parameter in state.parameters if parameter.requires_grad]

    ours = [state.parameters[name].data.copy() for name in names]
    moments = {name: [np.zeros_like(x) for x in ours] for name in inputs if name.endswith("_order_moments")}
    module.train()
    for step, (x, y) in enumerate(recorded.batches[:3], 1):
        module(x, y)
        gradients = [state.parameters[name].grad.copy() for name in names]
        feed = {"learning_rate": np.array([optimizer.get_learning_rate()], np.float32),
                "step": np.array([step]), "params": ours, "gradients": gradients, **moments}  # fmt: skip
        [updated] = session.run(None, {name: feed[name] for name in inputs})
        assert updated.tolist() == [True]
        optimizer.step()
        module.lazy_reset_grad()
        for name, value in zip(names, ours, strict=True):
            np.testing.assert_allclose(value, state.parameters[name].data, 1e-6, 1e-7, err_msg=name)
