"""The networks to start from are valid, learn, and give what stock onnxruntime gives."""

from __future__ import annotations

import inspect
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from ortrain import Trainer, models

RNG = np.random.default_rng(5)
LABELS = np.arange(96) % 3
IMAGES = RNG.normal(0, 0.5, (96, 3, 12, 10)).astype(np.float32)
IMAGES[np.arange(96), LABELS] += 1  # the channel that is bright
TIMES = RNG.normal(0, 0.5, (96, 7, 4)).astype(np.float32)
TIMES[np.arange(96), :, LABELS] += 1
TOKENS = RNG.integers(3, 20, (96, 6))
TOKENS[np.arange(96), RNG.integers(0, 6, 96)] = LABELS

CASES = {
    "mlp": (models.mlp, (4, 3), TIMES.mean(axis=1)),
    "cnn": (models.cnn, ((3, 12, 10), 3), IMAGES),
    "resnet": (models.resnet, ((3, 12, 10), 3, (8, 16), 1), IMAGES),
    "gru": (models.gru, (4, 3, 16), TIMES),
    "transformer": (models.transformer, (20, 3, 6, 16, 2, 1), TOKENS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_network_learns(name, tmp_path):
    make, arguments, rows = CASES[name]
    model = make(*arguments)
    onnx.checker.check_model(model, full_check=True)
    assert make(*arguments).SerializeToString() == model.SerializeToString()
    assert make(*arguments, seed=1).SerializeToString() != model.SerializeToString()
    trainer = Trainer(model, loss="cross_entropy", learning_rate=1e-2, metrics=["accuracy"])
    before = trainer.evaluate(rows, LABELS)
    assert (
        before["loss"] < 3
    )  # not far from log(3): the initial weights neither blow values up nor make them vanish
    trainer.fit(rows, LABELS, epochs=12, verbose=False)
    assert trainer.evaluate(rows, LABELS)["accuracy"] > 0.9
    trainer.export(tmp_path / "trained.onnx")
    (scores,) = onnxruntime.InferenceSession(tmp_path / "trained.onnx").run(None, {"x": rows})
    np.testing.assert_allclose(trainer.predict(rows), scores, rtol=1e-3, atol=1e-4)


def test_each_network_is_short():
    for make, _, _ in CASES.values():
        assert len(inspect.getsource(make).splitlines()) <= 60


def test_a_language_model_sees_no_later_token():
    model = models.gpt(20, 9, 16, 2, 1)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    ids, mask = TOKENS, np.ones_like(TOKENS)
    (scores,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
    assert scores.shape == (96, 6, 20)
    changed, shorter = ids.copy(), mask.copy()
    changed[:, 4:], shorter[:, 4:] = 0, 0
    (other,) = session.run(None, {"input_ids": changed, "attention_mask": shorter})
    np.testing.assert_allclose(other[:, :4], scores[:, :4], rtol=1e-4, atol=1e-5)
    assert np.abs(other[:, 4:] - scores[:, 4:]).max() > 1e-3


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="expected a multiple of 4 heads, found 10"):
        models.transformer(5, 2, 3, width=10)
    with pytest.raises(ValueError, match="expected a multiple of 4 heads, found 10"):
        models.gpt(5, 3, width=10)


def test_the_networks_are_there_without_importing_their_module():
    code = "import sys, ortrain; assert 'onnx' not in sys.modules; ortrain.models.mlp(4, 2); ortrain.onnxblock.loss.MSELoss"
    subprocess.run([sys.executable, "-c", code], check=True)
