"""Records what PEFT computes: losses of 20 steps and the gradients of the first one, for adapters on small networks.

``python tests/data/lora/record.py [CASE]`` with torch, transformers and peft installed. The stored files were made by PyTorch
2.13, transformers 5.23 and PEFT 0.21.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

HERE = Path(__file__).parent
STEPS = 20

CONV = {"target_modules": ["0", "2", "6"], "r": 2, "lora_alpha": 4}
GROUPS = {"target_modules": ["0", "2", "4"], "r": 4, "lora_alpha": 4}
GPT2 = {"target_modules": ["c_attn", "c_proj", "c_fc"], "r": 4, "lora_alpha": 8, "fan_in_fan_out": True}
LINEAR = {"r": 4, "lora_alpha": 8}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2_rslora": ("gpt2", {**GPT2, "use_rslora": True}),
    "gpt2_dora": ("gpt2", {**GPT2, "use_dora": True}),
    "gpt2_embedding_dora": ("gpt2", {**GPT2, "target_modules": ["wte", "wpe", "c_attn"], "use_dora": True}),
    "gpt2_embedding": ("gpt2", {**GPT2, "target_modules": ["wte", "c_attn"]}),
    "llama": ("llama", {**LINEAR, "target_modules": ["q_proj", "v_proj", "gate_proj", "down_proj"]}),
    "vit": ("vit", {**LINEAR, "target_modules": ["q_proj", "v_proj", "fc1"]}),
    "conv": ("conv", CONV),
    "conv_bias": ("conv", {**CONV, "bias": "lora_only"}),
    "conv_dora": ("conv", {**CONV, "use_dora": True, "bias": "lora_only"}),
    "line_dora": (
        "line",
        {"target_modules": ["0", "2"], "r": 3, "lora_alpha": 5, "use_dora": True, "use_rslora": True},
    ),
    "volume_dora": ("volume", {"target_modules": ["0", "2"], "r": 2, "lora_alpha": 4, "use_dora": True}),
    "groups": ("groups", GROUPS),
    "groups_dora": ("groups", {**GROUPS, "use_dora": True}),
    "conv_dropout_dora": ("conv", {**CONV, "use_dora": True, "bias": "lora_only", "lora_dropout": 0.25}),
    "groups_dropout_dora": ("groups", {**GROUPS, "use_dora": True, "lora_dropout": 0.5}),
    "gpt2_dropout_dora": ("gpt2", {**GPT2, "use_dora": True, "lora_dropout": 0.25}),
    "gpt2_dropout": ("gpt2", {**GPT2, "lora_dropout": 0.25}),
}


class KnownDropout(torch.nn.Module):
    """Dropout that always drops the same elements, so that the elements can be recorded."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.mask = p, torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        if not self.mask.numel():
            self.mask = (torch.rand(x.shape) >= self.p).float()
        return x * self.mask / (1 - self.p)


class Logits(torch.nn.Module):
    """A model of transformers with an array as its result, the classes in the second dimension."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        sizes = {"vocab_size": 40, "attn_implementation": "eager"}
        if kind == "gpt2":
            free = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "tie_word_embeddings": False}
            self.m = GPT2LMHeadModel(
                GPT2Config(n_positions=12, n_embd=16, n_layer=2, n_head=2, **free, **sizes)
            )
            return
        sizes |= {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 24,
        }
        if kind == "llama":  # grouped queries
            self.m = LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, max_position_embeddings=12, **sizes))
        else:
            del sizes["vocab_size"]
            self.m = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, num_labels=5, **sizes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.m, ViTForImageClassification):
            return self.m(pixel_values=x).logits
        return self.m(input_ids=x, attention_mask=torch.ones_like(x), use_cache=False).logits.transpose(1, 2)


def network(kind: str) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    if kind == "vit":
        return Logits(kind), torch.randn(6, 3, 16, 16), torch.randint(0, 5, (6,))
    if kind in ("gpt2", "llama"):
        ids = torch.randint(0, 40, (4, 10))
        return Logits(kind), ids, torch.randint(0, 40, (4, 10))
    if kind == "line":
        layers = [
            torch.nn.Conv1d(3, 6, 4, stride=2, padding=2),
            torch.nn.ReLU(),
            torch.nn.Conv1d(6, 5, 3, padding=1, bias=False),
            torch.nn.AdaptiveAvgPool1d(1),
            torch.nn.Flatten(),
        ]
        return torch.nn.Sequential(*layers), torch.randn(6, 3, 16), torch.randint(0, 5, (6,))
    if kind == "volume":
        layers = [
            torch.nn.Conv3d(2, 6, (2, 3, 3), stride=(1, 2, 1), padding=(0, 1, 1)),
            torch.nn.ReLU(),
            torch.nn.Conv3d(6, 5, 1),
            torch.nn.AdaptiveAvgPool3d(1),
            torch.nn.Flatten(),
        ]
        return torch.nn.Sequential(*layers), torch.randn(6, 2, 4, 6, 5), torch.randint(0, 5, (6,))
    if kind == "groups":  # also depthwise
        layers = [
            torch.nn.Conv2d(4, 8, 3, stride=2, padding=1, groups=2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(8, 4, 1),
            torch.nn.ReLU(),
            torch.nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 5),
        ]
        return torch.nn.Sequential(*layers), torch.randn(6, 4, 8, 8), torch.randint(0, 5, (6,))
    layers = [
        torch.nn.Conv2d(3, 6, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(6, 8, 1, bias=False),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    ]
    return torch.nn.Sequential(*layers), torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))


def record(name: str, kind: str, settings: dict[str, Any]) -> None:
    base, x, y = network(kind)
    path = HERE / f"{kind}.onnx"
    if not path.exists():
        axes = {"input": {0: "batch"}, "output": {0: "batch"}}
        torch.onnx.export(
            base.eval(), (x,), path, dynamo=False, opset_version=17, input_names=["input"], output_names=["output"],
            dynamic_axes=axes, do_constant_folding=False,
        )  # fmt: skip
    torch.manual_seed(2)
    settings = {"lora_dropout": 0.0, **settings}
    model = get_peft_model(base, LoraConfig(init_lora_weights=False, **settings)).train()
    dropouts = {n: m for n, m in model.named_modules() if isinstance(m, torch.nn.Dropout) and m.p}
    for path in dropouts:
        model.set_submodule(path, KnownDropout(settings["lora_dropout"]))
    # Magnitudes begin as the norms of the columns: the scale of the output would be 1.
    for path, parameter in model.named_parameters():
        if "lora_magnitude_vector" in path:
            parameter.data *= 0.5 + torch.rand(parameter.shape)
    found: dict[str, np.ndarray[Any, Any]] = {"x": x.numpy(), "y": y.numpy()}
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found |= {f"start/{n}": p.detach().numpy().copy() for n, p in trained.items()}
    optimizer = torch.optim.SGD(trained.values(), lr=0.05)
    losses = []
    for step in range(STEPS):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            found |= {f"grad/{n}": p.grad.numpy().copy() for n, p in trained.items()}
        optimizer.step()
        losses.append(loss.item())
    for path in dropouts:
        found[f"mask/{path}"] = model.get_submodule(path).mask.numpy().astype(bool)
    found["losses"] = np.array(losses)
    found["output"] = model.eval()(x).detach().numpy()
    np.savez_compressed(HERE / f"{name}.npz", **found)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        (HERE / name).mkdir(exist_ok=True)
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            shutil.copy(Path(folder) / file, HERE / name / file)


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        record(name, *CASES[name])
        print(name, flush=True)
