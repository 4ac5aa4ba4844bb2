"""``batch="dynamic"``: models that were exported with a fixed batch size take batches of any size.

The oracle is onnxruntime: each row of the result equals that of the exported model, which gets the same row in a batch of the
size that it has.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain.artifacts.graph.dynamic_batch import fixed_batch, with_dynamic_batch
from ortrain.artifacts.loading import load
from ortrain.cli.app import main
from training import Training

DATA = Path(__file__).parents[1] / "data"
FIXED = DATA / "fixed_batch"
EXPORTS = DATA / "exports"

# The file, the highest token number, and how many elements of a row are random.
CONVERTED = {
    "llama": FIXED / "llama_b2_dynamo.onnx",  # two rows and two heads
    "vit": FIXED / "vit_b1_torchscript.onnx",  # one row, and attention with the sequence before the batch
    "lstm": FIXED / "lstm_b2_dynamo.onnx",  # initial states for two rows
    "gru": FIXED / "gru_b4_torchscript.onnx",  # the same in single steps
    "gemma2": EXPORTS / "hf_gemma2__dyn20" / "model.onnx",  # a table with the numbers of the rows
    "deberta": EXPORTS / "hf_deberta_v2__dynp20" / "model.onnx",  # a table for rows times heads
    "olmo2": EXPORTS / "hf_olmo2__tst17" / "model.onnx",
    "vitdet": EXPORTS / "hf_vitdet__dyn20" / "model.onnx",  # rows times windows
}
REFUSED = {
    "distilbert": (FIXED / "distilbert_b2_dynamo.onnx", "node_add", "embedding_1"),  # positions times two
    "clip": (
        EXPORTS / "hf_clip_vision__dyn20" / "model.onnx",
        "node_cat",
        "expand",
    ),  # a class token times two
}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of a model in inference mode, whose random weights are its own."""
    inference = onnx.ModelProto.FromString(model.SerializeToString())
    set_evaluation_mode(inference)
    return onnxruntime.InferenceSession(inference.SerializeToString(), providers=["CPUExecutionProvider"])


def random_rows(model: onnx.ModelProto, rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    stored = {tensor.name for tensor in model.graph.initializer}
    feed = {}
    for value in model.graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = [rows, *(dim.dim_value for dim in tensor.shape.dim[1:])]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        integers = rng.integers(0, 2 if "mask" in value.name else 40, shape)
        if "mask" in value.name:
            integers[:, 0] = 1
        feed[value.name] = (
            integers.astype(dtype) if dtype.kind in "iub" else rng.normal(size=shape).astype(dtype)
        )
    return feed


@pytest.mark.parametrize("name", CONVERTED)
def test_each_row_has_the_result_of_the_exported_model(name: str) -> None:
    model, _ = load(str(CONVERTED[name]))
    size = fixed_batch(model)[1]
    changed = with_dynamic_batch(model)
    onnx.checker.check_model(changed, full_check=True)
    assert [value.type.tensor_type.shape.dim[0].dim_param for value in changed.graph.output] == ["batch"]
    given, found = session(model), session(changed)
    for rows in (1, 2, 3, 5, 8):
        feed = random_rows(model, rows, seed=rows)
        padded = {
            key: np.resize(value, (-(-rows // size) * size, *value.shape[1:])) for key, value in feed.items()
        }
        parts = [
            given.run(None, {key: value[start : start + size] for key, value in padded.items()})[0]
            for start in range(0, rows, size)
        ]
        np.testing.assert_allclose(
            found.run(None, feed)[0], np.concatenate(parts)[:rows], rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", ["llama", "lstm", "vitdet"])
def test_gradients_of_a_large_batch_are_the_mean_of_those_of_its_parts(name: str, tmp_path: Path) -> None:
    model, _ = load(str(CONVERTED[name]))
    size = fixed_batch(model)[1]
    feed = random_rows(model, 2 * size)
    score = session(model).run(None, {key: value[:size] for key, value in feed.items()})[0]
    target = np.random.default_rng(1).normal(size=(2 * size, *score.shape[1:])).astype(np.float32)
    gradients = []
    for batch, parts in (("dynamic", [slice(None)]), (None, [slice(0, size), slice(size, None)])):
        folder = tmp_path / str(batch)
        report = artifacts.generate_artifacts(
            str(CONVERTED[name]),
            loss=artifacts.LossType.MSELoss,
            optimizer=artifacts.OptimType.SGD,
            artifact_directory=folder,
            batch=batch,
        )
        assert (report.fixed_batch is None) == (batch == "dynamic")
        training = Training(folder)
        found = []
        for part in parts:
            training.module.lazy_reset_grad()
            training.loss(*(value[part] for value in feed.values()), target[part])
            found.append(training.gradients())
        gradients.append({key: np.mean([g[key] for g in found], axis=0) for key in found[0]})
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        np.testing.assert_allclose(gradient, gradients[1][key], rtol=1e-3, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_that_are_stored_for_each_row_are_refused(name: str) -> None:
    path, node, weight = REFUSED[name]
    with pytest.raises(
        ValueError,
        match=f"node '{node}'.*Stored for 2 rows: '{weight}'.*export the model with a dynamic batch",
    ):
        with_dynamic_batch(load(str(path))[0])


def fixed(
    nodes: list[onnx.NodeProto], shape: list[int], result: list[int], **weights: np.ndarray
) -> onnx.ModelProto:
    """Return a model of nodes from ``x`` to ``y`` with fixed shapes."""
    return helper.make_model(
        helper.make_graph(
            nodes,
            "fixed",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, result)],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


WEIGHT = np.random.default_rng(2).normal(size=(6, 6)).astype(np.float32)


def shape_of(*dims: int) -> np.ndarray:
    return np.array(dims, np.int64)


def check_rows(model: onnx.ModelProto, size: int) -> None:
    changed, given = session(with_dynamic_batch(model)), session(model)
    feed = random_rows(model, 5)["x"]
    rows = [given.run(None, {"x": np.repeat(row[None], size, 0)})[0][:1] for row in feed]
    np.testing.assert_allclose(changed.run(None, {"x": feed})[0], np.concatenate(rows), rtol=1e-4, atol=1e-6)


def test_dimensions_with_the_extent_of_the_batch_are_not_taken_for_it() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),  # [2, 2, 6]
        helper.make_node("Reshape", ["a", "heads"], ["b"]),  # [2, 2, 2, 3]
        helper.make_node("Transpose", ["b"], ["c"], perm=[2, 0, 1, 3]),  # heads, batch, sequence, 3
        helper.make_node("Reshape", ["c", "merged"], ["d"]),  # heads x batch, sequence x 3
        helper.make_node("Tanh", ["d"], ["e"]),
        helper.make_node("Reshape", ["e", "apart"], ["f"]),
        helper.make_node("Transpose", ["f"], ["g"], perm=[1, 2, 0, 3]),
        helper.make_node("Reshape", ["g", "joined"], ["h"]),
        helper.make_node("Add", ["h", "position"], ["y"]),
    ]
    model = fixed(
        nodes, [2, 2, 6], [2, 2, 6], w=WEIGHT, heads=shape_of(2, 2, 2, 3), merged=shape_of(4, 6), apart=shape_of(2, 2, 2, 3),
        joined=shape_of(2, 2, 6), position=WEIGHT[None, :2],
    )  # fmt: skip
    check_rows(model, 2)


def test_a_softmax_over_the_batch_is_refused_with_its_node() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Softmax", ["a"], ["y"], name="over_rows", axis=0),
    ]
    with pytest.raises(
        ValueError, match=r"node 'over_rows' \(Softmax\) its result 'y' is not computed row by row"
    ):
        with_dynamic_batch(fixed(nodes, [2, 6], [2, 6], w=WEIGHT))


def test_weights_of_zero_do_not_hide_that_rows_are_mixed() -> None:
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="over_rows", axis=0),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["x", "b"], ["y"]),
    ]
    with pytest.raises(ValueError, match="over_rows"):
        with_dynamic_batch(fixed(nodes, [2, 6], [2, 6], w=np.zeros_like(WEIGHT)))


