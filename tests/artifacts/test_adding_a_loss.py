"""A loss is added in the places that the guide says: on a copy of the package, which then trains with it."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import ortrain

FILE = '''
"""Cauchy's loss."""

from ortrain.onnxblock.loss._loss import Loss
from ortrain.onnxblock.loss._values import Value


class CauchyLoss(Loss):
    """The negative logarithm of Cauchy's density: ``log(1 + d²)`` for a difference d."""

    def losses(self, prediction: Value, target: Value) -> Value:
        """Return the losses of all elements."""
        distance = prediction - target
        return (distance * distance + 1.0).apply("Log")
'''

USE = """
import numpy as np
import ortrain
from ortrain.artifacts import LossType
from ortrain.trainer import Trainer

assert ortrain.__file__.startswith({copy!r})
assert LossType.CauchyLoss.value == "cauchy"
rng = np.random.default_rng(0)
x, y = rng.normal(size=(40, 3)).astype(np.float32), rng.normal(size=(40, 1)).astype(np.float32)
trainer = Trainer(ortrain.models.mlp(3, 1, (4,), seed=0), "cauchy", learning_rate=0.05)
before = trainer.evaluate((x, y))["loss"]
expected = np.log1p(np.square(trainer.predict(x) - y)).mean()
np.testing.assert_allclose(before, expected, rtol=1e-5)
trainer.fit((x, y), epochs=5, verbose=False)
assert trainer.evaluate((x, y))["loss"] < before
"""


def test_a_loss_of_one_file_has_a_name_and_trains(tmp_path: pathlib.Path) -> None:
    copy = tmp_path / "ortrain"
    shutil.copytree(pathlib.Path(ortrain.__file__).parent, copy)
    (copy / "onnxblock/loss/cauchy.py").write_text(FILE, "utf-8")
    for place, before, line in [
        (
            "onnxblock/loss/__init__.py",
            "from ortrain.onnxblock.loss.elastic import",
            "from ortrain.onnxblock.loss.cauchy import CauchyLoss\n",
        ),
        ("onnxblock/loss/__init__.py", '    "focal": FocalLoss,', '    "cauchy": CauchyLoss,\n'),
        ("cli/artifacts_command.py", '    "focal",', '    "cauchy",\n'),
    ]:
        text = (copy / place).read_text("utf-8")
        assert text.count(before) == 1
        (copy / place).write_text(text.replace(before, line + before), "utf-8")
    program = USE.format(copy=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        [sys.executable, "-m", "ortrain", "artifacts", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "cauchy" in shown.stdout
