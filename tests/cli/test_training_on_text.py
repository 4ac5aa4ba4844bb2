"""`ortrain train MODEL --data chats.jsonl`: from a language model and its tokenizer to one that has learned."""

from __future__ import annotations

import json

import onnx
import onnxruntime
import pytest
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
        "made artifacts of model/model.onnx, in which the command trains adapters (lora, rank 8)" in first.err
    )
    assert "8 examples in 8 rows of 13 tokens" in first.err
    assert "tokens_per_second" in first.err
    history = first.json["history"]
    assert history["perplexity"][-1] < 0.5 * history["perplexity"][0]
    config = json.loads((model.parent / "artifacts/adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (8, 16)

    again = run(*train, "--epochs", "1", "--json")
    assert "ortrain: continues from artifacts/best.ckpt (epoch " in again.err
    assert again.json["history"]["loss"][0] < 1.1 * history["loss"][-1]

    asked = ("--prompt", "The capital of Peru is", "--json")
    inside = run("generate", "artifacts", *asked).json
    for adapters in ("inside", "merged"):
        run("export", "artifacts", f"{adapters}.onnx", "--adapters", adapters)
        onnxruntime.InferenceSession(f"{adapters}.onnx")
        found = run("generate", f"{adapters}.onnx", "--tokenizer", "artifacts/tokenizer.json", *asked).json
        assert found == inside


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
    assert "MatMulNBits" in operators


def test_what_does_not_fit_is_said(model, run, tmp_path):
    run("train", "model", "--data", "facts.jsonl")
    said = run("train", "model", "--data", "facts.jsonl", "--rank", "4", status=1).err
    assert "--rank 4: the artifacts in artifacts were made with 8; --artifacts names another folder" in said
    write_model(tmp_path / "other", length=20)
    said = run("train", "other", "--data", "facts.jsonl", status=1).err
    assert "artifacts has artifacts of another model, model.onnx, than other/model.onnx" in said
    said = run("train", "artifacts", "--data", "facts.jsonl", "--adapter", "lora", status=2).err
    assert "--adapter says how artifacts are made of a language model" in said
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


def test_a_model_without_tokens_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    made = write_model(folder)
    made.graph.input[0].name = "words"
    for node in made.graph.node:
        node.input[:] = ["words" if name == "input_ids" else name for name in node.input]
    onnx.save(made, folder / "model.onnx")
    write_lines(tmp_path / "facts.jsonl", prompts())
    said = run("train", "model", "--data", "facts.jsonl", status=1).err
    assert "or a language model with the input input_ids, found the inputs words, attention_mask" in said
    assert "`ortrain artifacts model/model.onnx --loss LOSS` creates artifacts" in said
