"""`ortrain train MODEL --data chats.jsonl`: from a language model and its tokenizer to one that has learned."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import onnxruntime
import pytest
from ortrain import models
from small_language_model import chats, prompts, write_lines, write_model


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A folder with a model and its tokenizer, beside facts.jsonl."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "model")
    write_lines(tmp_path / "facts.jsonl", prompts())
    return tmp_path / "model"


def test_adapters_are_trained_on_and_exported(model, run):
    pytest.importorskip("safetensors")
    train = ("train", "model", "--data", "facts.jsonl", "--adapter", "lora", "--lr", "0.05", "--batch", "4")
    first = run(*train, "--epochs", "10", "--json")
    assert (
        f"made artifacts of {Path('model/model.onnx')}, in which the command trains adapters (lora, rank 8)"
        in first.err
    )
    assert "8 examples in 8 rows of 13 tokens" in first.err
    assert "tokens_per_second" in first.err
    history = first.json["history"]
    assert history["perplexity"][-1] < 0.5 * history["perplexity"][0]
    config = json.loads((model.parent / "artifacts/adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 16)

    again = run(*train, "--epochs", "1", "--json")
    assert f"ortrain: continues from {Path('artifacts/best.ckpt')} (epoch " in again.err
    assert again.json["history"]["loss"][0] < 1.1 * history["loss"][-1]

    # The adapters that were saved are what another training starts from.
    other = ("--artifacts", "second", "--adapter", "artifacts/adapter", "--epochs", "1", "--json")
    started = run("train", "model", "--data", "facts.jsonl", "--lr", "0.01", "--batch", "4", *other)
    assert "trains adapters (artifacts/adapter, rank 8)" in started.err
    assert started.json["history"]["loss"][0] < 1.1 * history["loss"][-1]
    refused = run(
        "train", "model", "--data", "facts.jsonl", "--artifacts", "third", *other[2:], "--rank", 4, status=2
    )
    assert "--rank is a setting of new adapters" in refused.err

    asked = ("--prompt", "The capital of Peru is", "--json")
    inside = run("generate", "artifacts", *asked).json
    for adapters in ("inside", "merged"):
        run("export", "artifacts", f"{adapters}.onnx", "--adapters", adapters)
        onnxruntime.InferenceSession(f"{adapters}.onnx")
        found = run("generate", f"{adapters}.onnx", "--tokenizer", "artifacts/tokenizer.json", *asked).json
        assert found == inside
    said = run("export", "artifacts", "apart.onnx", "--adapters", "apart").out
    assert said.startswith(
        f"wrote apart.onnx and apart.onnx_adapter with the parameters of {Path('artifacts/best.ckpt')} ("
    )
    apart = ("generate", "apart.onnx", "--tokenizer", "artifacts/tokenizer.json", *asked)
    assert run(*apart, "--adapter", "apart.onnx_adapter").json == inside
    without = run(*apart)
    assert without.json != inside
    assert (
        "apart.onnx takes adapters as inputs and runs without them; --adapter apart.onnx_adapter adds"
        in without.err
    )
    assert "--adapter: there is no file other" in run(*apart, "--adapter", "other", status=1).err
    refused = run("generate", "artifacts", *asked, "--adapter", "apart.onnx_adapter", status=2).err
    assert "--adapter is for an exported model, found the folder of artifacts artifacts" in refused


def test_the_tokenizer_of_a_larger_model_is_rejected(model, run):
    onnx.save(models.gpt(100, 48, 32, 2, 2, seed=3), model / "model.onnx")
    refused = run("train", "model", "--data", "facts.jsonl", status=1).err
    assert re.search(
        r"--tokenizer: token \d+ \('.*'\) of .*tokenizer.json is not one of the 100 tokens", refused
    )


def test_a_table_is_not_text(model, run, tmp_path):
    (tmp_path / "facts.csv").write_text("prompt,completion\nThe capital of Peru is, Lima\n")
    refused = run("train", "model", "--data", "facts.csv", status=1).err
    assert "expected JSON lines (.jsonl) with prompt and completion" in refused
    assert "found the table facts.csv" in refused


def test_chats_are_learned_and_asked(model, run, tmp_path):
    pytest.importorskip("jinja2")
    write_lines(tmp_path / "chats.jsonl", chats())
    # The file and not the folder: the tokenizer is found beside it.
    run(
        "train", "model/model.onnx", "--data", "chats.jsonl", "--adapter", "none", "--lr", "0.005", "--epochs", "40",
        "--batch", "4", "--artifacts", "of-chats",
    )  # fmt: skip
    said = run("generate", "of-chats", "--prompt", "Peru?")
    assert said.out == "Lima\n"
    before = run("generate", "model", "--chat", "--prompt", "Peru?", "--max-tokens", "3")
    assert before.out != said.out
    assert "ortrain: stopped at --max-tokens 3" in before.err
    found = run("evaluate", "of-chats", "--data", "chats.jsonl", "--metric", "perplexity", "--json").json
    assert found["perplexity"] < 1.2


def test_adapters_beside_weights_of_four_bits(model, run):
    ran = run(
        "train", "model", "--data", "facts.jsonl", "--bits", "4", "--adapter", "dora", "--rank", "4", "--pack",
        "--length", "40", "--validation", "facts.jsonl", "--lr", "0.02", "--epochs", "10", "--json",
    )  # fmt: skip
    assert "weights of 4 bits" in ran.err
    assert "8 examples in 3 rows of 40 tokens" in ran.err
    history = ran.json["history"]
    assert history["val_perplexity"][-1] < history["val_perplexity"][0]
    operators = {node.op_type for node in onnx.load("artifacts/training_model.onnx").graph.node}
    assert {"MatMulNBits", "GatherBlockQuantized"} <= operators
    settings = json.loads(next((model.parent / "artifacts/runs/1").glob("log.jsonl")).open().readline())
    assert settings["settings"]["batch_size"] == 1
    assert settings["settings"]["config"]["ortrain.memory_budget"] == "auto"

    again = (
        "train",
        "artifacts",
        "--data",
        "facts.jsonl",
        "--pack",
        "--length",
        "40",
        "--from-start",
        "--json",
    )
    exact, narrow = (
        run(*again, "--precision", precision).json["history"]["loss"][0] for precision in ("fp32", "bf16")
    )
    assert narrow == pytest.approx(exact, rel=0.02)
    assert narrow != exact

    others = ("--float-embeddings", "--batch", "4", "--config", "ortrain.memory_budget=1G")
    run("train", "model", "--data", "facts.jsonl", "--bits", "4", *others, "--artifacts", "float")
    operators = {node.op_type for node in onnx.load("float/training_model.onnx").graph.node}
    assert "MatMulNBits" in operators
    assert "GatherBlockQuantized" not in operators
    said = run(
        "train", "model", "--data", "facts.jsonl", "--float-embeddings", "--artifacts", "new", status=2
    ).err
    assert "--float-embeddings: expected --bits as well, because otherwise no weights are quantized" in said


def test_what_does_not_fit_is_said(model, run, tmp_path):
    run("train", "model", "--data", "facts.jsonl")
    said = run("train", "model", "--data", "facts.jsonl", "--rank", "4", status=1).err
    assert "--rank 4: the artifacts in artifacts were made with 8; --artifacts names another folder" in said
    write_model(tmp_path / "other", length=20)
    said = run("train", "other", "--data", "facts.jsonl", status=1).err
    assert f"artifacts has artifacts of another model, model.onnx, than {Path('other/model.onnx')}" in said
    said = run("train", "artifacts", "--data", "facts.jsonl", "--adapter", "lora", status=2).err
    assert "--adapter says how artifacts are made from a language model" in said
    assert "found a folder of artifacts" in said
    (tmp_path / "empty").mkdir()
    for name, found in (("empty", "a folder without model.onnx"), ("nowhere", "which does not exist")):
        said = run("train", name, "--data", "facts.jsonl", "--bits", "4", status=2).err
        assert f"found {name}, {found}" in " ".join(said.split())
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a", "completion": "b"}\n{"prompt": 1}\n')
    said = run("train", "artifacts", "--data", "bad.jsonl", status=1).err
    assert "bad.jsonl: 1 of 2 lines cannot be used" in said
    (tmp_path / "other/tokenizer.json").unlink()
    said = run("train", "other", "--data", "facts.jsonl", "--artifacts", "new", status=1).err
    assert "--tokenizer: expected tokenizer.json in other, or the option with its path; found none" in said
    assert not (tmp_path / "new").exists()


def test_artifacts_of_data_that_cannot_be_used_are_removed(model, run, tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"prompt": 3}\n')
    said = run("train", "model", "--data", "bad.jsonl", status=1).err
    assert "line 1: prompt: expected a text, found 3" in said
    assert not (tmp_path / "artifacts").exists()
    run("train", "model", "--data", "facts.jsonl", "--rank", "4")  # not refused because of the first run


def renamed(folder, names):
    """Give the inputs and outputs of the model in a folder other names."""
    made = onnx.load(folder / "model.onnx")
    for value in (*made.graph.input, *made.graph.output):
        value.name = names.get(value.name, value.name)
    for node in made.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return made


def test_inputs_of_other_names_are_named_once(model, run, tmp_path):
    other = renamed(model, {"input_ids": "in_0", "attention_mask": "in_1", "logits": "out_1"})
    count = onnx.helper.make_tensor_value_info("out_0", onnx.TensorProto.INT64, [3])
    other.graph.node.add(op_type="Shape", input=["out_1"], output=["out_0"])
    other.graph.output.insert(0, count)
    onnx.save(other, model / "model.onnx")
    train = ("train", "model", "--data", "facts.jsonl", "--lr", "0.05", "--batch", "4")
    said = run(*train, status=1).err
    assert (
        "found the inputs in_0 int64 [batch, sequence], in_1 int64 [batch, sequence]; --tokens, --mask"
        in said
    )
    said = run(*train, "--tokens", "in_0", status=1).err
    assert "the purpose of in_1 is unknown: name the input with --mask or --positions" in said
    said = run(*train, "--tokens", "in_0", "--mask", "in_2", status=1).err
    assert "--mask: the model has no input 'in_2'; its inputs are in_0, in_1" in said
    names = ("--tokens", "in_0", "--mask", "in_1")
    said = run(*train, *names, status=1).err
    assert (
        "as the output out_0 of a language model, found 1 dimension; --logits out_1 chooses an output with three dimensions"
        in said
    )
    run(*train, *names, "--logits", "out_1", "--epochs", "10")

    # The artifacts and their checkpoints know the names.
    asked = ("--prompt", "The capital of Peru is", "--json")
    assert f"continues from {Path('artifacts/best.ckpt')}" in run(*train, "--epochs", "1").err
    inside = run("generate", "artifacts", *asked).json
    run("evaluate", "artifacts", "--data", "facts.jsonl")
    run("export", "artifacts", "trained.onnx")
    outside = ("generate", "trained.onnx", "--tokenizer", "artifacts/tokenizer.json", *asked)
    assert run(*outside, *names, "--logits", "out_1").json == inside
    said = run("generate", "artifacts", *asked, "--tokens", "in_1", status=1).err
    assert "--tokens in_1: the model in artifacts was trained with in_0" in said


def test_a_single_input_of_whole_numbers_has_the_tokens(model, run):
    onnx.save(renamed(model, {"input_ids": "words"}), model / "model.onnx")
    run("train", "model", "--data", "facts.jsonl")
    assert run("generate", "artifacts", "--prompt", "The capital", "--max-tokens", "2", "--json").json[
        "tokens"
    ]


def test_an_export_with_a_fixed_batch_takes_any(model, run):
    made = onnx.load(model / "model.onnx")
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
        value.type.tensor_type.shape.dim[1].dim_value = 16
    onnx.save(made, model / "model.onnx")
    ran = run("train", "model", "--data", "facts.jsonl", "--batch", "3", "--json")
    assert "8 examples in 8 rows of 16 tokens" in ran.err
    assert ran.json["steps"] == 3


def test_predict_leads_to_generate(model, run):
    run("train", "model", "--data", "facts.jsonl")
    said = run("predict", "artifacts", "--data", "facts.jsonl", status=1).err
    assert "`ortrain generate artifacts --prompt TEXT` lets the model write" in said


def test_a_model_without_tokens_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = onnx.helper.make_model(
        onnx.helper.make_graph(
            [onnx.helper.make_node("Relu", ["x"], ["y"])],
            "no_language_model",
            [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 4])],
            [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 4])],
        )
    )
    onnx.save(made, "model.onnx")
    write_lines(tmp_path / "facts.jsonl", prompts())
    said = run("train", "model.onnx", "--data", "facts.jsonl", status=1).err
    assert "expected a language model with the input input_ids, and perhaps" in said
    assert "found the inputs x float32 [batch, 4]" in said
    assert "`ortrain artifacts model.onnx --loss LOSS` creates artifacts" in said


def test_forward_passes_alone_train_adapters(model, run):
    train = ("train", "model", "--data", "facts.jsonl", "--optimizer", "mezo", "--batch", "8")
    first = run(*train, "--epochs", "40", "--lr", "1e-3", "--json")
    assert first.json["history"]["loss"][-1] < first.json["history"]["loss"][0]
    again = run(*train, "--epochs", "1")
    assert "with the learning rate 0.001" in again.err
    wrong = run("train", "model", "--data", "facts.jsonl", "--optimizer", "adamw", status=1)
    assert "--optimizer adamw: the artifacts in artifacts were made with mezo" in wrong.err


def test_adapters_are_trained_privately(model, run):
    pytest.importorskip("dp_accounting")
    train = ("train", "model", "--data", "facts.jsonl", "--bits", "4", "--epochs", "2")
    ran = run(
        *train, "--epsilon", "8", "--delta", "1e-3", "--json"
    ).json  # rows follow one another, 8 for a step
    assert 7.9 < ran["epsilon"] <= 8
    assert ran["steps"] == 2
    settings = json.loads(next((model.parent / "artifacts/runs/1").glob("log.jsonl")).open().readline())
    assert (settings["settings"]["batch_size"], settings["settings"]["accumulate"]) == (8, 1)
    assert "which steps without it would undo" in run(*train, status=2).err


def test_rows_that_are_longer_than_the_model_takes_are_named(model, run):
    """The model has 48 positions, and no file says so."""
    found = run("train", "model", "--data", "facts.jsonl", "--adapter", "lora", "--length", 60, status=1)
    assert (
        "index 48 at position 48 of the indices 'range1' is outside [-48, 47]: 'position.weight' has 48 rows\n"
        "The rows have 60 tokens; if the model" in found.err
    )
    assert "takes fewer, set a smaller number with --length\n" in found.err
    assert not (model.parent / "artifacts").exists()


def test_a_run_that_continues_says_how_rows_become_longer(model, run, tmp_path):
    train = ("train", "model", "--epochs", "1", "--data")
    assert "--length" not in run(*train, "facts.jsonl").err
    assert "--length" not in run(*train, "facts.jsonl").err
    long = [{"prompt": "The capital of Peru is", "completion": " Lima" * 8}]
    write_lines(tmp_path / "long.jsonl", [*prompts(), *long])
    said = run(*train, "long.jsonl").err
    assert "1 example is longer than a row of 13 tokens" in said
    rule = r"rows have 13 tokens, as in the run before, .*; --length sets another number, and the longest example needs (\d+)"
    found = re.search(rule, said)
    assert found is not None
    said = run(*train, "long.jsonl", "--length", found[1]).err
    assert "longer than a row" not in said
    assert "--length" not in said
    said = run(*train, "facts.jsonl", "--validation", "long.jsonl", "--length", "13").err
    assert "1 example is longer than a row of 13 tokens" in said
    assert "--length" not in said  # the length that the user gave


def test_a_text_that_ends_at_once_is_explained(model, run, tmp_path):
    write_lines(tmp_path / "ends.jsonl", [{"text": line["prompt"]} for line in prompts()])
    train = ("train", "model", "--data", "ends.jsonl", "--adapter", "none", "--lr", "0.005", "--epochs", "40")
    run(*train, "--batch", "4")
    asked = ("generate", "artifacts", "--prompt", "The capital of Peru is")
    said = run(*asked)
    assert said.out == ""
    assert (
        "the first token that the model wrote is <|endoftext|>, which ends the text, so the text is empty; try another "
        "prompt, --temperature 0.8, which draws tokens at random, or --chat, if the model was trained on chats\n"
    ) in said.err
    assert "another --seed, or --chat" in run(*asked, "--temperature", "0.01").err
    found = run(*asked, "--json")
    assert found.json["text"] == ""
    assert found.json["stopped"] == "end"
