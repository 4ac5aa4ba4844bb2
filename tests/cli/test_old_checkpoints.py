"""Checkpoints of onnxruntime-training 1.15, which are folders, go in and out with everything that they hold.

``tests/data/pbseq`` holds one that 1.15.1 wrote after 5 steps of AdamW, and the losses of the 5 steps that came after it.
"""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from languages import ROOT
from ortrain.api import CheckpointState, Module, Optimizer

RECORDED = ROOT / "tests/data/pbseq"


@pytest.fixture
def converted(run, tmp_path):
    said = run("convert", RECORDED / "trained", tmp_path / "trained.ckpt").out
    assert "4 parameters" in said
    return tmp_path / "trained.ckpt"


def test_a_run_of_1_15_goes_on(converted):
    state = CheckpointState.load_checkpoint(converted)
    assert {name: state.properties[name] for name in ("epoch", "best", "name")} == {
        "epoch": 5, "best": 0.25, "name": "digits"
    }  # fmt: skip
    assert not state.parameters["scale"].requires_grad
    module = Module(RECORDED / "training_model.onnx", state, RECORDED / "eval_model.onnx")
    optimizer = Optimizer(RECORDED / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.01)
    with np.load(RECORDED / "run.npz") as recorded:
        rows, classes, losses = (recorded[name] for name in ("X", "Y", "losses"))
    for step in range(5, 10):
        # Without the moments and the number of steps, the losses after the first of these would be others.
        assert float(module(rows[step], classes[step])) == pytest.approx(losses[step], rel=2e-6)
        optimizer.step()
        module.lazy_reset_grad()


def test_back_to_the_folder(converted, run, tmp_path):
    run("convert", converted, tmp_path / "back", "--folder")
    names = sorted(path.name for path in (RECORDED / "trained").iterdir())
    assert sorted(path.name for path in (tmp_path / "back").iterdir()) == names
    for name in names:
        before, after = ((folder / name).read_bytes() for folder in (RECORDED / "trained", tmp_path / "back"))
        if "properties" in name:  # 1.15 writes properties in the order of a hash table
            assert sorted(before) == sorted(after), name
        else:
            assert before == after, name


def test_the_parameters_alone(run, tmp_path):
    run("convert", RECORDED / "trained", tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as file:
        np.testing.assert_array_equal(file["scale"], np.full(8, 0.5, np.float32))
        assert file["fc1.weight"].shape == (6, 8)


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_damaged_folder_is_named(cut, run, tmp_path):
    shutil.copytree(RECORDED / "trained", tmp_path / "damaged")
    path = tmp_path / "damaged/paramtrain_tensors.pbseq"
    path.write_bytes(path.read_bytes()[:cut])
    assert f"{path}: expected " in run("convert", tmp_path / "damaged", tmp_path / "x.ckpt", status=1).err
    path.write_bytes(b"\x01\x05hello")
    assert "tensor 1 of 1" in run("convert", tmp_path / "damaged", tmp_path / "x.ckpt", status=1).err
    assert not (tmp_path / "x.ckpt").exists()
