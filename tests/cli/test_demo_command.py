"""The demo that comes with the package: its data are the digits, it learns them, and its results can be used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import ortrain
from sklearn.datasets import load_digits

DATA = Path(ortrain.__file__).parent / "demo_data"


def test_the_digits_are_those_of_scikit_learn():
    pixels, labels = load_digits(return_X_y=True)
    with np.load(DATA / "digits.npz") as file:
        np.testing.assert_array_equal(file["pixels"].reshape(-1, 64), pixels)
        np.testing.assert_array_equal(file["labels"], labels)
    assert "Creative Commons Attribution 4.0" in (DATA / "NOTICE.txt").read_text()


def test_it_learns_and_says_where_everything_is(run, tmp_path):
    ran = run("demo", "--out", tmp_path / "d", "--epochs", "4")
    assert f"trained model      {tmp_path / 'd/digits.onnx'}" in ran.out
    assert ran.err.count("epoch ") == 4
    with np.load(tmp_path / "d/test.npz") as file:
        images, labels = file["image"], file["labels"]
    with np.load(tmp_path / "d/train.npz") as file:
        assert len(file["labels"]) + len(labels) == 1797
    scores = onnxruntime.InferenceSession(tmp_path / "d/digits.onnx").run(None, {"image": images})[0]
    right = float((scores.argmax(axis=1) == labels).mean())
    assert right > 0.95
    assert f"{right:.1%} in epoch " in ran.out
    assert (tmp_path / "d/curves.png").read_bytes().startswith(b"\x89PNG")
    found = run(
        "evaluate",
        tmp_path / "d/artifacts",
        "--data",
        tmp_path / "d/test.npz",
        "--metric",
        "accuracy",
        "--json",
    )
    assert abs(found.json["accuracy"] - right) < 1e-9


def test_it_needs_numpy_and_click_alone(tmp_path):
    script = (
        "import sys\n"
        "for name in ('onnx', 'onnxruntime', 'sklearn', 'matplotlib', 'PIL', 'tqdm'): sys.modules[name] = None\n"
        "from ortrain.cli import main\n"
        f"sys.exit(main(['demo', '--epochs', '1', '--out', {str(tmp_path)!r}]))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "none: pip install 'ortrain[plot]'" in ran.stdout
    assert (tmp_path / "digits.onnx").stat().st_size > 40_000
