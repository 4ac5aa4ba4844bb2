"""Exports of networks that were never trained: what their exporters did to equal weights is undone.

The oracle is PyTorch: its losses of eight steps of SGD on all parameters. See ``tests/data/fresh``.
"""

from __future__ import annotations

import json
import logging
import lzma
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from ortrain.artifacts import ChangeKind, LossType

DATA = Path(__file__).parents[1] / "data" / "fresh"
CASES: dict[str, Any] = json.loads((DATA / "cases.json").read_text())

#: How many initializers hold all parameters, where they are fewer: an LSTM has its two biases in one.
INITIALIZERS = {"lstm_dyn": 11}
#: A table of sinusoids is a parameter that PyTorch does not train; no file says so.
FIXED = {"whisper_enc_ts": ["onnx::Add_268"]}
#: Batch normalization that was folded into a convolution cannot come back; see below.
EXACT = [name for name in CASES if not name.startswith("convbn")]


def model_of(name: str) -> onnx.ModelProto:
    return onnx.load_model_from_string(lzma.decompress((DATA / name / "model.onnx.xz").read_bytes()))


def make(model: onnx.ModelProto, folder: Path, **settings: Any) -> artifacts.ArtifactReport:
    return artifacts.generate_artifacts(
        model,
        loss=LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
        **settings,
    )


