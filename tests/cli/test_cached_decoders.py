"""Decoders that were exported for generation, with a key-value cache, are trained and get their weights back."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from exported import check_valid
from onnx import TensorProto, helper, numpy_helper
from ortrain import Trainer, artifacts
from small_language_model import prompts, write_lines, write_tokenizer

DECODERS = Path(__file__).parents[1] / "data" / "decoders"
NAMES = ("gemma3", "gemma3_fused", "gpt2", "llama", "llama_fused")
TOKENS = 9


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with facts.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "facts.jsonl", prompts())
    return tmp_path


def write_decoder(folder, name):
    write_tokenizer(folder / name)
    shutil.copy(DECODERS / f"{name}.onnx", folder / name / "model.onnx")
    return folder / name / "model.onnx"


def fed(session, ids):
    """What a model takes for a text, without earlier keys and values."""
    rows, tokens = ids.shape
    values = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.tile(np.arange(tokens), (rows, 1)),
    }
    return {value.name: values[value.name] for value in session.get_inputs() if value.name in values}


def scores_with_cache(model, ids, adapter=None):
    """The scores that stock onnxruntime computes, one token at a time."""
    session = onnxruntime.InferenceSession(model)
    options = onnxruntime.RunOptions()
    if adapter is not None:
        loaded = onnxruntime.LoraAdapter()
        loaded.Load(adapter)
        options.add_active_adapter(loaded)
    rows = len(ids)
    cache = {
        value.name: np.zeros((rows, value.shape[1], 0, value.shape[3]), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    assert cache
    outputs = [value.name for value in session.get_outputs()]
    scores = []
    for place in range(ids.shape[1]):
        feed = fed(session, ids[:, place : place + 1]) | cache
        if "attention_mask" in feed:
            feed["attention_mask"] = np.ones((rows, place + 1), np.int64)
        if "position_ids" in feed:
            feed["position_ids"] = np.full((rows, 1), place)
        found = dict(zip(outputs, session.run(None, feed, options), strict=True))
        scores.append(found["logits"])
        cache = {name: found[name.replace("past_key_values", "present")] for name in cache}
    return np.concatenate(scores, axis=1)


def some_tokens():
    return np.random.default_rng(3).integers(0, 300, (2, TOKENS))


@pytest.mark.parametrize("name", NAMES)
def test_without_its_cache_a_model_computes_the_same_scores(name, tmp_path):
    model, ids = DECODERS / f"{name}.onnx", some_tokens()
    changed = artifacts.without_cache(model, tmp_path / "model.onnx")
    if name.endswith("_fused"):
        del changed.graph.value_info[:]  # onnxruntime-genai declares a wrong shape
    check_valid(changed)
    assert [value.name for value in changed.graph.output] == ["logits"]
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert set(fed(session, ids)) == {value.name for value in session.get_inputs()}
    np.testing.assert_allclose(
        session.run(None, fed(session, ids))[0], scores_with_cache(model, ids), atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("adapter", ["lora", "dora", "none"])
def test_trained_weights_return_to_the_model_with_its_cache(name, adapter, folder, run):
    pytest.importorskip("safetensors")
    model, ids = write_decoder(folder, name), some_tokens()
    train = ("train", name, "--data", "facts.jsonl", "--adapter", adapter, "--epochs", "3", "--lr", "0.02")
    assert "the model of the artifacts has no key-value cache" in run(*train).err
    has_merged = adapter != "none" and name != "gemma3_fused"  # whose weights are quantized
    merged = ("--adapters", "merged") if has_merged else ()
    said = run("export", "artifacts", "trained.onnx", *merged, "--into", str(model)).out
    assert said.startswith(f"wrote trained.onnx with the parameters of {Path('artifacts/best.ckpt')} (")

    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt", outputs=["logits"])
    values = fed(onnxruntime.InferenceSession(model), ids)
    expected = trainer.predict(tuple(values[form.name] for form in trainer.inputs.forms[:-1]))
    found = scores_with_cache(folder / "trained.onnx", ids)
    np.testing.assert_allclose(found, expected, atol=5e-6)
    assert np.abs(found - scores_with_cache(model, ids)).max() > 0.01


# Sums of products and quantized weights are rounded to the codes of quantized weights; adapters outside the weights are not.
@pytest.mark.parametrize(("adapters", "bound"), [("inside", 5e-6), ("apart", 5e-6), ("requantized", 0.02)])
@pytest.mark.parametrize("quantized_by", ["quantize", "train"])
def test_quantized_weights_return_too(quantized_by, adapters, bound, folder, run):
    pytest.importorskip("safetensors")
    model = write_decoder(folder, "llama")
    bits = ("--bits", "8")
    if quantized_by == "quantize":
        run("quantize", str(model), "llama/small.onnx", *bits)
        model, bits = folder / "llama" / "small.onnx", ()
    run("train", str(model), "--data", "facts.jsonl", *bits, "--epochs", "3", "--lr", "0.02")
    run("export", "artifacts", "trained.onnx", "--adapters", adapters, "--into", str(model))
    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt", outputs=["logits"])
    ids = some_tokens()
    values = fed(onnxruntime.InferenceSession(model), ids)
    expected = trainer.predict(tuple(values[form.name] for form in trainer.inputs.forms[:-1]))
    adapter = "trained.onnx_adapter" if adapters == "apart" else None
    found = scores_with_cache("trained.onnx", ids, adapter)
    np.testing.assert_allclose(found, expected, atol=bound)
    assert np.abs(expected - scores_with_cache(model, ids)).max() > 0.05


def test_text_is_generated_without_the_cache(folder, run):
    write_decoder(folder, "llama")
    artifacts.without_cache("llama/model.onnx", "plain.onnx")
    asked = ("--prompt", "The capital of Peru is", "--max-tokens", "5", "--json")
    plain = run("generate", "plain.onnx", "--tokenizer", "llama/tokenizer.json", *asked).json
    assert run("generate", "llama", *asked).json == plain


def test_weights_go_only_into_the_model_that_was_trained(folder, run):
    pytest.importorskip("safetensors")
    model = write_decoder(folder, "gpt2")
    run("train", "gpt2", "--data", "facts.jsonl", "--adapter", "lora", "--epochs", "1")
    export = ("export", "artifacts", "trained.onnx", "--into")
    other = run(*export, str(DECODERS / "llama.onnx"), "--adapters", "merged", status=1).err
    assert "--into: expected the model that artifacts was made from, model.onnx, found" in other
    for option in (("--output", "logits"), ("--with-preprocessing",)):
        refused = run(*export, str(model), *option, status=2).err
        assert f"--into cannot be combined with {' '.join(option).removesuffix(' logits')}" in refused
    assert f"expected MODEL to be another file, found {model} twice" in (
        run("export", "artifacts", str(model), "--into", str(model), "--adapters", "merged", status=2).err
    )
    assert not (folder / "trained.onnx").exists()


def test_models_with_other_weights_are_rejected(tmp_path):
    trained = onnx.load(DECODERS / "llama.onnx")
    lacking = onnx.ModelProto()
    lacking.CopyFrom(trained)
    name = next(tensor.name for tensor in trained.graph.initializer if "embed_tokens" in tensor.name)
    renamed = next(tensor for tensor in lacking.graph.initializer if tensor.name == name)
    renamed.name = "other"
    with pytest.raises(ValueError, match=rf"the trained model has weights that the model lacks, {name}"):
        artifacts.with_weights_of(lacking, trained)
    renamed.CopyFrom(numpy_helper.from_array(np.zeros((3, 2), np.float32), name))
    with pytest.raises(
        ValueError,
        match=rf"the weight {name}: expected float \[300, 32\], as it was trained, found float \[3, 2\]",
    ):
        artifacts.with_weights_of(lacking, trained)


def test_a_model_without_cache_is_named():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [])
    graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3]))
    with pytest.raises(ValueError, match=r"the model has no key-value cache: .* found the inputs x$"):
        artifacts.without_cache(helper.make_model(graph))


def cache_with(dimensions):
    """A model with one cache input of these dimensions, which a node appends to and another measures."""
    nodes = [
        helper.make_node("Shape", ["past_key"], ["measured"]),
        helper.make_node("Concat", ["past_key", "x"], ["present_key"], axis=1),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None, 4]),
        helper.make_tensor_value_info("past_key", TensorProto.FLOAT, dimensions),
    ]
    outputs = [
        helper.make_tensor_value_info("measured", TensorProto.INT64, [3]),
        helper.make_tensor_value_info("present_key", TensorProto.FLOAT, [None, None, 4]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("batch", [None, 3])
def test_the_batch_size_may_be_fixed_or_have_no_name(batch):
    changed = artifacts.without_cache(cache_with([batch, None, 4]))
    session = onnxruntime.InferenceSession(changed.SerializeToString())
    x = np.ones((3, 5, 4), np.float32)
    assert [value.name for value in session.get_outputs()] == ["measured"]
    assert session.run(None, {"x": x})[0].tolist() == [3, 0, 4]


def test_dimensions_of_a_cache_that_are_not_clear_are_rejected():
    with pytest.raises(ValueError, match=r"past_key has the shape \[b, p, h\], expected one free dimension"):
        artifacts.without_cache(cache_with(["b", "p", "h"]))
    with pytest.raises(ValueError, match=r"no other input has the batch size of past_key, b;"):
        artifacts.without_cache(cache_with(["b", "p", 4]))
