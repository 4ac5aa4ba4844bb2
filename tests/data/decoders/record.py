"""Exports small decoders with random weights and a key-value cache, as programs that generate text use them.

``python tests/data/decoders/record.py`` with torch, transformers, optimum-onnx and onnxruntime-genai installed. The stored files
were made by PyTorch 2.13, transformers 4.57, optimum-onnx 0.1 and onnxruntime-genai 0.11.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import torch
from onnxruntime_genai.models.builder import create_model
from optimum.exporters.onnx import main_export
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

HERE = Path(__file__).parent

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 64,
}
DECODERS: dict[str, PretrainedConfig] = {
    # The output matrix is the table of embeddings; attention is limited to a window.
    "gemma3": Gemma3TextConfig(vocab_size=300, sliding_window=16, **SIZES),
    "gpt2": GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=2, n_positions=64),
    "llama": LlamaConfig(vocab_size=300, tie_word_embeddings=False, **SIZES),
}
#: Models that onnxruntime-genai exports with its fused operators, and the precision.
FUSED = {"gemma3": "int4", "llama": "fp32"}


def main() -> None:
    for name, config in DECODERS.items():
        torch.manual_seed(1)
        with tempfile.TemporaryDirectory() as folder:
            AutoModelForCausalLM.from_config(config).eval().save_pretrained(folder)
            main_export(folder, f"{folder}/onnx", task="text-generation-with-past", opset=18)
            write(onnx.load(f"{folder}/onnx/model.onnx"), name)
            if name in FUSED:
                PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel())).save_pretrained(folder)
                # Products in float32, which both runtimes have, instead of 8-bit integers.
                options = {"int4_accuracy_level": 1, "int4_is_symmetric": False}
                create_model(
                    name, folder, f"{folder}/fused", FUSED[name], "cpu", f"{folder}/cache", **options
                )
                write(onnx.load(f"{folder}/fused/model.onnx"), f"{name}_fused")


def write(model: onnx.ModelProto, name: str) -> None:
    for node in model.graph.node:  # paths of this computer
        node.doc_string = ""
        del node.metadata_props[:]
    if not name.endswith("_fused"):
        del model.graph.value_info[:]
    onnx.save(model, HERE / f"{name}.onnx")


if __name__ == "__main__":
    main()
