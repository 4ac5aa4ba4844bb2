"""Clipping and averaging in a step model: on stock onnxruntime, the steps are those of a training session."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from ortrain import step
from ortrain.onnxblock import optim
from test_step_optimizers import BATCHES, generate, start

GROUPS = [optim.ParamGroup("biases", ["bias"], lr_factor=0.5)]
#: Limits that the gradients of the network exceed in some steps, or always.
CLIPPINGS = {
    "value": optim.ClipGradValue(0.02),
    "adaptive": optim.ClipAdaptive(0.01),
    "group": optim.ClipGroupNorm(0.1),
    "all": [optim.ClipGradValue(0.05), optim.ClipAdaptive(0.05), optim.ClipGradNorm(0.2)],
}


@pytest.mark.parametrize("kind", CLIPPINGS)
def test_gradients_are_clipped_as_in_a_training_session(kind: str, tmp_path: pathlib.Path) -> None:
    path = generate(tmp_path, "sgd", param_groups=GROUPS, clip_grad=CLIPPINGS[kind])
    here, there = start(tmp_path, rate=0.5), step.Session(path, learning_rate=0.5)
    expected = [here.step(*batch) for batch in BATCHES]
    np.testing.assert_allclose([float(there(*batch)) for batch in BATCHES], expected, 1e-5)
    plain = generate(tmp_path, "sgd", param_groups=GROUPS)
    unclipped = step.Session(plain, learning_rate=0.5)
    assert [float(unclipped(*batch)) for batch in BATCHES][-1] != pytest.approx(expected[-1], rel=1e-3)


@pytest.mark.parametrize("warmup", [False, True])
def test_the_average_of_the_weights_moves_to_onnxruntime_and_back(
    warmup: bool, tmp_path: pathlib.Path
) -> None:
    path = generate(tmp_path, "adamw", ema=optim.WeightAverage(0.8, warmup))
    stayed, here = start(tmp_path), start(tmp_path)
    for batch in BATCHES:
        stayed.step(*batch)
    for batch in BATCHES[:6]:
        here.step(*batch)
    here.state.save_checkpoint(here.state, tmp_path / "first", include_optimizer_state=True)
    there = step.Session(path, checkpoint=tmp_path / "first", learning_rate=0.01)
    for batch in BATCHES[6:13]:
        there(*batch)
    there.save_checkpoint(tmp_path / "second")
    back = start(tmp_path, tmp_path / "second")
    for batch in BATCHES[13:]:
        back.step(*batch)
    average = stayed.evaluate(*BATCHES[0])
    assert back.evaluate(*BATCHES[0]) == pytest.approx(average, rel=1e-6)
    stayed.optimizer.use_average_weights(False)
    assert stayed.evaluate(*BATCHES[0]) != pytest.approx(average, rel=1e-4)
