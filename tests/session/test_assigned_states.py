"""Several adapters over one base take turns in one session, and a session refuses adapters of another base."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module
from ortrain.artifacts import LoRA
from recorded import Fixture
from training import Training


def adapters_in(folder: pathlib.Path, model: onnx.ModelProto, r: int = 2, seed: int = 0) -> pathlib.Path:
    artifacts.generate_artifacts(
        model,
        adapter=LoRA(r=r, targets="fc1", seed=seed),
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=folder,
    )
    return folder


def saved(training: Training, path: pathlib.Path) -> CheckpointState:
    CheckpointState.save_checkpoint(training.state, path, True)
    return CheckpointState.load_checkpoint(path)


def test_adapters_take_turns_and_go_on_where_they_were(tmp_path: pathlib.Path) -> None:
    model, batches = onnx.load(Fixture("mlp_adamw").path("model.onnx")), Fixture("mlp_adamw").batches
    alone = {}
    for seed in (0, 1):  # each for itself
        training = Training(adapters_in(tmp_path / str(seed), model, seed=seed))
        losses = [training.step(*batches[i % len(batches)]) for i in range(6)]
        alone[seed] = losses, training.parameters()

    session = Training(tmp_path / "0")
    states = {seed: CheckpointState.load_checkpoint(tmp_path / str(seed) / "checkpoint") for seed in (0, 1)}
    losses = {0: [], 1: []}
    for turn in range(3):
        for seed in (0, 1):
            session.state.assign(states[seed])
            losses[seed] += [session.step(*batches[i % len(batches)]) for i in range(2 * turn, 2 * turn + 2)]
            states[seed] = saved(session, tmp_path / f"{seed}.ckpt")
    for seed, (expected, parameters) in alone.items():
        assert losses[seed] == expected
        session.state.assign(states[seed])
        found = session.parameters()
        assert all(found[name].tobytes() == value.tobytes() for name, value in parameters.items())


def test_gradients_of_the_state_before_are_gone(tmp_path: pathlib.Path) -> None:
    model, batches = onnx.load(Fixture("mlp_adamw").path("model.onnx")), Fixture("mlp_adamw").batches
    training = Training(adapters_in(tmp_path, model))
    first = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    training.loss(*batches[0])
    expected = training.gradients()
    training.loss(*batches[1])  # added to those of the first batch
    training.state.assign(first)
    training.loss(*batches[0])
    found = training.gradients()
    assert all(np.array_equal(found[name], value) for name, value in expected.items())


def test_states_that_do_not_fit_are_refused_and_change_nothing(tmp_path: pathlib.Path) -> None:
    model = onnx.load(Fixture("mlp_adamw").path("model.onnx"))
    other = onnx.load(Fixture("mlp_adamw").path("model.onnx"))
    weight = numpy_helper.to_array(other.graph.initializer[0]) * np.float32(1.5)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, other.graph.initializer[0].name))
    training = Training(adapters_in(tmp_path / "a", model))
    before = training.parameters()
    wide = CheckpointState.load_checkpoint(adapters_in(tmp_path / "wide", model, r=3) / "checkpoint")
    with pytest.raises(
        ValueError,
        match=r'"fc1\.lora_A\.weight" should be trainable float\S*\[2, \d+\], found trainable float\S*\[3, ',
    ):
        training.state.assign(wide)
    another = CheckpointState.load_checkpoint(adapters_in(tmp_path / "b", other) / "checkpoint")
    with pytest.raises(
        ValueError, match=r"the parameters should be adapters of the base \w{32}, found \w{32}"
    ):
        training.state.assign(another)
    after = training.parameters()
    assert all(np.array_equal(after[name], value) for name, value in before.items())
    with pytest.raises(ValueError, match=r"should have the base of the training model, \w{32}, found"):
        Module(tmp_path / "a" / "training_model.onnx", another)