def batch_of(name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(DATA / name / "batch.npz") as batch:
        return batch["in_0"], batch["target"]


def losses_of(name: str, folder: Path) -> tuple[list[float], Module, CheckpointState]:
    """Train as PyTorch did."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(CASES[name]["rate"])
    losses = []
    for _ in CASES[name]["losses"]:
        losses.append(float(module(*batch_of(name))))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, module, state


@pytest.mark.parametrize("name", EXACT)
def test_all_parameters_are_trained_as_in_pytorch(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    before = model.SerializeToString()
    report = make(model, tmp_path, frozen_params=FIXED.get(name))
    assert model.SerializeToString() == before
    assert len(report.trained) == INITIALIZERS.get(name, len(CASES[name]["parameters"]))
    losses, module, state = losses_of(name, tmp_path)
    np.testing.assert_allclose(losses, CASES[name]["losses"], rtol=5e-6)

    module.eval()
    evaluated = float(module(*batch_of(name)))
    module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), [model.graph.output[0].name])
    session = onnxruntime.InferenceSession(tmp_path / "exported.onnx", providers=["CPUExecutionProvider"])
    values, target = batch_of(name)
    output = session.run(None, {model.graph.input[0].name: values})[0]
    assert float(np.mean((output - target) ** 2)) == pytest.approx(evaluated, rel=1e-5)
    exported = {tensor.name for tensor in onnx.load(tmp_path / "exported.onnx").graph.initializer}
    assert set(report.trained) <= exported == exported | {key for key, _ in state.parameters}


@pytest.mark.parametrize("name", FIXED)
def test_a_table_that_pytorch_keeps_fixed_hardly_matters(name: str, tmp_path: Path) -> None:
    assert set(FIXED[name]) < set(make(model_of(name), tmp_path).trained)
    np.testing.assert_allclose(losses_of(name, tmp_path)[0], CASES[name]["losses"], rtol=2e-4)


@pytest.mark.parametrize("name", [name for name in CASES if name.endswith("_dyn") and name in EXACT])
def test_parameters_have_the_names_of_the_network(name: str, tmp_path: Path) -> None:
    """Weights that the exporter transposed keep the names it gave them; all others have the network's."""
    trained = make(model_of(name), tmp_path).trained
    made_up = [key for key in trained if key.startswith(("val_", "add_"))]
    known = {*CASES[name]["parameters"], "m.lm_head.weight", "m.model.decoder.embed_tokens.weight"}
    shared = {
        "twice_dyn": {"n3.weight", "n3.bias"}
    }  # the newer exporter takes the last name of a shared parameter
    if name == "twicelayers_dyn":
        known |= {key.replace("ls.0", "ls.1") for key in known}
    assert set(trained) - set(made_up) <= known | shared.get(name, set())
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    for key, parameter in state.parameters:
        if "norm" in key and not key.startswith("add_"):
            unit = key.endswith("weight") and "grn" not in key
            np.testing.assert_array_equal(parameter.data, np.float32(unit), err_msg=key)


def test_the_report_says_what_was_separated_restored_and_shared(tmp_path: Path) -> None:
    report = make(model_of("bart_dyn"), tmp_path)
    separated = {c.initializer: c for c in report.changes if c.kind is ChangeKind.SEPARATED}
    scale = "m.model.encoder.layers.0.self_attn_layer_norm.weight"
    assert set(separated[scale].parameters) == {
        key
        for key in CASES["bart_dyn"]["parameters"]
        if key.endswith(("layer_norm.weight", "layernorm_embedding.weight"))
    }
    restored = {name for c in report.changes if c.kind is ChangeKind.RESTORED for name in c.parameters}
    assert restored == {"m.classification_head.dense.bias", "m.classification_head.out_proj.bias"}
    assert [weight.name for weight in report.shared] == ["m.model.decoder.embed_tokens.weight"]
    assert f"separated   {scale}: " in str(report)
    assert "now 12 parameters" in str(report)


#: A layer that is called several times is one layer; so is one with two names.
SHARED = {
    "twice_dyn": {"fc.weight": 3, "fc.bias": 3, "n3.weight": 2, "n3.bias": 2},
    "twice_ts": {"fc.weight": 3, "fc.bias": 3, "n1.weight": 2, "n1.bias": 2},
    "twicelayers_dyn": {"ls.1.0.weight": 2, "ls.1.0.bias": 2, "ls.1.1.weight": 2, "ls.1.1.bias": 2},
    "twicelayers_ts": {"ls.0.0.weight": 2, "ls.0.0.bias": 2, "ls.0.1.weight": 2, "ls.0.1.bias": 2},
    "tied_dyn": {"b.bias": 2, "k.weight": 2, "h.weight": 2, "val_0": 2},
    "tied_ts": {"a.bias": 2, "n.weight": 2, "e.weight": 2, "onnx::MatMul_18": 2},
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_parameters_stay_shared(name: str, tmp_path: Path) -> None:
    report = make(model_of(name), tmp_path)
    assert {weight.name: len(weight.nodes) for weight in report.shared} == SHARED[name]
    if name in CASES:
        assert len(report.trained) == len(CASES[name]["parameters"])
    else:
        assert len(report.trained) == 6  # of e, a and b, n and k, whose biases are two, and h


def simplified(model: onnx.ModelProto) -> onnx.ModelProto:
    """What tools make of a model of the older exporter: no Identity, and so no name of a merged parameter."""
    sources = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Identity"}
    kept = [
        onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node if n.op_type != "Identity"
    ]
    for node in kept:
        node.input[:] = [sources.get(name, name) for name in node.input]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def test_modules_tell_merged_parameters_apart_if_nothing_else_does(tmp_path: Path) -> None:
    report = make(simplified(model_of("twice_ts")), tmp_path)
    assert len(report.trained) == 8
    assert {weight.name for weight in report.shared} >= {"fc.weight", "fc.bias"}
    report = make(simplified(model_of("twice_ts")), tmp_path, untie=False)
    assert len(report.trained) == 4
    assert not report.changes


def test_a_user_decides_what_is_separated(tmp_path: Path) -> None:
    model = model_of("bart_dyn")
    assert len(make(model, tmp_path, untie=False).trained) == 42  # two biases of zeros come back
    some = make(model, tmp_path, untie=["*.fc1.bias"])
    assert [change.initializer for change in some.changes if change.kind is ChangeKind.SEPARATED] == [
        "m.model.encoder.layers.0.fc1.bias"
    ]
    assert len(some.trained) == 45
    parts = make(model_of("twice_dyn"), tmp_path, untie=["fc.weight"])
    assert [weight.name for weight in parts.shared if weight.name == "fc.weight"] == []
    with pytest.raises(ValueError, match="untie: the model has no floating-point initializer 'fc3'"):
        make(model, tmp_path, untie=["fc3"])
    with pytest.raises(TypeError, match="untie must be None, False or a list"):
        make(model, tmp_path, untie="fc1.bias")


def test_a_user_decides_what_is_tied(tmp_path: Path) -> None:
    model = model_of("gemma3_dyn")
    tied = make(model, tmp_path)
    (change,) = [change for change in tied.changes if change.kind is ChangeKind.TIED]
    assert (change.initializer, change.parameters) == ("val_443", ("m.lm_head.weight",))
    assert "the same parameter as m.lm_head.weight, transposed" in str(tied)
    apart = make(model, tmp_path, tie=False)
    assert set(apart.trained) - set(tied.trained) == {"val_443"}
    # The two layers start as copies: they are tied only on demand.
    copies = make(model_of("encoder_dyn"), tmp_path, tie=["val_0"])
    (change,) = [change for change in copies.changes if change.kind is ChangeKind.TIED]
    assert {change.initializer, *change.parameters} == {"val_0", "val_92"}
    with pytest.raises(ValueError, match="tie: the model has no floating-point initializer 'head'"):
        make(model, tmp_path, tie=["head"])


def test_names_of_the_file_mean_what_the_file_has(tmp_path: Path) -> None:
    """With requires_grad, the weights change only if a name asks for it."""
    name = "m.model.encoder.layers.0.fc1.bias"
    as_given = make(model_of("bart_dyn"), tmp_path, requires_grad=[name])
    assert as_given.trained == [name]
    assert not as_given.changes
    other = "m.model.encoder.layers.1.fc1.bias"
    report = make(model_of("bart_dyn"), tmp_path, requires_grad=[name, other])
    assert report.trained == [name, other]
    assert report.changes


def test_a_class_token_is_one_row_again(tmp_path: Path) -> None:
    report = make(model_of("deit_dyn"), tmp_path)
    tokens = {c.initializer: c.parameters for c in report.changes if c.kind is ChangeKind.UNREPEATED}
    assert list(tokens.values()) == [
        ("m.deit.embeddings.cls_token",),
        ("m.deit.embeddings.distillation_token",),
    ]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert state.parameters["m.deit.embeddings.cls_token"].data.shape == (1, 1, 32)


def recorded_model(
    nodes: list[onnx.NodeProto], weights: dict[str, NDArray[Any]], folded: dict[str, str]
) -> onnx.ModelProto:
    """A model from x [2, 4] to y with the newer exporter's record of parameters and folded values."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    lines = "".join(
        f"p_{n}: PARAMETER target='{name}'\n"
        for n, name in enumerate({*weights, *folded.values()} - {*folded})
    )
    graph.metadata_props.add(
        key="pkg.torch.export.ExportedProgram.graph_signature", value=f"\n# inputs\n{lines}"
    )
    for name, source in folded.items():
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, weights[name].shape)
        value.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=repr([source]))
        graph.value_info.append(value)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10, producer_name="pytorch"
    )


def test_rows_looked_up_several_times_are_trained_once(tmp_path: Path) -> None:
    """y = x + table[[1, 0]] of rows that are equal to those of [1, 0, 1]: the gradient of a row is the sum over its uses."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3, 4)).astype(np.float32)
    places = np.array([[2, 0, 2, 1], [0, 2, 2, 2]])
    nodes = [
        helper.make_node("Unsqueeze", ["x", "one"], ["u"]),
        helper.make_node("Mul", ["u", "index_3"], ["y"]),
    ]
    model = recorded_model(nodes, {"index_3": table[places]}, {"index_3": "m.table"})
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "one"))
    x, target = (rng.normal(size=shape).astype(np.float32) for shape in ((2, 4), (2, 4, 4)))
    report = make(model, tmp_path)
    assert report.trained == ["m.table.rows"]
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    loss = float(module(x, target))
    error = x[:, None] * table[places] - target
    assert loss == pytest.approx(float(np.mean(error**2)), rel=1e-5)
    expected = np.zeros_like(table)
    np.add.at(expected, places, 2 * error * x[:, None] / error.size)
    parameter = state.parameters["m.table.rows"]
    for row, gradient in zip(parameter.data, parameter.grad, strict=True):
        (number,) = np.flatnonzero((table == row).all(1))
        np.testing.assert_allclose(gradient, expected[number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "weights", "reason"),
    [
        ("convbn_dyn", ["a.0.weight", "b.0.weight", "c.0.weight"], "contains the batch normalization a.1"),
        (
            "convbn_ts",
            ["onnx::Conv_36", "onnx::Conv_39", "onnx::Conv_42"],
            "most likely a batch normalization was folded",
        ),
    ],
)
def test_folded_batch_normalization_is_a_warning(
    name: str, weights: list[str], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        report = make(model_of(name), tmp_path)
    assert [weight.name for weight in report.folded] == weights
    assert reason in report.folded[0].reason
    assert f"folded      {weights[0]}: " in str(report)
    (warning,) = [
        record.getMessage()
        for record in caplog.records
        if "folded" in record.getMessage() or "ortrain.torch" in record.getMessage()
    ]
    assert weights[0] in warning
    assert "ortrain.torch.export(module, args, path)" in warning
    assert len(report.trained) == 8  # the convolutions' biases are those of the normalizations


def test_computed_weights_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [
        helper.make_node("Mul", ["x", "m.mix"], ["a"]), helper.make_node("Mul", ["x", "sub_1"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]  # fmt: skip
    mix = np.linspace(0, 1, 4, dtype=np.float32)
    model = recorded_model(nodes, {"m.mix": mix, "sub_1": 1 - mix}, {"sub_1": "m.mix"})
    with caplog.at_level(logging.WARNING):
        report = make(model, tmp_path)
    (weight,) = report.folded
    assert (weight.name, weight.sources) == ("sub_1", ("m.mix",))
    assert weight.reason == "computed from m.mix by sub while exporting, and trained on its own"
    assert "sub_1" in caplog.text


def test_a_copy_of_a_parameter_is_no_warning(tmp_path: Path) -> None:
    """Gemma's scales are computed (1 + w); all other weights are transposed, or the parameters themselves."""
    report = make(model_of("gemma3_dyn"), tmp_path)
    assert {weight.name for weight in report.folded} == {
        name for name in report.trained if name.startswith("add_")
    }
    for name in ("qwen3_dyn", "bart_dyn", "t5enc_ts", "encoder_dyn", "lstm_dyn"):
        assert not make(model_of(name), tmp_path).folded
