"""DP-SGD, elastic weight consolidation and MeZO against PyTorch and Opacus, recorded by tests/data/methods/record.py."""

from __future__ import annotations

import math
import pathlib

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.onnxblock import loss
from ortrain.trainer import MeZO, Privacy, fisher

DATA = pathlib.Path(__file__).parents[1] / "data" / "methods"


@pytest.fixture(scope="module")
def recorded():
    with np.load(DATA / "recorded.npz") as file:
        return dict(file)


def trainer_of(chosen_loss="cross_entropy", optimizer="sgd", **settings):
    return Trainer(DATA / "network.onnx", chosen_loss, optimizer, feature_cache=False, **settings)


def check(trainer, recorded, method, largest_move):
    """Compare parameters, whose moves since the start are at most so large and must be exact to a thousandth of that."""
    found = {name: parameter.data for name, parameter in trainer.state.parameters}
    assert set(found) == {name.removeprefix("start/") for name in recorded if name.startswith("start/")}
    move = max(np.abs(recorded[f"{method}/{name}"] - recorded[f"start/{name}"]).max() for name in found)
    assert move > largest_move
    for name, value in found.items():
        np.testing.assert_allclose(value, recorded[f"{method}/{name}"], rtol=1e-5, atol=1e-3 * largest_move)


def test_private_steps_are_those_of_opacus(recorded):
    privacy = Privacy(noise_multiplier=0, clip=1.6, random_bytes=np.random.default_rng(5).bytes)
    trainer, drawn = trainer_of(learning_rate=0.4, privacy=privacy), []
    compute = trainer._gradients.compute
    trainer._gradients.compute = lambda module, batch, read: (
        drawn.append(batch[0]) or compute(module, batch, read)
    )
    history = trainer.fit(recorded["x"], recorded["y"], 2, batch_size=6, verbose=False)
    assert len(drawn) == trainer.step == 8
    for step, batch in enumerate(drawn):
        np.testing.assert_array_equal(batch, recorded["x"][recorded[f"private/rows/{step}"]])
    counts = [sum(len(batch) for batch in epoch) for epoch in (drawn[:4], drawn[4:])]
    assert 0 < recorded["private/clipped"] < 1
    assert np.average(history["clipped"], weights=counts) == pytest.approx(recorded["private/clipped"])
    assert history["epsilon"] == [math.inf, math.inf]
    check(trainer, recorded, "private", 0.1)


def test_elastic_steps_are_those_of_pytorch(recorded):
    x, y = recorded["x"], recorded["y"]
    importance = fisher(trainer_of(), (x, y))
    for name, value in importance.items():
        expected = recorded[f"fisher/{name}"]
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6 * expected.max())
    block = loss.ElasticWeights(loss.CrossEntropyLoss(), importance, 20.0)
    trainer = trainer_of(block, learning_rate=0.05)
    history = trainer.fit((x, (y + 1) % 4), 8, batch_size=len(x), shuffle=False, verbose=False)
    np.testing.assert_allclose(history["loss"], recorded["elastic/losses"], rtol=1e-5)
    check(trainer, recorded, "elastic", 0.01)


def test_steps_without_gradients_are_those_of_pytorch(recorded):
    trainer = trainer_of(optimizer=MeZO(epsilon=1e-2), learning_rate=0.05, seed=7)
    in_order = [name.removeprefix("start/") for name in recorded if name.startswith("start/")]
    assert [name for name, _ in trainer.state.parameters] == in_order  # noise was drawn in this order
    rows = (recorded["x"], recorded["y"])
    history = trainer.fit(rows, 8, batch_size=len(rows[0]), shuffle=False, verbose=False)
    np.testing.assert_allclose(history["loss"], recorded["mezo/losses"], rtol=1e-5)
    check(trainer, recorded, "mezo", 0.05)
