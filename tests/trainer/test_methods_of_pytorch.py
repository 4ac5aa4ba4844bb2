"""DP-SGD, elastic weight consolidation and MeZO against PyTorch and Opacus, recorded by tests/data/methods/record.py."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.onnxblock import loss, optim
from ortrain.trainer import MeZO, fisher, fit_privately

DATA = pathlib.Path(__file__).parents[1] / "data" / "methods"


@pytest.fixture(scope="module")
def recorded():
    with np.load(DATA / "recorded.npz") as file:
        return dict(file)


def trainer_of(chosen_loss="cross_entropy", **settings):
    return Trainer(DATA / "network.onnx", chosen_loss, optim.SGD(), feature_cache=False, **settings)


def check(trainer, recorded, method, largest_move):
    """Compare parameters, whose moves since the start are at most so large and must be exact to a thousandth of that."""
    found = {name: parameter.data for name, parameter in trainer.state.parameters}
    assert set(found) == {name.removeprefix("start/") for name in recorded if name.startswith("start/")}
    move = max(np.abs(recorded[f"{method}/{name}"] - recorded[f"start/{name}"]).max() for name in found)
    assert move > largest_move
    for name, value in found.items():
        np.testing.assert_allclose(value, recorded[f"{method}/{name}"], rtol=1e-5, atol=1e-3 * largest_move)


def test_private_steps_are_those_of_opacus(recorded):
    trainer, rows = trainer_of(learning_rate=0.4), [recorded[f"private/rows/{step}"] for step in range(8)]
    run = fit_privately(
        *(trainer, recorded["x"], recorded["y"]),
        epochs=2,
        batch_size=6,
        clip=1.6,
        noise_multiplier=0,
        random_bytes=np.random.default_rng(5).bytes,
    )
    assert 0 < recorded["private/clipped"] < 1
    assert run.clipped == pytest.approx(recorded["private/clipped"])
    assert (run.steps, run.rows) == (8, sum(map(len, rows)))
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
    trainer = trainer_of()
    in_order = [name.removeprefix("start/") for name in recorded if name.startswith("start/")]
    assert [name for name, _ in trainer.state.parameters] == in_order  # noise was drawn in this order
    optimizer = MeZO(trainer.module, trainer.state, 0.05, epsilon=1e-2, seed=7)
    losses = [optimizer.step(recorded["x"], recorded["y"]) for _ in range(8)]
    np.testing.assert_allclose(losses, recorded["mezo/losses"], rtol=1e-5)
    check(trainer, recorded, "mezo", 0.05)
