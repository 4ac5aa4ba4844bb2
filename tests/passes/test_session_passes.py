"""Every pass of a session can be switched off by name, and training gives the same results without it."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import pytest
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

PIPELINE = pathlib.Path(__file__).parents[2] / "core" / "src" / "passes" / "pipeline.cpp"


def session_passes() -> list[str]:
    """Return the names of the passes of a session, as the pipeline lists them."""
    listed = PIPELINE.read_text().split("kSessionPasses[] = {")[1].split("};")[0]
    return re.findall(r'^ *\{"(\w+)"', listed, re.MULTILINE)


def losses(recorded: Fixture, disabled: str | None) -> list[float]:
    options = SessionOptions()
    if disabled:
        options.add_session_config_entry(f"ortrain.disable_pass.{disabled}", "1")
    state = CheckpointState.load_checkpoint(recorded.path("checkpoint"))
    module = Module(recorded.path("training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(recorded.path("optimizer_model.onnx"), module)
    module.train()
    found = []
    for x, y in recorded.batches:
        found.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return found


def test_the_passes_are_found() -> None:
    assert {"common_subexpression_elimination", "fuse_product", "save_activation_derivatives"} <= set(
        session_passes()
    )


@pytest.mark.parametrize("disabled", session_passes())
def test_training_goes_the_same_way_without(recorded: Fixture, disabled: str) -> None:
    np.testing.assert_allclose(losses(recorded, disabled), losses(recorded, None), rtol=2e-5)
