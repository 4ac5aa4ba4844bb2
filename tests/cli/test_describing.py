"""The commands that describe and compare."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from ortrain.api import CheckpointState
from recorded import Fixture


def test_a_checkpoint_is_described(run):
    fixture = Fixture("mlp_adamw")
    found = run("inspect", fixture.folder / "checkpoint_after", "--json").json["checkpoint"]
    assert found["optimizer_steps"] == len(fixture.batches)
    norms = {row["name"]: row["norm"] for row in found["parameters"]}
    for name, expected in fixture.expected["parameters_after"].items():
        assert norms[name] == pytest.approx(expected["l2"], rel=1e-4)
    text = run("inspect", fixture.folder / "checkpoint_after").out
    assert all(name in text for name in norms)


def test_a_model_and_artifacts_are_described(artifacts, run, tmp_path):
    model = run("inspect", tmp_path / "model.onnx", "--json").json["model"]
    assert model["operators"] == {"Flatten": 1, "Gemm": 1}
    assert model["inputs"] == [{"name": "image", "dtype": "float", "shape": ["batch", 1, 4, 4]}]
    assert model["elements"] == 51
    found = run("inspect", artifacts, "--json").json
    assert found["checkpoint"]["trained_elements"] == 51
    assert "Gemm" in run("inspect", artifacts).out


def test_checkpoints_are_compared(artifacts, run, tmp_path):
    run("diff", artifacts, artifacts / "checkpoint")
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    values = state.parameters["w"].data.copy()
    values[2, 1] += 0.5
    state.parameters["w"] = values
    CheckpointState.save_checkpoint(state, tmp_path / "b.ckpt")
    found = run("diff", artifacts / "checkpoint", tmp_path / "b.ckpt", "--json", status=3).json
    rows = {row["name"]: row for row in found["parameters"]}
    assert rows["b"]["what"] == "same"
    assert rows["w"]["difference"] == pytest.approx(0.5)
    other = Fixture("mlp_adamw").folder / "checkpoint"
    assert "only in" in run("diff", artifacts, other, status=3).out


def test_what_trains_is_shown(artifacts, run, tmp_path):
    found = run("compat", tmp_path / "model.onnx", "--json").json
    assert found["trains"]
    assert found["trained"] == 2
    assert [(row["name"], row["runs"], row["trains"]) for row in found["operators"]] == [
        ("Flatten", True, "yes"), ("Gemm", True, "yes")
    ]  # fmt: skip
    model = onnx.load(tmp_path / "model.onnx")
    model.graph.node[1].op_type = "Unheard"
    model.graph.node[1].domain = "no.where"
    model.opset_import.append(onnx.helper.make_opsetid("no.where", 1))
    onnx.save(model, tmp_path / "odd.onnx")
    ran = run("compat", tmp_path / "odd.onnx", status=3)
    assert "no.where.Unheard" in ran.out
    assert "cannot be trained" in ran.out


def test_what_fused_operators_become_is_shown(run, tmp_path):
    make = onnx.helper
    value, stored = make.make_tensor_value_info, onnx.numpy_helper.from_array
    shapes = {"w": (4, 5), "b": (5,), "gamma": (5,), "beta": (5,)}
    graph = make.make_graph(
        [
            make.make_node("FusedGemm", ["x", "w", "b"], ["g"], domain="com.microsoft", activation="Relu"),
            make.make_node(
                "SkipLayerNormalization",
                ["g", "s", "gamma", "beta"],
                ["y"],
                name="skip",
                domain="com.microsoft",
            ),
        ],
        "fused",
        [value("x", onnx.TensorProto.FLOAT, ["n", 4]), value("s", onnx.TensorProto.FLOAT, ["n", 5])],
        [value("y", onnx.TensorProto.FLOAT, ["n", 5])],
        [stored(np.ones(shape, np.float32), name) for name, shape in shapes.items()],
    )
    opsets = [make.make_opsetid("", 17), make.make_opsetid("com.microsoft", 1)]
    onnx.save(make.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "fused.onnx")
    found = run("compat", tmp_path / "fused.onnx", "--json").json
    assert [node["becomes"] for node in found["nodes"]] == [["Gemm", "Relu"], ["Add", "LayerNormalization"]]
    assert "Gemm, Relu" in run("compat", tmp_path / "fused.onnx").out


def test_memory_is_that_of_parameters_gradients_and_moments(artifacts, run):
    elements = 16 * 3 + 3
    assert run("inspect", artifacts, "--json").json["memory"] == {
        "parameters": 4 * elements, "gradients": 4 * elements, "optimizer_state": 2 * 4 * elements
    }  # fmt: skip
    assert f"memory between steps {16 * elements:,} bytes" in run("inspect", artifacts).out


def test_the_doctor_finds_nothing(run):
    found = run("doctor", "--json").json
    assert found["self_test"].startswith("passed")
    assert found["packages"]["numpy"] == np.__version__


@pytest.mark.parametrize("command", ["inspect", "compat"])
def test_what_is_no_model_is_named(command, run, tmp_path):
    (tmp_path / "x.onnx").write_text("no model")
    assert "is not an ONNX model" in run(command, tmp_path / "x.onnx", status=1).err
    assert "there is no model" in run(command, tmp_path / "none.onnx", status=1).err
