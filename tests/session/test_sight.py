"""Seeing what a session does: its graph after each pass, the graph that it runs, and the node that produces a NaN."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper


def model_of(nodes: list[onnx.NodeProto], x: list[int | str], **initializers: np.ndarray) -> onnx.ModelProto:
    """Return a model from `x` to `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def twins() -> onnx.ModelProto:
    """Return y = x W + sigmoid(x W), with the product written twice, and an Identity."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], "rename"),
        helper.make_node("MatMul", ["same", "w"], ["a"], "first"),
        helper.make_node("MatMul", ["same", "w"], ["b"], "second"),
        helper.make_node("Sigmoid", ["b"], ["c"], "squash"),
        helper.make_node("Add", ["a", "c"], ["y"], "join"),
    ]
    return model_of(nodes, ["n", 3], w=np.arange(12, dtype=np.float32).reshape(3, 4) / 10)


def session(model: onnx.ModelProto, path: pathlib.Path, **entries: str) -> ortrain.InferenceSession:
    options = ortrain.SessionOptions()
    for name, value in entries.items():
        options.add_session_config_entry(f"ortrain.{name}", value)
    onnx.save(model, path / "model.onnx")
    return ortrain.InferenceSession(str(path / "model.onnx"), options)


def types_of(path: pathlib.Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


X = np.array([[1, -2, 3], [0.5, 0, -1]], np.float32)


def test_the_graph_is_written_before_and_after_each_pass(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "graphs" / "here"
    session(twins(), tmp_path, dump_graph=str(folder))
    files = sorted(path.name for path in folder.iterdir())
    assert files[0] == "model_00.onnx"
    assert files[1] == "model_01_remove_identity.onnx"
    assert "model_03_common_subexpression_elimination.onnx" in files
    assert [int(name.split("_")[1].removesuffix(".onnx")) for name in files] == list(range(len(files)))
    assert types_of(folder / files[0]) == ["Identity", "MatMul", "MatMul", "Sigmoid", "Add"]
    assert types_of(folder / files[1]) == ["MatMul", "MatMul", "Sigmoid", "Add"]
    assert types_of(folder / "model_03_common_subexpression_elimination.onnx") == ["MatMul", "Sigmoid", "Add"]


def test_a_pass_that_is_off_writes_nothing(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "graphs"
    session(twins(), tmp_path, dump_graph=str(folder), **{"disable_pass.remove_identity": "1"})
    assert not any("remove_identity" in path.name for path in folder.iterdir())
    last = sorted(folder.iterdir())[-1]
    assert "Identity" in types_of(last)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "graphs"
    error = re.escape(f"ortrain.dump_graph: cannot create the folder '{folder}'")
    with pytest.raises(RuntimeError, match=error):
        session(twins(), tmp_path, dump_graph=str(folder))


@pytest.mark.parametrize("name", ["merge_twins", "common_subexpression_elimination"])
def test_a_pass_is_switched_off_by_its_name_and_by_its_former_one(tmp_path: pathlib.Path, name: str) -> None:
    folder = tmp_path / "graphs"
    session(twins(), tmp_path, dump_graph=str(folder), **{f"disable_pass.{name}": "1"})
    assert types_of(sorted(folder.iterdir())[-1]).count("Sigmoid") == 1
    assert not any("common_subexpression" in path.name for path in folder.iterdir())


def test_the_graph_that_a_session_runs_is_written_and_gives_the_same(tmp_path: pathlib.Path) -> None:
    onnx.save(twins(), tmp_path / "model.onnx")
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = tmp_path / "optimized.onnx"
    plain = ortrain.InferenceSession(str(tmp_path / "model.onnx"), options)
    assert types_of(tmp_path / "optimized.onnx").count("Identity") == 0
    assert len(types_of(tmp_path / "optimized.onnx")) < 5
    again = ortrain.InferenceSession(str(tmp_path / "optimized.onnx"))
    np.testing.assert_array_equal(plain.run(None, {"x": X})[0], again.run(None, {"x": X})[0])


def test_an_optimized_model_in_a_folder_that_is_not_there_is_an_error(tmp_path: pathlib.Path) -> None:
    onnx.save(twins(), tmp_path / "model.onnx")
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = tmp_path / "nowhere" / "optimized.onnx"
    with pytest.raises((RuntimeError, OSError), match="nowhere"):
        ortrain.InferenceSession(str(tmp_path / "model.onnx"), options)


def test_the_first_node_that_makes_a_nan_is_named_with_the_ranges_of_its_inputs(
    tmp_path: pathlib.Path,
) -> None:
    nodes = [
        helper.make_node("Sub", ["x", "one"], ["shifted"], "shift"),
        helper.make_node("Sqrt", ["shifted"], ["root"], "take_root"),
        helper.make_node("MatMul", ["root", "w"], ["y"], "product"),
    ]
    model = model_of(nodes, [2, 3], one=np.float32(1), w=np.eye(3, dtype=np.float32))
    np.testing.assert_array_equal(np.isnan(session(model, tmp_path).run(None, {"x": X})[0]).any(), True)
    checked = session(model, tmp_path, check_finite="1")
    with pytest.raises(
        RuntimeError, match=r'"take_root" \(Sqrt\).*output \'root\' 4 are NaN and 0 infinite'
    ) as error:
        checked.run(None, {"x": X})
    assert "'shifted' from -3 to 2" in str(error.value)
    with pytest.raises(RuntimeError, match=r"output 'root' 1 is NaN and 0 infinite"):
        checked.run(None, {"x": np.array([[0, 2, 3], [4, 5, 6]], np.float32)})
    np.testing.assert_allclose(checked.run(None, {"x": X + 9})[0], np.sqrt(X + 8), rtol=1e-6)


def test_the_first_node_that_makes_an_infinity_is_named(tmp_path: pathlib.Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["big"], "explode"),
        helper.make_node("Neg", ["big"], ["y"], "turn"),
    ]
    checked = session(model_of(nodes, [2, 3]), tmp_path, check_finite="1")
    x = np.array([[100, -100, 50], [0, 1, 100]], np.float32)
    message = r'"explode" \(Exp\).*0 are NaN and 2 infinite.*\'x\' from -100 to 100'
    with pytest.raises(RuntimeError, match=message):
        checked.run(None, {"x": x})


def test_infinities_that_a_node_is_given_may_pass(tmp_path: pathlib.Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["masked"], "mask_out"),
        helper.make_node("Softmax", ["masked"], ["y"], "softmax"),
    ]
    model = model_of(nodes, [2, 3], mask=np.array([0, 0, -np.inf], np.float32))
    found = session(model, tmp_path, check_finite="1").run(None, {"x": X})[0]
    np.testing.assert_array_equal(found[:, 2], 0)


def test_the_check_is_on_or_off(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"ortrain\.check_finite: expected one of '0', '1', found 'yes'"):
        session(twins(), tmp_path, check_finite="yes")


def test_a_training_step_that_makes_an_infinity_names_the_node(tmp_path: pathlib.Path) -> None:
    """In a model that trains, with its backward pass: log of zero."""
    from ortrain import artifacts
    from ortrain.api import CheckpointState, Module

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Log", ["a"], ["b"], "logarithm"),
        helper.make_node("ReduceMean", ["b"], ["y"], "mean", keepdims=0),
    ]
    model = model_of(nodes, [2, 3], w=np.ones((3, 1), np.float32))
    model.graph.output[0].type.tensor_type.shape.CopyFrom(onnx.TensorShapeProto())
    artifacts.generate_artifacts(model, requires_grad=["w"], artifact_directory=str(tmp_path))
    options = ortrain.SessionOptions()
    options.add_session_config_entry("ortrain.check_finite", "1")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, session_options=options)
    module.train()
    module(np.ones((2, 3), np.float32))
    with pytest.raises(RuntimeError, match=r'"logarithm" \(Log\).*1 infinite'):
        module(np.array([[1, 1, 1], [0, 0, 0]], np.float32))
