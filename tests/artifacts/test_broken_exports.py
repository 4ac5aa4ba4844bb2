"""Exports that are wrong in themselves: ``tests/data/broken_exports`` has them as tf2onnx writes them."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import pytest
from ortrain import artifacts
from ortrain.api import CheckpointState, Module

DATA = pathlib.Path(__file__).parents[1] / "data" / "broken_exports"


def make(model, folder):
    return artifacts.generate_artifacts(
        model, loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.SGD, artifact_directory=folder
    )


def inputs_of(path):
    return [value.name for value in onnx.load(path).graph.input]


def test_a_folded_constant_is_no_input_of_a_step(tmp_path, caplog):
    path = DATA / "normalization.onnx"
    first, *constants = inputs_of(path)
    assert [name.rpartition("/")[0].rpartition("/")[2] for name in constants] == ["Sub", "Sqrt"]
    report = make(path, tmp_path)
    (said,) = [r.getMessage() for r in caplog.records if "no node reads" in r.getMessage()]
    assert all(name in said for name in constants)
    for model in (report.training_model, report.eval_model):
        assert not set(constants) & set(inputs_of(model))
    state = CheckpointState.load_checkpoint(report.checkpoint)
    module = Module(report.training_model, state, report.eval_model)
    assert module.input_names()[0] == first
    assert np.isfinite(module(np.ones((2, 4), np.float32), np.zeros((2, 3), np.float32)))


def test_a_constant_whose_value_the_export_lost_is_named(tmp_path, caplog):
    report = make(DATA / "normalization_of_data.onnx", tmp_path)
    (said,) = [r.getMessage() for r in caplog.records if "fault of the export" in r.getMessage()]
    assert "Sub/y:0: by the name this is a constant" in said
    assert "Sqrt/x:0" not in said
    assert not any("Sqrt" in name for name in inputs_of(report.training_model))


def test_an_input_that_no_node_reads_stays_if_it_is_not_named_like_a_constant(tmp_path):
    model = onnx.load(DATA / "normalization.onnx")
    model.graph.input[1].name = "token_type_ids"
    report = make(model, tmp_path)
    assert "token_type_ids" in {value.name for value in onnx.load(report.training_model).graph.input}


def test_an_operator_that_onnx_does_not_have_is_the_fault_of_the_export(tmp_path):
    with pytest.raises(ValueError, match="No version of ONNX has this operator") as raised:
        make(DATA / "gelu.onnx", tmp_path)
    message = str(raised.value)
    assert re.search(r'node "\S*Gelu/Erfc" \(Erfc\), domain ai.onnx', message)
    assert "The export is broken, not the network: tf2onnx 1.17.0 could not convert" in message
    assert "use other operators" not in message
    assert not list(tmp_path.iterdir())


def test_an_operator_of_onnx_that_cannot_be_trained_is_not_called_broken(tmp_path):
    model = onnx.load(DATA / "gelu.onnx")
    for node in model.graph.node:
        if node.op_type == "Erfc":
            node.op_type, node.domain = "Nonsense", "com.example"
    model.opset_import.add(domain="com.example", version=1)
    with pytest.raises(ValueError, match="this operator is not supported") as raised:
        make(model, tmp_path)
    assert "broken" not in str(raised.value)
