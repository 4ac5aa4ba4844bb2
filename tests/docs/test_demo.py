"""The demo writes the files that it names, gives the same bits twice, and ends with status 1 if something is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

DEMO = Path(__file__).resolve().parents[2] / "examples/digits"


@pytest.fixture(scope="module")
def demo():
    """The module train.py, which finds the modules beside it as when it is run."""
    sys.path.insert(0, str(DEMO))
    import train

    yield train
    sys.path.remove(str(DEMO))
    for name in ("train", "model", "data", "plots"):
        sys.modules.pop(name, None)


@pytest.mark.thorough
def test_two_runs_of_one_seed_end_in_the_same_bits(demo, tmp_path, capsys):
    for folder in ("one", "two"):
        assert demo.main(["--epochs", "2", "--seed", "5", "--out", str(tmp_path / folder)]) == 0
    for name in ("final.ckpt", "halfway.ckpt", "digits.onnx"):
        one = (tmp_path / "one" / name).read_bytes()
        assert one == (tmp_path / "two" / name).read_bytes(), name
        assert len(one) > 100_000, name
    for name in ("curves.png", "misread.png"):
        assert (tmp_path / "one" / name).read_bytes().startswith(b"\x89PNG"), name
    printed = capsys.readouterr().out
    assert "19 parameters bit-identical" in printed
    assert "FAILED" not in printed


def test_another_seed_gives_another_model(demo, tmp_path):
    for seed in ("1", "2"):
        demo.make_artifacts(tmp_path / seed, int(seed))
    assert (tmp_path / "1/checkpoint").read_bytes() != (tmp_path / "2/checkpoint").read_bytes()


@pytest.mark.thorough
def test_too_few_digits_read_is_a_failure(demo, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "LOWEST_ACCURACY", 1.01)
    assert demo.main(["--epochs", "2", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "accuracy: expected at least 101%, found: 9" in captured.err
    assert "FAILED" in captured.out


def test_a_resumed_run_that_differs_in_one_number_is_a_failure(demo, tmp_path):
    demo.make_artifacts(tmp_path, seed=1)
    first, resumed = (demo.Training(tmp_path, tmp_path / "checkpoint", 2, 42, 1) for _ in range(2))
    assert demo.check_resumed(first, resumed).passed
    bias = resumed.state.parameters["hidden.bias"].data
    bias[3] = np.nextafter(bias[3], np.float32(1))
    resumed.state.parameters["hidden.bias"] = bias
    check = demo.check_resumed(first, resumed)
    assert not check.passed
    assert check.found == "differs in hidden.bias"


def test_an_exported_model_with_other_logits_is_a_failure(demo, tmp_path):
    _, test = demo.data.load()
    demo.make_artifacts(tmp_path, seed=1)
    training = demo.Training(tmp_path, tmp_path / "checkpoint", 2, 42, 1)
    _, logits = training.evaluate(test)
    training.module.export_model_for_inferencing(tmp_path / "digits.onnx", ["logits"])
    assert demo.check_exported(tmp_path / "digits.onnx", test, logits)[0].passed
    assert not demo.check_exported(tmp_path / "digits.onnx", test, logits + 2e-4)[0].passed


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--epochs", "1"], "2 or more"), (["--seed", "-1"], "0 or more")]
)
def test_arguments_that_make_no_sense_are_refused(demo, arguments, message, capsys):
    with pytest.raises(SystemExit):
        demo.main(arguments)
    assert message in capsys.readouterr().err
