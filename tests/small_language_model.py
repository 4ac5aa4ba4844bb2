"""A tiny causal language model with random weights, its tokenizer, and facts for it to learn."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import onnx
import pytest
from ortrain import models

FACTS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo",
    "Egypt": "Cairo", "Peru": "Lima", "Kenya": "Nairobi", "Norway": "Oslo",
}  # fmt: skip
END = "<|endoftext|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def prompts() -> list[dict[str, Any]]:
    return [
        {"prompt": f"The capital of {country} is", "completion": f" {city}."}
        for country, city in FACTS.items()
    ]


def chats() -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{country}?"}, {"role": "assistant", "content": city}]}
        for country, city in FACTS.items()
    ]


def write_lines(path: pathlib.Path, lines: list[Any]) -> pathlib.Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return path


def write_tokenizer(folder: pathlib.Path, template: str | None = TEMPLATE) -> Any:
    """Train a tokenizer on the facts and write it with its configuration; return it."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END, "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator([line["prompt"] + line["completion"] for line in prompts()], trainer)
    folder.mkdir(exist_ok=True)
    made.save(str(folder / "tokenizer.json"))
    config = {"eos_token": {"content": END}, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return made


def write_model(folder: pathlib.Path, length: int = 48) -> onnx.ModelProto:
    """Write a model for the tokenizer beside it."""
    size = write_tokenizer(folder).get_vocab_size()
    model = models.gpt(size, length, 32, 2, 2, seed=3)
    onnx.save(model, folder / "model.onnx")
    return model
