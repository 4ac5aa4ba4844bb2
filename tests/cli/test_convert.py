"""Parameters go out of a checkpoint and come back unchanged."""

from __future__ import annotations

import numpy as np
import onnx
import ortrain
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


def test_models_go_to_ort_format_and_back(run, tmp_path):
    fixture = Fixture("mlp_adamw")
    model = fixture.folder / "model.onnx"
    there, back = tmp_path / "model.ort", tmp_path / "back.onnx"
    assert "ORT format" in run("convert", model, there).out
    assert there.read_bytes()[4:8] == b"ORTM"
    assert run("convert", there, back, "--json").json["format"] == "ONNX"
    sessions = [ortrain.InferenceSession(path) for path in (model, there, back)]
    given = {
        i.name: np.ones([d if isinstance(d, int) else 2 for d in i.shape], np.float32)
        for i in sessions[0].get_inputs()
    }
    expected, *others = [session.run(None, given)[0] for session in sessions]
    for found in others:
        np.testing.assert_array_equal(found, expected)
    onnxruntime = pytest.importorskip("onnxruntime")
    stock = onnxruntime.InferenceSession(there, providers=["CPUExecutionProvider"]).run(None, given)[0]
    np.testing.assert_allclose(stock, expected, rtol=1e-4, atol=1e-5)


def test_weights_in_other_files_become_part_of_the_model(run, tmp_path):
    folder = tmp_path / "given"
    folder.mkdir()
    model = onnx.load(Fixture("mlp_adamw").folder / "model.onnx")
    onnx.save(
        model, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (folder / "weights.bin").exists()
    run("convert", folder / "model.onnx", tmp_path / "model.ort")
    run("convert", folder / "model.onnx", tmp_path / "model.onnx")
    for name in ("model.ort", "model.onnx"):  # away from the weights
        ortrain.InferenceSession(tmp_path / name)


def test_models_that_are_none_are_named(run, tmp_path):
    model = Fixture("mlp_adamw").folder / "model.onnx"
    assert "there is no model" in run("convert", tmp_path / "ghost.onnx", tmp_path / "x.ort", status=1).err
    assert "expected a model" in run("convert", model, tmp_path / "x.npz", status=1).err
    assert "--like" in run("convert", model, tmp_path / "x.ort", "--like", BEFORE, status=1).err
    (tmp_path / "bad.onnx").write_text("x")
    said = run("convert", tmp_path / "bad.onnx", tmp_path / "x.ort", status=1).err
    assert "bad.onnx' is not an ONNX model" in said
    assert not (tmp_path / "x.ort").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.onnx"]
