"""A build with the operators of one training session alone; `make test-small` builds it and runs this."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import _ortrain, api
from ortrain.alias import library_folder
from recorded import Fixture

pytestmark = pytest.mark.skipif(
    "ORTRAIN_SMALL" not in os.environ, reason="only with the build of make test-small"
)


def model(*types: str) -> bytes:
    """Return a chain of operators of one value."""
    names = ["x", *(f"v{i}" for i in range(len(types)))]
    nodes = [helper.make_node(op, [a], [b]) for op, a, b in zip(types, names, names[1:], strict=False)]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, [3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()


def test_built_operators_run() -> None:
    session = ortrain.InferenceSession(model("Relu", "Flatten"))
    (y,) = session.run(None, {"x": np.array([-1, 0, 2], np.float32)})
    np.testing.assert_array_equal(y.reshape(-1), [0, 0, 2])


def test_passes_do_without_operators_that_are_left_out() -> None:
    # A convolution and the Relu behind it would become FusedConv.
    nodes = [helper.make_node("Conv", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    image, result = ([1, 1, 3, 3], [1, 1, 2, 2])
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
        [helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 2, 2], [1.0, 0, 0, -1.0])],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    x = np.arange(9, dtype=np.float32).reshape(image)[..., ::-1].copy()
    (y,) = ortrain.InferenceSession(data).run(None, {"x": x})
    np.testing.assert_array_equal(y, np.maximum(x[..., :2, :2] - x[..., 1:, 1:], 0))


@pytest.mark.parametrize("group", [2, 4])
@pytest.mark.parametrize("pointwise", [False, True])
def test_convolutions_with_groups_need_no_kernels_of_their_own(group: int, pointwise: bool) -> None:
    """The build leaves out the kernels of depthwise convolutions, because the models have no convolution with groups."""
    random = np.random.default_rng(0)
    x = random.normal(size=(2, 4, 6, 6)).astype(np.float32)
    w = random.normal(size=(4, 4 // group, 3, 3)).astype(np.float32)
    square = random.normal(size=(5, 4, 1, 1)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["h" if pointwise else "y"], group=group)]
    if pointwise:
        nodes.append(helper.make_node("Conv", ["h", "square"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(square, "square")],
    )
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    windows = windows.reshape(2, group, 4 // group, 4, 4, 3, 3)
    expected = np.einsum("ngchwij,gmcij->ngmhw", windows, w.reshape(group, 4 // group, 4 // group, 3, 3))
    expected = expected.reshape(2, 4, 4, 4)
    if pointwise:
        expected = np.einsum("nchw,mc->nmhw", expected, square[:, :, 0, 0])
    (y,) = ortrain.InferenceSession(data).run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_operators_that_passes_make_are_left_out_with_those_that_they_are_made_of() -> None:
    contents = (library_folder() / "libortrain.so").read_bytes()
    # The recorded run has convolutions, but none with groups, of which SeparableConv is made.
    for made in (
        b"SeparableConv",
        b"ProjectedCrossEntropy",
        b"AccumulateRows",
        b"SparseProduct",
        b"GeluAndDerivative",
    ):
        assert made not in contents


def test_operators_that_are_left_out_are_named_with_the_option_that_adds_them() -> None:
    with pytest.raises(Exception, match="ORTRAIN_OPERATORS") as error:
        ortrain.InferenceSession(model("Relu", "Selu", "Mish"))
    message = str(error.value)
    assert "Selu" in message
    assert "Mish" in message
    assert "Relu" not in message


@pytest.mark.parametrize(
    ("dtype", "option"),
    [
        (TensorProto.DOUBLE, "ORTRAIN_DOUBLES"),
        (TensorProto.FLOAT16, "ORTRAIN_HALVES"),
        (TensorProto.INT8, "ORTRAIN_SMALL_INTEGERS"),
    ],
)
def test_types_that_are_left_out_are_named_with_the_option_that_adds_them(dtype: int, option: str) -> None:
    x, y = (helper.make_tensor_value_info(name, dtype, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "graph", [x], [y])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString()
    values = np.zeros(3, helper.tensor_dtype_to_np_dtype(dtype))
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match=option) as error:
        ortrain.InferenceSession(data).run(None, {"x": values})
    assert "'x'" in str(error.value)


def test_mixed_precision_names_the_option_that_adds_it() -> None:
    folder = Fixture("lenet_adamw").folder
    options = ortrain.SessionOptions()
    options.add_session_config_entry("ortrain.mixed_precision", "bf16")
    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match="ORTRAIN_HALVES"):
        api.Module(folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options)


def test_calls_of_the_older_training_api_name_the_option_that_adds_it() -> None:
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match="ORTRAIN_LEGACY=ON"):
        ortrain.TrainingSession(model("Relu"), ortrain.TrainingParameters())


@pytest.mark.parametrize(
    ("call", "option"),
    [
        (lambda: _ortrain.build_training_model(b"", [], [], [], "loss", [], []), "ORTRAIN_ARTIFACTS"),
        (lambda: _ortrain.get_optimizer_formulas(b""), "ORTRAIN_ARTIFACTS"),
        (lambda: _ortrain.create_metric("accuracy", "{}"), "ORTRAIN_METRICS"),
        (
            lambda: ortrain.SparseTensor.sparse_coo_from_numpy(
                np.array([2, 2]), np.ones(1, np.float32), np.array([1]), ortrain.OrtDevice.make("cpu", 0)
            ),
            "ORTRAIN_SPARSE",
        ),
        (lambda: _ortrain.create_lora_adapter("missing.onnx_adapter"), "ORTRAIN_ADAPTERS"),
        (
            lambda: ortrain.ModelCompiler(ortrain.SessionOptions(), model("Relu")).compile_to_bytes(),
            "ORTRAIN_GRAPHS",
        ),
        (
            lambda: ortrain.SessionOptions().register_custom_ops_library("missing.so"),
            "ORTRAIN_CUSTOM_OPERATORS",
        ),
    ],
)
def test_calls_of_other_parts_name_the_option_that_adds_them(call: Callable[[], object], option: str) -> None:
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match=f"{option}=ON"):
        call()


def test_models_in_ort_format_are_read_alone(tmp_path: Path) -> None:
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match="ORTRAIN_GRAPHS=ON"):
        ortrain.InferenceSession(model("Relu"), options)


def test_exports_and_optimized_models_name_the_option_that_adds_them(tmp_path: Path) -> None:
    """Checkpoints are still written."""
    folder = Fixture("lenet_adamw").folder
    state = api.CheckpointState.load_checkpoint(folder / "checkpoint")
    module = api.Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match="ORTRAIN_WRITERS=ON"):
        module.export_model_for_inferencing(tmp_path / "model.onnx", ["output"])
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "model.onnx")
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match="ORTRAIN_WRITERS=ON"):
        ortrain.InferenceSession(model("Relu"), options)
    assert list(tmp_path.iterdir()) == []
    api.CheckpointState.save_checkpoint(state, tmp_path / "checkpoint")
    assert api.CheckpointState.load_checkpoint(tmp_path / "checkpoint").parameters


def test_gradient_nodes_name_the_option_that_adds_them() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Gradient", ["x"], ["d"], domain="ai.onnx.preview.training", xs=["x"], y="y"),
    ]
    x, d = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in ("x", "d"))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    data = helper.make_model(
        helper.make_graph(nodes, "graph", [x], [d]), opset_imports=imports
    ).SerializeToString()
    with pytest.raises(Exception, match="ORTRAIN_ARTIFACTS"):
        ortrain.InferenceSession(data)
