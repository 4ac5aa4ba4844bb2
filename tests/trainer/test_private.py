"""DP-SGD against a loop over single rows in NumPy, and its noise and epsilon against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ortrain import Trainer
from ortrain.onnxblock import optim
from ortrain.trainer import fit_privately
from ortrain.trainer.private import _Source
from test_elastic_weights import gradients, linear, rows, values


def pseudo_random(seed):
    """Bytes that are the same in each run."""
    return np.random.default_rng(seed).bytes


def test_steps_are_those_of_a_loop_over_single_rows():
    (x, y), rate, clip, batch = rows(count=20), 0.5, 0.8, 5
    trainer = Trainer(linear(), "cross_entropy", optim.SGD(), learning_rate=rate)
    run = fit_privately(
        trainer,
        x,
        y,
        epochs=2,
        batch_size=batch,
        clip=clip,
        noise_multiplier=0,
        random_bytes=pseudo_random(5),
    )
    w, b = values(linear())
    bits, counts = np.random.default_rng(5), []
    for _ in range(8):
        chosen = (np.frombuffer(bits.bytes(8 * 20), np.uint64) / 2**64) < batch / 20
        of_w, of_b = gradients(w, b, x[chosen], y[chosen])
        norms = np.sqrt(np.square(of_w).sum(axis=(1, 2)) + np.square(of_b).sum(axis=1))
        factors = np.minimum(1, clip / norms)
        w = w - rate * (of_w * factors[:, None, None]).sum(axis=0) / batch
        b = b - rate * (of_b * factors[:, None]).sum(axis=0) / batch
        counts += (norms > clip).tolist()
    assert 0 < sum(counts) < len(counts)
    assert (run.steps, run.rows, run.epsilon) == (8, len(counts), math.inf)
    assert run.clipped == pytest.approx(np.mean(counts))
    for expected, name in ((w, "w"), (b, "b")):
        np.testing.assert_allclose(dict(trainer.state.parameters)[name].data, expected, rtol=1e-5, atol=1e-6)


def test_noise_has_the_deviation_that_is_asked_for():
    pytest.importorskip("dp_accounting")
    (x, y), moves = rows(), []
    for seed in range(60):
        trainer = Trainer(linear(), "cross_entropy", optim.SGD(), learning_rate=1.0)
        settings = {"batch_size": 12, "clip": 1e-6, "noise_multiplier": 5e5, "delta": 1e-3}
        fit_privately(trainer, x, y, random_bytes=pseudo_random(seed), **settings)
        for start, name in zip(values(linear()), ("w", "b"), strict=True):
            moves += (dict(trainer.state.parameters)[name].data - start).ravel().tolist()
    # 5e5 * 1e-6 / 12, of 60 * 18 numbers whose deviation is known within 2.2 percent.
    assert np.std(moves) == pytest.approx(0.5 / 12, rel=0.1)
    assert abs(np.mean(moves)) < 4 * 0.5 / 12 / math.sqrt(len(moves))


def test_noise_is_normal():
    found = np.sort(_Source(pseudo_random(1)).normal(20_000))
    expected = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in found])
    distance = np.abs(expected - np.arange(1, len(found) + 1) / len(found)).max()
    assert distance < 1.63 / math.sqrt(len(found))  # Kolmogorov and Smirnov, 1 percent
    assert (_Source(lambda count: b"\xff" * count).normal(3) < 20).all()  # the longest is finite


def test_epsilon_is_that_of_the_gaussian_mechanism():
    pytest.importorskip("dp_accounting")
    trainer = Trainer(linear(), "cross_entropy", optim.SGD())
    run = fit_privately(trainer, *rows(), batch_size=12, noise_multiplier=4.0, delta=1e-5)
    # One step on all rows. The exact delta of an epsilon: Balle and Wang, 2018, theorem 8. Rényi's bound is a little larger.
    normal = lambda value: 0.5 * math.erfc(-value / math.sqrt(2))  # noqa: E731

    def delta(epsilon):
        return normal(1 / 8 - 4 * epsilon) - math.exp(epsilon) * normal(-1 / 8 - 4 * epsilon)

    assert run.steps == 1
    assert delta(run.epsilon) < 1e-5 < delta(0.8 * run.epsilon)


def test_settings_out_of_range_are_errors():
    trainer = Trainer(linear(), "cross_entropy")
    for name, value in {"clip": 0, "noise_multiplier": -1, "delta": 1, "epochs": 0, "batch_size": 0}.items():
        with pytest.raises(ValueError, match=f"^{name}: expected"):
            fit_privately(trainer, *rows(), **{"batch_size": 4, name: value})
    with pytest.raises(ValueError, match="batch_size: expected at most the 12 rows of the data, found 13"):
        fit_privately(trainer, *rows(), batch_size=13)
