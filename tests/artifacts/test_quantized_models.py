"""Weights of few bits: what NumPy decodes, what onnxruntime computes, and adapters that train beside them."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import ortrain
import pytest
from onnx import helper, numpy_helper
from ortrain import _graph, artifacts
from ortrain.artifacts import LoRA
from ortrain.cli import app
from training import Training

Array = np.ndarray[Any, Any]
VOCABULARY, WIDTH, CLASSES = 40, 64, 6
OPTIMIZED_BERT = pathlib.Path(__file__).parents[1] / "data" / "lora" / "bert_optimized.onnx"


def model_with(rng: np.random.Generator) -> onnx.ModelProto:
    """Embedding, a MatMul of transposed weights, a MatMul and a Gemm; the embedding is the output layer too."""
    weights = {
        "embed.weight": rng.normal(0, 1, (VOCABULARY, WIDTH)),
        "up.weight": rng.normal(0.5, 0.2, (80, WIDTH)),
        "down.weight": rng.normal(0, 0.2, (80, WIDTH)),
        "fc.weight": rng.normal(0, 0.3, (CLASSES, WIDTH)),
        "fc.bias": rng.normal(size=CLASSES),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["embed.weight", "ids"], ["x"], "embed"),
        node("Transpose", ["up.weight"], ["up_turned"], perm=[1, 0]),
        node("MatMul", ["x", "up_turned"], ["hidden"], "up"),
        node("Relu", ["hidden"], ["active"]),
        node("MatMul", ["active", "down.weight"], ["narrow"], "down"),
        node("Gemm", ["narrow", "fc.weight", "fc.bias"], ["scores"], "fc", transB=1),
        node("Transpose", ["embed.weight"], ["embed_turned"], perm=[1, 0]),
        node("MatMul", ["narrow", "embed_turned"], ["words"], "tied"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, ["n"])],
        [
            helper.make_tensor_value_info("scores", onnx.TensorProto.FLOAT, ["n", CLASSES]),
            helper.make_tensor_value_info("words", onnx.TensorProto.FLOAT, ["n", VOCABULARY]),
        ],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def decoded(model: onnx.ModelProto, node: onnx.NodeProto) -> Array:
    """The matrix of a node, one number after the other, as the operators are defined."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    names = [name for name in node.input if name in tensors]
    codes, scales = tensors[names[0]], tensors[names[1]]
    bits, block = attributes["bits"], attributes["block_size"]
    rows, per_byte = len(codes), 8 // bits
    columns = attributes.get("K", codes.size * per_byte // rows)
    zeros = tensors[names[2]].reshape(rows, -1) if len(names) > 2 else None
    codes, scales = codes.reshape(rows, -1), scales.reshape(rows, -1)
    matrix = np.zeros((rows, columns))
    for row in range(rows):
        for column in range(columns):
            place = column // block
            code = codes[row, column // per_byte] >> column % per_byte * bits & 2**bits - 1
            zero = 2 ** (bits - 1)
            if zeros is not None:
                zero = zeros[row, place // per_byte] >> place % per_byte * bits & 2**bits - 1
            matrix[row, column] = (int(code) - int(zero)) * scales[row, place]
    return matrix


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [True, False])
def test_onnxruntime_computes_with_the_weights_that_numpy_decodes(
    bits: int, zero_points: bool, tmp_path: pathlib.Path
) -> None:
    model = model_with(np.random.default_rng(0))
    done = artifacts.quantize_weights(
        model, tmp_path / "small.onnx", bits=bits, block_size=16, zero_points=zero_points, embeddings=True
    )
    small = onnx.load(tmp_path / "small.onnx")
    nodes = {node.name: node for node in small.graph.node}
    kinds = {
        name: node.op_type for name, node in nodes.items() if name in ("embed", "up", "down", "fc", "tied")
    }
    assert kinds == {
        "embed": "GatherBlockQuantized", "up": "MatMulNBits", "down": "MatMulNBits", "fc": "MatMulNBits",
        "tied": "MatMulNBits",
    }  # fmt: skip
    exact = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    given = {"embed": exact["embed.weight"], "up": exact["up.weight"], "down": exact["down.weight"].T}
    given |= {"fc": exact["fc.weight"], "tied": exact["embed.weight"]}
    found = {name: decoded(small, nodes[name]) for name in given}
    for layer, name in zip(done.layers, given, strict=True):
        difference = found[name] - given[name]
        assert layer.error == pytest.approx(
            np.linalg.norm(difference) / np.linalg.norm(given[name]), rel=1e-4
        )
        assert layer.largest == pytest.approx(np.abs(difference).max(), rel=1e-4)
        # Half a step, and with zero points half a step more, where the zero point was rounded.
        step = 16 / 15 * np.ptp(given[name]) / 2**bits
        assert 0 < layer.largest <= step
        assert layer.error < (0.15 if bits == 4 else 0.01)
    ids = np.arange(VOCABULARY)
    narrow = np.maximum(found["embed"][ids] @ found["up"].T, 0) @ found["down"].T
    expected = [narrow @ found["fc"].T + exact["fc.bias"], narrow @ found["tied"].T]
    results = onnxruntime.InferenceSession(tmp_path / "small.onnx").run(None, {"ids": ids})
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    assert "embed.weight" not in {tensor.name for tensor in small.graph.initializer}


def test_zero_points_help_where_weights_are_not_around_zero() -> None:
    model = model_with(np.random.default_rng(0))
    errors = [
        {layer.module: layer.error for layer in artifacts.quantize_weights(model, zero_points=choice).layers}
        for choice in (True, False)
    ]
    assert errors[0]["up"] < 0.8 * errors[1]["up"]


def test_layers_are_skipped_on_request_and_with_a_reason() -> None:
    model = model_with(np.random.default_rng(0))
    done = artifacts.quantize_weights(model, skip=["fc", "*own"])
    assert [layer.module for layer in done.layers] == ["up", "embed"]
    assert done.skipped == (
        "embed (Gather): it is an embedding",
        "down (MatMul): named in skip",
        "fc (Gemm): named in skip",
    )
    with pytest.raises(
        ValueError, match=r"skip: 'lm_head' fits no layer .*; there are embed, up, down, fc, embed"
    ):
        artifacts.quantize_weights(model, skip=["lm_head"])
    with pytest.raises(ValueError, match="block_size: expected a power of two of at least 16, found 24"):
        artifacts.quantize_weights(model, block_size=24)
    model.graph.initializer[1].CopyFrom(
        numpy_helper.from_array(np.full((80, WIDTH), np.nan, np.float32), "up.weight")
    )
    with pytest.raises(ValueError, match=r"cannot quantize 'up\.weight': it has numbers that are not finite"):
        artifacts.quantize_weights(model)


def test_adapters_train_on_a_quantized_model_and_are_merged_into_its_codes(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    onnx.save(model_with(rng), tmp_path / "model.onnx")
    assert app.main(["quantize", str(tmp_path / "model.onnx"), "--bits", "8"]) == 0
    printed = capsys.readouterr().out
    assert "up (MatMul [80, 64]): error 0." in printed
    assert printed.endswith(f"wrote {tmp_path / 'model.q8.onnx'}\n")
    report = artifacts.generate_artifacts(
        tmp_path / "model.q8.onnx",
        adapter=LoRA(r=2),  # beside all layers but those that compute outputs
        loss=artifacts.LossType.CrossEntropyLoss,
        loss_input_names=["scores"],
        artifact_directory=tmp_path / "adapted",
    )
    assert report.adapters is not None
    assert [layer.module for layer in report.adapters.layers] == ["up", "down"]
    training = Training(tmp_path / "adapted")
    training.optimizer.set_learning_rate(0.02)
    ids, labels = np.arange(VOCABULARY), rng.integers(0, CLASSES, VOCABULARY)
    losses = [training.step(ids, labels) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]

    file = tmp_path / "trained.onnx"
    training.module.export_model_for_inferencing(str(file), ["scores"])
    done = artifacts.requantized(file)
    adapted = onnx.load(file)
    nodes = {node.name: node for node in adapted.graph.node}
    merged = {node.name: node for node in done.model.graph.node}
    values = training.parameters()
    for layer in done.layers:
        a, b = (values[f"{layer.module}.lora_{letter}.weight"].astype(np.float64) for letter in "AB")
        exact = decoded(adapted, nodes[layer.module]) + 2 / 2 * 8 * b @ a
        difference = decoded(done.model, merged[layer.module]) - exact
        assert layer.error == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(exact), rel=1e-3)
        assert layer.error < 0.01
    onnx.save(done.model, tmp_path / "merged.onnx")
    before, after = (
        onnxruntime.InferenceSession(path).run(["scores"], {"ids": ids})[0]
        for path in (file, tmp_path / "merged.onnx")
    )
    assert not any("lora" in tensor.name for tensor in done.model.graph.initializer)
    assert np.abs(after - before).max() < 0.05 * np.abs(before).max()
    with pytest.raises(
        ValueError, match="cannot merge the adapter of up: expected weights in an initializer of float"
    ):
        artifacts.merged(file)


def test_magnitudes_are_trained_beside_quantized_weights(tmp_path: pathlib.Path) -> None:
    """DoRA by its formula, in double precision: each row of W + s B A gets the norm that was trained."""
    rng = np.random.default_rng(2)
    small = artifacts.quantize_weights(model_with(rng), block_size=16).model
    report = artifacts.generate_artifacts(
        small,
        adapter=LoRA(r=3, alpha=6, targets=["down", "fc"], use_dora=True),
        loss=artifacts.LossType.CrossEntropyLoss,
        loss_input_names=["scores"],
        artifact_directory=tmp_path,
    )
    assert [name.rpartition(".")[2] for name in report.trained].count("lora_magnitude_vector") == 2
    training, ids = Training(tmp_path), np.arange(VOCABULARY)
    labels = rng.integers(0, CLASSES, VOCABULARY)
    exact = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in small.graph.initializer}
    matrices = {node.name: decoded(small, node) for node in small.graph.node if node.op_type == "MatMulNBits"}

    def loss() -> float:
        values = {name: value.astype(np.float64) for name, value in training.parameters().items()}
        x = np.maximum(exact["embed.weight"] @ matrices["up"].T, 0)
        for name in ("down", "fc"):
            changed = matrices[name] + 2 * values[f"{name}.lora_B.weight"] @ values[f"{name}.lora_A.weight"]
            norms = np.linalg.norm(changed, axis=1, keepdims=True)
            x = x @ (values[f"{name}.lora_magnitude_vector"][:, None] * changed / norms).T
        x = x + exact["fc.bias"]
        return float((np.log(np.exp(x).sum(1)) - x[ids, labels]).mean())

    training.optimizer.set_learning_rate(0.01)
    losses = []
    for _ in range(6):
        losses.append(loss())
        assert training.step(ids, labels) == pytest.approx(losses[-1], rel=1e-4)
    assert losses[-1] < losses[0]


def bert_batch() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 60, (3, 10))
    seen = np.ones_like(ids)
    seen[1, 7:] = 0
    return {"input_ids": ids, "attention_mask": seen, "token_type_ids": rng.integers(0, 2, (3, 10))}


