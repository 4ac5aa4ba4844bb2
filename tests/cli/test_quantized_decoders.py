"""Language models that onnxruntime's tools quantized are trained, with weights of eight and of four bits."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from ortrain import InferenceSession, Trainer, artifacts
from ortrain.artifacts.graph.packed_tables import pack_tables
from small_language_model import prompts, write_lines, write_tokenizer

DECODERS = Path(__file__).parents[1] / "data" / "decoders"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with facts.jsonl and a tokenizer."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "facts.jsonl", prompts())
    write_tokenizer(tmp_path / "small")
    return tmp_path


def feeds_of(session):
    ids = np.random.default_rng(3).integers(0, 300, (2, 9))
    values = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(9), (2, 1)),
    }
    return {value.name: values[value.name] for value in session.get_inputs()}


def trained_and_exported(run, *options):
    """What a trained model and its export with adapters inside compute in this library and in onnxruntime."""
    run("train", "small", "--data", "facts.jsonl", "--epochs", "3", "--lr", "0.02", *options)
    run("export", "artifacts", "trained.onnx")
    session = onnxruntime.InferenceSession("trained.onnx")
    feeds = feeds_of(session)
    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt", outputs=["logits"])
    found = trainer.predict(tuple(feeds[form.name] for form in trainer.inputs.forms[:-1]))
    return found, session.run(["logits"], feeds)[0]


@pytest.mark.parametrize(
    ("kind", "per_channel", "adapter"), [(QuantType.QInt8, False, "lora"), (QuantType.QUInt8, True, "dora")]
)
def test_products_with_quantized_inputs_get_adapters(kind, per_channel, adapter, folder, run):
    """The adapters lie beside layers that compute what the quantized model computes."""
    pytest.importorskip("safetensors")
    given = folder / "small" / "model.onnx"
    artifacts.without_cache(DECODERS / "llama.onnx", folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", given, weight_type=kind, per_channel=per_channel)
    operators = Counter(node.op_type for node in onnx.load(given).graph.node)
    assert operators["MatMulInteger"] == 15
    found, expected = trained_and_exported(run, "--adapter", adapter)
    written = Counter(node.op_type for node in onnx.load("trained.onnx").graph.node)
    assert (written["DynamicQuantizeMatMul"], written["MatMulInteger"]) == (15, 0)
    assert written["DynamicQuantizeLinear"] == 0
    np.testing.assert_allclose(found, expected, atol=0.02)  # roundings of halves may differ by a step
    session = onnxruntime.InferenceSession(given)
    before = session.run(["logits"], feeds_of(session))[0]
    assert np.abs(before - expected).max() > 0.1

    # The sums, in codes again, change the scores as the adapters do.
    run("export", "artifacts", "whole.onnx", "--adapters", "requantized", "--into", given)
    whole = onnxruntime.InferenceSession("whole.onnx").run(["logits"], feeds_of(session))[0]
    assert not any("lora" in node.name for node in onnx.load("whole.onnx").graph.node)
    assert np.linalg.norm(whole - expected) < 0.3 * np.linalg.norm(before - expected)
    if adapter == "dora":  # the norms of the rows were trained too
        return

    # Without the adapters, the nodes compute what the given nodes computed.
    loaded = onnx.load("trained.onnx")
    for tensor in loaded.graph.initializer:
        if "lora_B" in tensor.name:
            tensor.CopyFrom(numpy_helper.from_array(np.zeros(tensor.dims, np.float32), tensor.name))
    base = onnxruntime.InferenceSession(loaded.SerializeToString())
    np.testing.assert_allclose(base.run(["logits"], feeds_of(base))[0], before, atol=1e-5)


def test_a_value_inside_a_product_that_is_an_output_stays(folder):
    artifacts.without_cache(DECODERS / "llama.onnx", folder / "plain.onnx")
    quantize_dynamic(folder / "plain.onnx", folder / "model.onnx")
    model = onnx.load(folder / "model.onnx")
    product = next(node for node in model.graph.node if node.op_type == "MatMulInteger")
    model.graph.output.append(helper.make_tensor_value_info(product.output[0], TensorProto.INT32, None))
    with pytest.raises(ValueError, match="its input is quantized"):
        artifacts.generate_artifacts(
            model, adapter=artifacts.LoRA(targets=product.name), artifact_directory=folder
        )


def table_model(kind, has_zeros, columns):
    """Rows of a table of four-bit integers, as onnxruntime's tool writes it."""
    rng = np.random.default_rng(4)
    element = {ml_dtypes.int4: (-8, 8), ml_dtypes.uint4: (0, 16)}[kind]
    blocks = -(-columns // 16)
    tensors = [
        numpy_helper.from_array(rng.integers(*element, (6, columns)).astype(kind), "table"),
        numpy_helper.from_array(rng.normal(size=(6, blocks)).astype(np.float32), "scales"),
    ]
    if has_zeros:
        tensors.append(numpy_helper.from_array(rng.integers(*element, (6, blocks)).astype(kind), "zeros"))
    inputs = ["table", "ids", *(tensor.name for tensor in tensors[1:])]
    settings = {"block_size": 16, "gather_axis": 0, "quantize_axis": 1}
    node = helper.make_node(
        "GatherBlockQuantized", inputs, ["rows"], "look_up", domain="com.microsoft", **settings
    )
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", columns])],
        tensors,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("columns", [32, 48])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4])
