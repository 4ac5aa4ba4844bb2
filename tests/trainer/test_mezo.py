"""MeZO against its definition in double precision, and on data that it can learn."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.trainer import MeZO
from test_elastic_weights import linear, rows, values


def loss_of(flat, names, x, y):
    sizes = {"w": (5, 3), "b": (3,)}
    found, begin = {}, 0
    for name in names:
        count = int(np.prod(sizes[name]))
        found[name] = flat[begin : begin + count].reshape(sizes[name])
        begin += count
    scores = x @ found["w"] + found["b"]
    return (np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]).mean()


def test_steps_are_those_of_the_definition():
    (x, y), rate, epsilon = rows(), 0.05, 1e-2
    trainer = Trainer(linear(), "cross_entropy")
    names = [name for name, _ in trainer.state.parameters]
    start = dict(zip(("w", "b"), values(linear()), strict=True))
    flat = np.concatenate([start[name].ravel() for name in names])
    optimizer = MeZO(trainer.module, trainer.state, rate, epsilon=epsilon, seed=7)
    for step in range(5):
        z = np.random.Generator(np.random.Philox(key=[7, step])).standard_normal(18, np.float32)
        plus, minus = (loss_of(flat + sign * epsilon * z, names, x, y) for sign in (1, -1))
        assert optimizer.step(x, y) == pytest.approx((plus + minus) / 2, rel=1e-5)
        flat = flat - rate * (plus - minus) / (2 * epsilon) * z
    found = np.concatenate([parameter.data.ravel() for _, parameter in trainer.state.parameters])
    np.testing.assert_allclose(found, flat, rtol=1e-3, atol=1e-4)
    assert optimizer.steps == 5


def test_it_learns_and_goes_on_after_a_checkpoint(tmp_path):
    x = rows(count=60)[0]
    y = x[:, :3].argmax(axis=1)
    trainer = Trainer(linear(), "cross_entropy", metrics=["accuracy"], artifact_directory=tmp_path)
    before = trainer.evaluate((x, y))
    optimizer = MeZO(trainer.module, trainer.state, 0.05, seed=1)
    for _ in range(200):
        optimizer.step(x, y)
    trainer.save(tmp_path / "middle.ckpt")
    for _ in range(200):
        optimizer.step(x, y)
    after = trainer.evaluate((x, y))
    assert after["loss"] < 0.5 * before["loss"]
    again = Trainer(tmp_path, checkpoint=tmp_path / "middle.ckpt", metrics=["accuracy"])
    continued = MeZO(again.module, again.state, 0.05, seed=1)
    continued.steps = 200
    for _ in range(200):
        continued.step(x, y)
    assert again.evaluate((x, y)) == after


def test_what_does_not_fit_is_an_error():
    trainer = Trainer(linear(), "cross_entropy")
    with pytest.raises(ValueError, match="learning_rate: expected a number above 0, found 0"):
        MeZO(trainer.module, trainer.state, 0)
    with pytest.raises(ValueError, match="epsilon: expected a number above 0, found nan"):
        MeZO(trainer.module, trainer.state, 1, epsilon=float("nan"))
    x, y = rows()
    before = trainer.module.get_contiguous_parameters(True).numpy().copy()
    with pytest.raises(ValueError, match="MeZO: expected finite losses in step 0"):
        MeZO(trainer.module, trainer.state, 0.1).step(np.full_like(x, np.inf), y)
    np.testing.assert_allclose(trainer.module.get_contiguous_parameters(True).numpy(), before, atol=1e-6)