def output_of(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Array = session.run(None, inputs)[0]
    return found


def test_weights_of_fused_attention_are_quantized(tmp_path: pathlib.Path) -> None:
    float_model = onnx.load(OPTIMIZED_BERT)
    done = artifacts.quantize_weights(float_model, tmp_path / "q.onnx", bits=8, block_size=16)
    assert [layer.shape for layer in done.layers if layer.operator == "Attention"] == [(24, 72)] * 2
    operators = [node.op_type for node in done.model.graph.node]
    assert "Attention" not in operators
    assert operators.count("MatMulNBits") == 10
    kept = {tensor.name for tensor in done.model.graph.initializer}
    assert not kept & {"Attention_0_qkv_weight", "Attention_1_qkv_weight"}
    exact, found = (output_of(model, bert_batch()) for model in (float_model, onnx.load(tmp_path / "q.onnx")))
    np.testing.assert_allclose(found, exact, rtol=0, atol=0.02 * np.abs(exact).max())
    # The next thing that its user does.
    report = artifacts.generate_artifacts(
        tmp_path / "q.onnx",
        adapter=LoRA(r=2),
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    assert len(report.adapters.layers) == 9  # all but the classifier
    training = Training(tmp_path)
    training.optimizer.set_learning_rate(1e-2)
    target = np.array([0, 2, 1])
    losses = [training.step(*bert_batch().values(), target) for _ in range(8)]
    assert losses[-1] < losses[0]


def test_skipped_fused_nodes_stay_as_they_are() -> None:
    float_model = onnx.load(OPTIMIZED_BERT)
    done = artifacts.quantize_weights(float_model, bits=8, block_size=16, skip=["Attention_0"])
    before = {node.name: node for node in float_model.graph.node}
    left = [node for node in done.model.graph.node if node.op_type == "Attention"]
    assert left == [before["Attention_0"]]
    assert "layers.0 (Attention): named in skip" in done.skipped
    assert sum(layer.operator == "Attention" for layer in done.layers) == 1


@pytest.mark.parametrize("embeddings", [False, True])
def test_fused_embeddings_are_quantized_on_request(embeddings: bool) -> None:
    rng = np.random.default_rng(1)
    tables = {name: rng.normal(size=(12, 32)).astype(np.float32) for name in ("words", "places", "kinds")}
    scale = {"scale": np.ones(32, np.float32), "shift": np.zeros(32, np.float32)}
    weight = {"fc": rng.normal(size=(32, 4)).astype(np.float32)}
    nodes = [
        helper.make_node(
            "EmbedLayerNormalization",
            ["ids", "kind", "words", "places", "kinds", "scale", "shift"],
            ["x", "mask"],
            "embed",
            domain="com.microsoft",
        ),
        helper.make_node("MatMul", ["x", "fc"], ["y"], "fc"),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, onnx.TensorProto.INT32, ["n", 5]) for name in ("ids", "kind")],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5, 4])],
        [numpy_helper.from_array(value, name) for name, value in (tables | scale | weight).items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    done = artifacts.quantize_weights(model, bits=8, block_size=16, embeddings=embeddings)
    assert len(done.layers) == (4 if embeddings else 1)
    operators = [node.op_type for node in done.model.graph.node]
    assert operators.count("EmbedLayerNormalization") == (not embeddings)
    assert operators.count("GatherBlockQuantized") == (3 if embeddings else 0)
    inputs = {"ids": rng.integers(0, 12, (3, 5), np.int32), "kind": rng.integers(0, 12, (3, 5), np.int32)}
    exact = output_of(model, inputs)
    session = ortrain.InferenceSession(done.model.SerializeToString())
    np.testing.assert_allclose(session.run(None, inputs)[0], exact, rtol=0, atol=0.02 * np.abs(exact).max())


@pytest.mark.parametrize("case", ["distilbert", "vit"])
@pytest.mark.parametrize("bits", [4, 8])
def test_adapters_train_on_a_quantized_model_that_declares_no_shapes(
    case: str, bits: int, tmp_path: pathlib.Path
) -> None:
    """PyTorch's older exporter declares no shapes of values inside the graph."""
    folder = pathlib.Path(__file__).parents[1] / "models" / "data" / case
    model = onnx.load(folder / "torchscript_17.onnx")
    del model.graph.value_info[:]
    quantized = artifacts.quantize_weights(model, bits=bits, embeddings=True).model
    report = artifacts.generate_artifacts(
        quantized, adapter=LoRA(r=2), loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    assert report.adapters is not None
    assert any("NBits" in str(layer) for layer in report.adapters.layers)
    assert report.trained


def test_the_rows_of_a_quantized_table_have_a_shape() -> None:
    quantized = artifacts.quantize_weights(model_with(np.random.default_rng(3)), embeddings=True).model
    _graph.infer_shapes(quantized)
    gather = next(node for node in quantized.graph.node if node.op_type == "GatherBlockQuantized")
    found = _graph.find_value_info(quantized, gather.output[0])
    assert found is not None
    assert [dim.dim_param or dim.dim_value for dim in found.type.tensor_type.shape.dim] == ["n", WIDTH]


@pytest.mark.parametrize(("size", "least", "most"), [(1e-3, -0.1, 0.3), (1.0, 0.9, 1.1)])
def test_the_report_says_how_much_of_the_training_is_left(
    size: float, least: float, most: float, tmp_path: pathlib.Path
) -> None:
    """Rounding removes small changes, although the error of the weights is small then too."""
    rng = np.random.default_rng(0)
    weight = numpy_helper.from_array(rng.normal(size=(64, 32)).astype(np.float32), "fc.weight")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "fc.weight"], ["y"], "fc")],
        "graph",
        [helper.make_tensor_value_info("x", 1, ["n", 64])],
        [helper.make_tensor_value_info("y", 1, ["n", 32])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    base = artifacts.quantize_weights(model, bits=4).model
    values = {
        "fc.lora_A.weight": (size * rng.normal(size=(2, 64))).astype(np.float32),
        "fc.lora_B.weight": rng.normal(size=(32, 2)).astype(np.float32),
    }
    artifacts.generate_artifacts(
        base, adapter=LoRA(r=2, alpha=2, targets="fc", values=values), loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )  # fmt: skip
    training, file = Training(tmp_path), tmp_path / "inside.onnx"
    training.module.export_model_for_inferencing(str(file), ["y"])
    done = artifacts.requantized(file)
    kept = done.layers[0].kept
    assert kept is not None
    assert least < kept < most
    assert done.kept == pytest.approx(kept)
    assert ("keep the adapters instead (--adapters inside or apart)" in str(done)) == (most < 1)
    assert "training changed the weights by" in str(done)
