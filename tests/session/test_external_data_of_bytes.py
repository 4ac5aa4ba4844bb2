"""A model in memory whose weights are in files of a folder that the session is told."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain.cli import language_models
from ortrain.options import SessionOptions
from small_language_model import write_model

FOLDER = "session.model_external_initializers_file_folder_path"


def test_a_model_in_memory_reads_weights_of_the_named_folder(tmp_path: pathlib.Path) -> None:
    weight = np.arange(2048, dtype=np.float32).reshape(4, 512)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    content = (tmp_path / "m.onnx").read_bytes()
    with pytest.raises(
        ortrain.errors.InvalidArgumentError, match="not available for a model read from memory"
    ):
        ortrain.InferenceSession(content)
    options = SessionOptions()
    options.add_session_config_entry(FOLDER, str(tmp_path))
    x = np.eye(4, dtype=np.float32)
    np.testing.assert_array_equal(ortrain.InferenceSession(content, options).run(None, {"x": x})[0], weight)
    options.add_session_config_entry(FOLDER, str(tmp_path / "none"))
    with pytest.raises(ortrain.errors.OrtrainError, match=r"m\.data"):
        ortrain.InferenceSession(content, options)


def test_a_decoder_that_is_rewritten_is_read_without_a_copy_of_its_weights(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "inside")
    model = onnx.load(tmp_path / "inside" / "model.onnx")
    table = np.zeros((300, 100), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "unread"))
    (tmp_path / "apart").mkdir()
    onnx.save(
        model,
        tmp_path / "apart" / "model.onnx",
        save_as_external_data=True,
        location="model.data",
        size_threshold=0,
    )
    taken: list[int] = []

    class Counting(ortrain.InferenceSession):
        def __init__(self, given: bytes, *others: object) -> None:
            taken.append(len(given))
            super().__init__(given, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(language_models, "InferenceSession", Counting)
    monkeypatch.setattr("ortrain.artifacts.graph.packed_tables.has_unpacked_tables", lambda model: True)
    session = language_models.opened(tmp_path / "apart" / "model.onnx", SessionOptions())
    assert taken[0] < (tmp_path / "apart" / "model.data").stat().st_size
    whole = ortrain.InferenceSession(tmp_path / "inside" / "model.onnx")
    feeds = {value.name: np.ones((1, 4), np.int64) for value in whole.get_inputs()}
    for found, expected in zip(session.run(None, feeds), whole.run(None, feeds), strict=True):
        np.testing.assert_array_equal(found, expected)