def test_packed_tables_have_the_same_rows(kind, has_zeros, columns):
    model = table_model(kind, has_zeros, columns)
    second = model.graph.node.add()  # a second node with the same table
    second.CopyFrom(model.graph.node[0])
    second.name, second.output[0] = "look_up_again", "again"
    model.graph.output.append(helper.make_tensor_value_info("again", TensorProto.FLOAT, ["n", columns]))
    ids = {"ids": np.arange(6)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, ids)
    pack_tables(model)
    assert model.graph.initializer[0].data_type == TensorProto.UINT8
    for session in (InferenceSession, onnxruntime.InferenceSession):
        found = session(model.SerializeToString()).run(None, ids)
        np.testing.assert_array_equal(found, expected)


def test_a_model_with_a_table_of_four_bits_is_trained_and_writes_text(folder, run):
    pytest.importorskip("safetensors")
    model = artifacts.without_cache(DECODERS / "llama.onnx")
    name = next(tensor.name for tensor in model.graph.initializer if "embed_tokens" in tensor.name)
    table = next(tensor for tensor in model.graph.initializer if tensor.name == name)
    given = numpy_helper.to_array(table)
    scales = np.abs(given).max(axis=1, keepdims=True) / 7
    codes = np.clip(np.round(given / scales), -8, 7).astype(ml_dtypes.int4)
    table.CopyFrom(numpy_helper.from_array(codes, name))
    model.graph.initializer.append(numpy_helper.from_array(scales.astype(np.float32), "table_scales"))
    look_up = next(node for node in model.graph.node if name in node.input)
    settings = {"block_size": 32, "gather_axis": 0, "quantize_axis": 1, "bits": 4}
    look_up.CopyFrom(
        helper.make_node(
            "GatherBlockQuantized",
            [*look_up.input, "table_scales"],
            look_up.output,
            look_up.name,
            domain="com.microsoft",
            **settings,
        )
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, folder / "small" / "model.onnx")
    asked = ("--prompt", "The capital of Peru is", "--max-tokens", "3", "--json")
    assert run("generate", "small", *asked).json
    found, expected = trained_and_exported(run, "--adapter", "lora")
    np.testing.assert_allclose(found, expected, atol=5e-6)
    shutil.rmtree("artifacts")
    found, expected = trained_and_exported(run, "--adapter", "none")
    np.testing.assert_allclose(found, expected, atol=5e-6)


def test_adapters_are_merged_into_weights_of_four_bits_or_not_at_all(folder, run):
    artifacts.without_cache(DECODERS / "llama.onnx", folder / "small" / "model.onnx")
    run("train", "small", "--data", "facts.jsonl", "--adapter", "lora", "--bits", "4")
    export = ("export", "artifacts", "trained.onnx", "--adapters", "merged")
    said = run(*export, status=1).err
    assert "`requantized` merges into such weights, and `dequantized` turns them into float numbers" in said
    assert not Path("trained.onnx").exists()
    run(*export[:-1], "requantized")
    before = Path("trained.onnx").read_bytes()
    run(*export, status=1)
    assert Path("trained.onnx").read_bytes() == before
    # The same weights as float numbers.
    run("export", "artifacts", "inside.onnx")
    run(*export[:-1], "dequantized")
    codes = [node.name for node in onnx.load("trained.onnx").graph.node if node.op_type == "MatMulNBits"]
    assert codes == ["/lm_head/MatMul"]  # which has no adapter
    feeds = feeds_of(onnxruntime.InferenceSession("inside.onnx"))
    inside, merged = (
        onnxruntime.InferenceSession(name).run(["logits"], feeds)[0]
        for name in ("inside.onnx", "trained.onnx")
    )
    np.testing.assert_allclose(merged, inside, rtol=0, atol=1e-4 * np.abs(inside).max())
