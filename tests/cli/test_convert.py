"""Parameters go out of a checkpoint and come back unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from ortrain.api import CheckpointState
from recorded import Fixture

AFTER, BEFORE = (Fixture("resnet_bn").folder / name for name in ("checkpoint_after", "checkpoint"))


def parameters(path):
    return {name: parameter.data for name, parameter in CheckpointState.load_checkpoint(path).parameters}


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_there_and_back(ending, run, tmp_path):
    if ending == "safetensors":
        package = pytest.importorskip("safetensors.numpy")
    path = tmp_path / f"weights.{ending}"
    run("convert", AFTER, path)
    outside = dict(np.load(path)) if ending == "npz" else package.load_file(path)
    expected = parameters(AFTER)
    assert outside.keys() == expected.keys()
    for name, array in outside.items():
        np.testing.assert_array_equal(array, expected[name])
    assert run("convert", path, tmp_path / "back.ckpt", "--like", BEFORE, "--json").json[
        "parameters"
    ] == list(outside)
    run("diff", tmp_path / "back.ckpt", AFTER)


def test_what_does_not_fit_is_named(run, tmp_path):
    np.savez(tmp_path / "w.npz", strange=np.ones(3, np.float32))
    assert "--like" in run("convert", tmp_path / "w.npz", tmp_path / "x.ckpt", status=1).err
    ran = run("convert", tmp_path / "w.npz", tmp_path / "x.ckpt", "--like", BEFORE, status=1)
    assert "has no parameter strange" in ran.err
    (tmp_path / "bad.npz").write_text("x")
    assert "expected an NPZ file" in run("convert", tmp_path / "bad.npz", tmp_path / "y.npz", status=1).err
    assert not (tmp_path / "x.ckpt").exists()
