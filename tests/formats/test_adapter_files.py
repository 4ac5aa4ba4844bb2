"""LoRA adapters: files of onnxruntime are read, files written here are read there, and runs take their tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import (
    AdapterFormat,
    InferenceSession,
    LoraAdapter,
    OrtrainError,
    OrtValue,
    RunOptions,
    artifacts,
)
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

STORED = Path(__file__).resolve().parents[1] / "data/formats/adapter.onnx_adapter"
"""Written by onnxruntime 1.31 (``make.py`` beside it)."""


def make_model() -> bytes:
    """A model whose weights are inputs too: y = x + w, z = ids * 2."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"]), helper.make_node("Add", ["ids", "ids"], ["z"])],
        "graph",
        [
            info("x", TensorProto.FLOAT, [2]),
            info("w", TensorProto.FLOAT, [2]),
            info("ids", TensorProto.INT64, [1, 2]),
        ],
        [info("y", TensorProto.FLOAT, [2]), info("z", TensorProto.INT64, [1, 2])],
        [
            numpy_helper.from_array(np.zeros(2, np.float32), "w"),
            numpy_helper.from_array(np.zeros((1, 2), np.int64), "ids"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def with_adapter(path: Path) -> RunOptions:
    adapter = LoraAdapter()
    adapter.Load(path)
    options = RunOptions()
    options.add_active_adapter(adapter)
    return options


def adapter_of(values: dict[str, Any]) -> AdapterFormat:
    adapter = AdapterFormat()
    adapter.set_parameters({name: OrtValue.ortvalue_from_numpy(value) for name, value in values.items()})
    return adapter


def test_an_adapter_of_onnxruntime_is_read() -> None:
    adapter = AdapterFormat.read_adapter(STORED)
    assert (adapter.get_format_version(), adapter.get_adapter_version(), adapter.get_model_version()) == (
        1,
        7,
        2,
    )
    values = {name: value.numpy() for name, value in adapter.get_parameters().items()}
    assert values["ids"].tolist() == [[1, 2]]
    assert values["w"].dtype == np.float32
    assert values["w"].shape == (2,)


def test_a_run_takes_the_tensors_of_an_adapter() -> None:
    session = InferenceSession(make_model())
    x = np.float32([1, 2])
    w = AdapterFormat.read_adapter(STORED).get_parameters()["w"].numpy()
    plain = session.run(None, {"x": x})
    adapted = session.run(None, {"x": x}, with_adapter(STORED))
    np.testing.assert_array_equal(plain[0], x)
    np.testing.assert_array_equal(adapted[0], x + w)
    assert adapted[1].tolist() == [[2, 4]]
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x)


@pytest.mark.parametrize("has_defaults", [False, True])
def test_a_dimension_of_0_takes_an_adapter_of_any_rank(has_defaults: bool, tmp_path: Path) -> None:
    """Models of low-rank adapters are exported without elements, which they then have by default."""
    info = helper.make_tensor_value_info
    shapes = {"a": [4, 0], "b": [0, 4]}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("MatMul", ["h", "b"], ["y"])],
        "graph",
        [info("x", TensorProto.FLOAT, [1, 4]), *(info(n, TensorProto.FLOAT, s) for n, s in shapes.items())],
        [info("y", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in shapes.items() if has_defaults],
        value_info=[info("h", TensorProto.FLOAT, [1, 0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = InferenceSession(model.SerializeToString())
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    for rank in (2, 3, 2):
        a = np.arange(4 * rank, dtype=np.float32).reshape(4, rank)
        adapter_of({"a": a, "b": a.T.copy()}).export_adapter(tmp_path / "adapter")
        [y] = session.run(None, {"x": x}, with_adapter(tmp_path / "adapter"))
        np.testing.assert_allclose(y, x @ a @ a.T)
    if has_defaults:
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.zeros((1, 4)))
    wrong = {"a": np.zeros((3, 2), np.float32), "b": np.zeros((2, 4), np.float32)}
    adapter_of(wrong).export_adapter(tmp_path / "wrong")
    with pytest.raises(ValueError, match=r"'a'.*dimension 0 differs"):
        session.run(None, {"x": x}, with_adapter(tmp_path / "wrong"))


def test_onnxruntime_reads_an_adapter_written_here(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle")
    values = {"w": np.float32([0.5, -3]), "ids": np.array([[7, 8]]),
              "half": np.float16([1.5]), "empty": np.zeros((0, 3), np.float64)}  # fmt: skip
    adapter = adapter_of(values)
    adapter.set_adapter_version(4)
    adapter.set_model_version(9)
    adapter.export_adapter(tmp_path / "a.onnx_adapter")
    theirs = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "a.onnx_adapter"))
    assert (theirs.get_adapter_version(), theirs.get_model_version()) == (4, 9)
    read = {name: value.numpy() for name, value in theirs.get_parameters().items()}
    assert read.keys() == values.keys()
    for name, value in values.items():
        assert read[name].dtype == value.dtype
        np.testing.assert_array_equal(read[name], value)
    own = {"w": values["w"], "ids": values["ids"]}
    adapter_of(own).export_adapter(tmp_path / "b.onnx_adapter")
    loaded, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    loaded.Load(str(tmp_path / "b.onnx_adapter"))
    options.add_active_adapter(loaded)
    session = onnxruntime.InferenceSession(make_model(), providers=["CPUExecutionProvider"])
    x = np.float32([1, 2])
    here = InferenceSession(make_model()).run(None, {"x": x}, with_adapter(tmp_path / "b.onnx_adapter"))
    for a, b in zip(session.run(None, {"x": x}, options), here, strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_was_trained_becomes_an_adapter(mlp: Fixture, tmp_path: Path) -> None:
    """The forward model with an adapter computes what the exported model does."""
    artifacts.generate_artifacts(
        mlp.folder / "model.onnx",
        requires_grad=mlp.expected["requires_grad"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    module.train()
    for x, y in mlp.batches[:2]:
        module(x, y)
        optimizer.step()
        module.lazy_reset_grad()
    adapter_of({name: p.data for name, p in state.parameters if p.requires_grad}).export_adapter(
        tmp_path / "a"
    )
    model = onnx.load(mlp.folder / "model.onnx")
    outputs = [value.name for value in model.graph.output]
    module.export_model_for_inferencing(str(tmp_path / "trained.onnx"), outputs)
    [given] = [value.name for value in model.graph.input]
    for tensor in model.graph.initializer:  # which makes them initializers that a run may replace
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    feed = {given: mlp.batches[0][0]}
    adapted = InferenceSession(model.SerializeToString()).run(None, feed, with_adapter(tmp_path / "a"))
    np.testing.assert_allclose(
        adapted[0], InferenceSession(tmp_path / "trained.onnx").run(None, feed)[0], rtol=1e-6
    )


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="ghost"):
        LoraAdapter().Load("ghost")
    (tmp_path / "cut").write_bytes(STORED.read_bytes()[:-60])
    with pytest.raises(OrtrainError, match=r"cut.*truncated or damaged"):
        LoraAdapter().Load(tmp_path / "cut")
    with pytest.raises(ValueError, match="call Load first"):
        RunOptions().add_active_adapter(LoraAdapter())
    with pytest.raises(TypeError, match=r"params\['w'\].*ndarray"):
        AdapterFormat().set_parameters({"w": np.zeros(2)})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="strings"):
        adapter_of({"w": np.array(["a"], dtype=object)}).export_adapter(tmp_path / "text")
    session, x = InferenceSession(make_model()), np.float32([1, 2])
    adapter_of({"elsewhere": np.float32([1])}).export_adapter(tmp_path / "other")
    with pytest.raises(ValueError, match="no input 'elsewhere'"):
        session.run(None, {"x": x}, with_adapter(tmp_path / "other"))
    adapter_of({"w": np.float32([1, 2, 3])}).export_adapter(tmp_path / "long")
    with pytest.raises(ValueError, match="'w'"):
        session.run(None, {"x": x}, with_adapter(tmp_path / "long"))
    with pytest.raises(ValueError, match="'w' was given twice"):
        session.run(None, {"x": x, "w": x}, with_adapter(STORED))