def test_a_weight_with_a_row_for_each_row_of_the_batch_is_refused() -> None:
    model = fixed([helper.make_node("Add", ["x", "w"], ["y"], name="add")], [6, 6], [6, 6], w=WEIGHT)
    with pytest.raises(ValueError, match=r"node 'add' \(Add\).*Stored for 6 rows: 'w' \[6, 6\]"):
        with_dynamic_batch(model)


def test_a_model_whose_batch_is_not_the_first_dimension_is_refused() -> None:
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["a"], name="over_time", axes=[0], keepdims=0),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    with pytest.raises(ValueError, match="over_time"):
        with_dynamic_batch(fixed(nodes, [5, 2, 6], [2, 6], w=WEIGHT))


def test_a_model_that_runs_for_certain_inputs_only_is_refused() -> None:
    """The classifier of BART takes the last end token of each row."""
    model = onnx.load_model_from_string(lzma.decompress((DATA / "fresh/bart_dyn/model.onnx.xz").read_bytes()))
    with pytest.raises(
        ValueError, match=r"does not run on random inputs: .*Gather.*Remedy: export the model with"
    ):
        with_dynamic_batch(model)


def test_a_model_with_a_free_batch_is_returned_as_it_is() -> None:
    model = fixed([helper.make_node("MatMul", ["x", "w"], ["y"])], [2, 6], [2, 6], w=WEIGHT)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    assert with_dynamic_batch(model) is model


def test_the_report_and_the_command_say_that_the_batch_is_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(CONVERTED["lstm"])
    report = artifacts.generate_artifacts(
        path, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory="a"
    )
    assert report.fixed_batch == ("tokens", 2)
    assert "every step takes exactly 2 rows" in str(report)
    assert main(["artifacts", path, "--loss", "cross_entropy", "--out", "b"]) == 0
    assert "every step takes exactly 2 rows" in capsys.readouterr().out
    assert main(["artifacts", path, "--loss", "cross_entropy", "--out", "c", "--batch", "dynamic"]) == 0
    assert "every step takes" not in capsys.readouterr().out
    np.savez("d.npz", tokens=np.arange(70).reshape(7, 10) % 30, labels=np.arange(7) % 4)
    assert main(["train", "c", "--data", "d.npz", "--batch", "5"]) == 0
