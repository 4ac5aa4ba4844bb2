"""Modules and members of onnxblock that programs for onnxruntime-training use, beside the documented ones."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, OrtValue, artifacts, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.onnxblock import _graph_utils, _training_graph_utils, checkpoint_utils, model_accessor

onnxruntime = pytest.importorskip("onnxruntime")


def network(opset: int = 15) -> onnx.ModelProto:
    """Return a network with the operators that work differently in training: x → dropout(normalized(x · w))."""
    random = np.random.default_rng(0)
    value = helper.make_tensor_value_info
    weights = {
        "w": random.normal(size=(3, 4)),
        "scale": np.ones(4),
        "bias": np.zeros(4),
        "mean": np.zeros(4),
        "variance": np.ones(4),
        "ratio": np.array(0.5),
    }
    initializers = [numpy_helper.from_array(v.astype(np.float32), name) for name, v in weights.items()]
    initializers.append(numpy_helper.from_array(np.array(True), "training"))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node(
            "BatchNormalization",
            ["product", "scale", "bias", "mean", "variance"],
            ["normalized", "mean_out", "variance_out"],
            training_mode=1,
        ),
        helper.make_node("Dropout", ["normalized", "ratio", "training"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [value("x", TensorProto.FLOAT, ["batch", 3])],
        [value("y", TensorProto.FLOAT, ["batch", 4])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def linear() -> onnx.ModelProto:
    """Return y = x · w + b."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])],
        "linear",
        [value("x", TensorProto.FLOAT, ["batch", 3])],
        [value("y", TensorProto.FLOAT, ["batch", 2])],
        [
            numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w"),
            numpy_helper.from_array(np.array([1, -1], np.float32), "b"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make(folder: Path, model: onnx.ModelProto | None = None, **options: Any) -> None:
    artifacts.generate_artifacts(
        model or linear(),
        requires_grad=["w"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
        **options,
    )


X, TARGET = np.ones((5, 3), np.float32), np.zeros((5, 2), np.float32)


# ---- eval models ----


def test_eval_models_keep_the_attribute_and_the_input_that_turn_training_off(tmp_path: Path) -> None:
    make(tmp_path, network())
    eval_model = onnx.load(tmp_path / "eval_model.onnx")
    nodes = {node.op_type: node for node in eval_model.graph.node}
    modes = [a.i for a in nodes["BatchNormalization"].attribute if a.name == "training_mode"]
    assert modes == [0]
    assert list(nodes["Dropout"].input) == ["normalized", "ratio", ""]
    onnx.checker.check_model(eval_model, full_check=True)

    values = {t.name: numpy_helper.to_array(t) for t in network().graph.initializer}
    x, target = np.ones((5, 3), np.float32), np.zeros((5, 4), np.float32)
    feeds = {"x": x, "target": target, **{name: values[name] for name in ("w", "mean", "variance")}}
    session = onnxruntime.InferenceSession(tmp_path / "eval_model.onnx", providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)[0]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    np.testing.assert_allclose(module.eval()(x, target), expected, rtol=1e-5)


# ---- blocks ----


class Doubled(onnxblock.Block):
    def build(self, name: str) -> str:
        self.base.graph.node.append(helper.make_node("Add", [name, name], ["doubled"]))
        inferred = self.infer_shapes_on_base()
        self.inferred = {value.name: value for value in inferred.graph.value_info}
        return "doubled"


def test_a_block_infers_the_shapes_of_the_model_that_it_extends() -> None:
    block = Doubled(temp_file_name="scratch/shapes.onnx")
    with onnxblock.base(linear()) as accessor:
        block("y")
        assert not accessor.model.graph.value_info
    shape = block.inferred["doubled"].type.tensor_type.shape
    assert [dim.dim_param or dim.dim_value for dim in shape.dim] == ["batch", 2]
    assert Path(block.temp_onnx_file_path) == Path.cwd() / "scratch/shapes.onnx"
    assert not Path(block.temp_onnx_file_path).exists()


def test_an_absolute_temporary_file_is_rejected() -> None:
    with pytest.raises(RuntimeError, match=r"relative to the current directory, found '/tmp/shapes.onnx'"):
        Doubled(temp_file_name="/tmp/shapes.onnx")


def test_shapes_are_not_inferred_without_a_model() -> None:
    with pytest.raises(RuntimeError, match="no base model"):
        Doubled().infer_shapes_on_base()


# ---- modules ----


def test_the_modules_have_the_members_of_the_package() -> None:
    assert checkpoint_utils.save_checkpoint is onnxblock.save_checkpoint
    assert checkpoint_utils.load_checkpoint_to_model is onnxblock.load_checkpoint_to_model
    for name in ("ModelAccessor", "base", "custom_op_library", "empty_base"):
        assert getattr(model_accessor, name) is getattr(onnxblock, name)


def test_the_registered_model_is_where_blocks_for_onnxruntime_look_for_it() -> None:
    assert model_accessor._GLOBAL_ACCESSOR is None
    with onnxblock.empty_base() as accessor:
        assert model_accessor._GLOBAL_ACCESSOR is accessor
    assert model_accessor._GLOBAL_ACCESSOR is None
    with pytest.raises(AttributeError, match="_GLOBAL_OTHER"):
        _ = model_accessor._GLOBAL_OTHER


def test_graph_functions_find_name_and_register_values() -> None:
    model = linear()
    assert _graph_utils.get_output_from_output_name(model, "y") is model.graph.output[0]
    assert _graph_utils.get_input_from_input_name(model, "x") is model.graph.input[0]
    with pytest.raises(LookupError, match="no input 'z'; its inputs: x"):
        _graph_utils.get_input_from_input_name(model, "z")
    with pytest.raises(LookupError, match="no output 'x'; its outputs: y"):
        _graph_utils.get_output_from_output_name(model, "x")
    assert _graph_utils.node_arg_exists(model, "w")
    assert not _graph_utils.node_arg_exists(model, "z")
    first, second = (_graph_utils.generate_graph_name("sum") for _ in range(2))
    assert first != second
    assert "sum" in first
    model.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
    model = onnx.shape_inference.infer_shapes(model)
    _graph_utils.register_graph_outputs(model, ["z", "y"])
    assert [output.name for output in model.graph.output] == ["z", "y"]


def test_the_steps_of_a_training_block_build_a_model_with_its_results(tmp_path: Path) -> None:
    class Sum(onnxblock.TrainingBlock):
        def build(self, name: str) -> tuple[str, str]:
            self.base.graph.node.append(helper.make_node("ReduceSum", [name], ["loss"], keepdims=0))
            return "loss", name

    block = Sum()
    block.requires_grad("w")
    block.requires_grad("b", False)
    with onnxblock.base(linear()):
        block("y")
    expected_model, _ = block.to_model_proto()

    model = linear()
    model.graph.node.append(helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0))
    model.graph.output.insert(0, helper.make_tensor_value_info("loss", TensorProto.FLOAT, []))
    trainable, frozen = _training_graph_utils.get_model_parameters(model, {"w"}, {"b"})
    assert [t.name for t in trainable] == ["w"]
    assert [t.name for t in frozen] == ["b"]
    built, eval_model = _training_graph_utils.build_gradient_graph(model, {"w"}, {"b"}, ["loss", "y"])
    _training_graph_utils.build_gradient_accumulation_graph(built, {"w"})

    def names(values: Any) -> list[str]:
        return [value.name for value in values]

    assert names(eval_model.graph.input) == ["x", "w", "b"]
    assert names(built.graph.input) == names(expected_model.graph.input)
    assert names(built.graph.output) == names(expected_model.graph.output)
    checkpoint_utils.save_checkpoint((trainable, frozen), tmp_path / "checkpoint")
    gradient = X.T @ np.ones((5, 2), np.float32)  # of sum(x · w + b)
    for made in (built, expected_model):
        onnx.save(made, tmp_path / "model.onnx")
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "model.onnx", state)
        for step in (1, 2):
            module(X)
            np.testing.assert_allclose(state.parameters["w"].grad, step * gradient, rtol=1e-6)
        assert not state.parameters["b"].requires_grad


def test_custom_operator_libraries_are_rejected_where_they_are_given() -> None:
    with pytest.raises(OrtrainError, match=r"Failed to load library .*ops\.so"):
        _training_graph_utils.build_gradient_graph(linear(), {"w"}, set(), "y", "ops.so")


# ---- steps and states ----


def test_a_step_with_arrays_and_values_returns_arrays(tmp_path: Path) -> None:
    make(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    x, target = OrtValue.ortvalue_from_numpy(X), OrtValue.ortvalue_from_numpy(TARGET)
    for inputs in ((x, TARGET), (X, target), (X, TARGET)):
        assert isinstance(module(*inputs), np.ndarray)
    assert isinstance(module(x, target), OrtValue)


@pytest.mark.parametrize("flag", [True, False, np.True_])
def test_a_bool_property_is_an_int(flag: bool, tmp_path: Path) -> None:
    make(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    state.properties["flag"] = flag
    CheckpointState.save_checkpoint(state, tmp_path / "saved")
    read = CheckpointState.load_checkpoint(tmp_path / "saved").properties["flag"]
    assert read == flag
    assert type(read) is int


def test_what_needs_values_asks_for_them_in_the_words_that_programs_match(tmp_path: Path) -> None:
    make(tmp_path, nominal_checkpoint=True)
    state = CheckpointState.load_checkpoint(tmp_path / "nominal_checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert "w" in state.parameters
    assert module.get_parameters_size() == 6
    with pytest.raises(Exception, match=r'"w".*Please load the parameter states first'):
        _ = state.parameters["w"]
    with pytest.raises(Exception, match=r'"w".*Please load all the parameter states first'):
        state.parameters["w"] = np.ones((3, 2), np.float32)
    for doing, step in (
        ("parameters to a buffer", module.get_contiguous_parameters),
        ("train step", lambda: module.train()(X, TARGET)),
        ("optimizer step", optimizer.step),
        ("eval step", lambda: module.eval()(X, TARGET)),
    ):
        with pytest.raises(Exception, match=rf"{doing}: .*Please load the model parameters first\."):
            step()


def test_a_block_that_was_not_built_says_so_in_the_words_that_programs_match() -> None:
    class Nothing(onnxblock.TrainingBlock):
        def build(self, name: str) -> str:
            return name

    with pytest.raises(
        RuntimeError, match=r"Please build the training model first before trying to retrieve"
    ):
        Nothing().parameters()


def test_modules_of_the_package_import_on_their_own() -> None:
    for name in ("_graph_utils", "_training_graph_utils", "checkpoint_utils", "model_accessor"):
        assert importlib.import_module(f"ortrain.onnxblock.{name}").__doc__
