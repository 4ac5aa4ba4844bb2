"""Networks to export: small random configurations of transformers, and networks made by hand.

No network has dropout that drops anything, so that its losses can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

BATCH = 3
TIME = 6


@dataclass
class Case:
    """A network and how it is trained.

    Attributes
    ----------
    rate : float
        The learning rate of SGD. A network has a smaller one where PyTorch itself, in float32 and in float64, trains to different
        losses: rounding errors that grow from step to step say nothing about an export.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, torch.Tensor]]
    output: str = "output"
    rate: float = 0.05


def ids(size: int = 50, time: int = TIME) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {"input_ids": torch.randint(0, size, (BATCH, time))}


def image(
    side: int = 32, name: str = "pixel_values", batch: int = BATCH
) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {name: torch.randn(batch, 3, side, side)}


def values(*shape: int, name: str = "x") -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {name: torch.randn(BATCH, *shape)}


def _transformer(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a function that makes a network of transformers with a small random configuration."""

    def make() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))

    return make


SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ENCODER = {**SMALL, **NO_DROPOUT, "max_position_embeddings": 32}
DECODER = {**SMALL, "num_key_value_heads": 1, "max_position_embeddings": 32}
IMAGES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    **NO_DROPOUT,
}
SEQUENCES = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0,
}  # fmt: skip


def two_sequences() -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.randint(3, 50, (BATCH, TIME)),
        "decoder_input_ids": torch.randint(3, 50, (BATCH, 4)),
    }


# ----------------------------------------------------------------------------------------------------------------------
# Made by hand.


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module], bidirectional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.layer = kind(8, 6, num_layers=2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(12 if bidirectional else 6, 5)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layer(self.embedding(input_ids))
        return self.head(hidden[:, -1])


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

        self.down, self.bottom, self.up = block(3, 8), block(8, 16), block(16, 8)
        self.rise = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down(x)
        low = self.bottom(nn.functional.max_pool2d(first, 2))
        return self.head(self.up(torch.cat([first, self.rise(low)], 1)))


class Tied(nn.Module):
    """A language model whose head is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(input_ids)))


class TimeMix(nn.Module):
    """The mixing of RWKV: a recurrence over time with learned decays, whose weights occur as ``1 - weight`` too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.mix_k = nn.Parameter(torch.full((16,), 0.5))
        self.mix_v = nn.Parameter(torch.full((16,), 0.5))
        self.mix_r = nn.Parameter(torch.full((16,), 0.5))
        self.decay = nn.Parameter(torch.zeros(16))
        self.first = nn.Parameter(torch.zeros(16))
        self.key, self.value, self.receptance, self.out = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.head = nn.Linear(16, 50, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.embedding(input_ids))
        before = nn.functional.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.mix_k + before * (1 - self.mix_k))
        v = self.value(x * self.mix_v + before * (1 - self.mix_v))
        r = self.receptance(x * self.mix_r + before * (1 - self.mix_r))
        a = b = torch.zeros_like(k[:, 0])
        outs = []
        for t in range(x.shape[1]):
            now = torch.exp(self.first + k[:, t])
            outs.append((a + now * v[:, t]) / (b + now))
            fade = torch.exp(-torch.exp(self.decay))
            a, b = fade * a + torch.exp(k[:, t]) * v[:, t], fade * b + torch.exp(k[:, t])
        return self.head(x + self.out(torch.sigmoid(r) * torch.stack(outs, 1)))


class Detached(nn.Module):
    """Uses a value that no gradient passes, as networks with a target or a codebook do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a(x)
        return self.b(a) * a.detach() + a


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.0), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
    )


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.Hardswish(),
        nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def weight_normed() -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(norm(nn.Linear(8, 16)), nn.ELU(), norm(nn.Linear(16, 4)))


def group_normed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(4, 8),
        nn.SiLU(),
        nn.InstanceNorm2d(8, affine=True),
        nn.Conv2d(8, 4, 3),
    )


def frozen_trunk() -> nn.Module:
    """A network to fine-tune: the trunk is frozen, its batch normalization in evaluation mode."""
    trunk = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    network = nn.Sequential(trunk, nn.Linear(8, 5)).train()
    trunk.requires_grad_(False).eval()
    return network


CASES: dict[str, Case] = {
    "BERT": Case(_transformer("BertForSequenceClassification", "BertConfig", **ENCODER), ids(), "logits"),
    "RoBERTa": Case(_transformer("RobertaForMaskedLM", "RobertaConfig", **ENCODER), ids(), "logits"),
    "ALBERT": Case(_transformer("AlbertForMaskedLM", "AlbertConfig", **ENCODER, embedding_size=8), ids(), "logits"),
    "DistilBERT": Case(
        _transformer("DistilBertForMaskedLM", "DistilBertConfig", vocab_size=50, dim=16, n_layers=2, n_heads=2,
                     hidden_dim=32, dropout=0.0, attention_dropout=0.0, max_position_embeddings=32), ids(), "logits"),
    "ELECTRA": Case(_transformer("ElectraForPreTraining", "ElectraConfig", **ENCODER, embedding_size=8), ids(), "logits"),
    "GPT-2": Case(
        _transformer("GPT2LMHeadModel", "GPT2Config", vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32,
                     resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), ids(), "logits"),
    "GPT-NeoX": Case(
        _transformer("GPTNeoXForCausalLM", "GPTNeoXConfig", **SMALL, max_position_embeddings=32,
                     hidden_dropout=0.0, attention_dropout=0.0), ids(), "logits"),
    "Llama": Case(_transformer("LlamaForCausalLM", "LlamaConfig", **DECODER), ids(), "logits"),
    "Mistral": Case(_transformer("MistralForCausalLM", "MistralConfig", **DECODER), ids(), "logits"),
    "Qwen2": Case(_transformer("Qwen2ForCausalLM", "Qwen2Config", **DECODER, tie_word_embeddings=True), ids(), "logits"),
    "Qwen3": Case(
        _transformer("Qwen3ForCausalLM", "Qwen3Config", **DECODER, head_dim=8, tie_word_embeddings=True), ids(),
        "logits"),
    "Gemma": Case(_transformer("GemmaForCausalLM", "GemmaConfig", **DECODER, head_dim=8), ids(), "logits"),
    "Gemma 3": Case(
        _transformer("Gemma3ForCausalLM", "Gemma3TextConfig", **DECODER, head_dim=8, sliding_window=4), ids(),
        "logits"),
    "Phi": Case(
        _transformer("PhiForCausalLM", "PhiConfig", **SMALL, max_position_embeddings=32, resid_pdrop=0.0, embd_pdrop=0.0), ids(),
        "logits"),
    "OPT": Case(
        _transformer("OPTForCausalLM", "OPTConfig", vocab_size=50, hidden_size=16, num_hidden_layers=2, ffn_dim=32,
                     num_attention_heads=2, max_position_embeddings=32, word_embed_proj_dim=16, dropout=0.0), ids(), "logits"),
    "BLOOM": Case(
        _transformer("BloomForCausalLM", "BloomConfig", vocab_size=50, hidden_size=16, n_layer=2, n_head=2,
                     hidden_dropout=0.0, attention_dropout=0.0), ids(), "logits"),
    "T5": Case(
        _transformer("T5ForConditionalGeneration", "T5Config", vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2,
                     num_heads=2, dropout_rate=0.0), two_sequences, "logits"),
    "BART": Case(_transformer("BartForConditionalGeneration", "BartConfig", **SEQUENCES), two_sequences, "logits"),
    "Marian": Case(
        _transformer("MarianMTModel", "MarianConfig", **SEQUENCES, pad_token_id=0, decoder_start_token_id=0),
        two_sequences, "logits"),
    "Pegasus": Case(_transformer("PegasusForConditionalGeneration", "PegasusConfig", **SEQUENCES), two_sequences, "logits"),
    "ViT": Case(
        _transformer("ViTForImageClassification", "ViTConfig", **IMAGES, image_size=32, patch_size=8), image(),
        "logits"),
    "DeiT": Case(
        _transformer("DeiTForImageClassification", "DeiTConfig", **IMAGES, image_size=32, patch_size=8), image(),
        "logits"),
    "Swin": Case(
        _transformer("SwinForImageClassification", "SwinConfig", image_size=32, patch_size=4, embed_dim=8, depths=[1, 2],
                     num_heads=[2, 2], window_size=4, drop_path_rate=0.0), image(), "logits"),
    "ConvNeXt": Case(
        _transformer("ConvNextForImageClassification", "ConvNextConfig", num_stages=2, hidden_sizes=[8, 16],
                     depths=[1, 2], layer_scale_init_value=1.0), image(), "logits"),
    "ResNet": Case(
        _transformer("ResNetForImageClassification", "ResNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                     layer_type="basic"), image(), "logits"),
    "RegNet": Case(
        _transformer("RegNetForImageClassification", "RegNetConfig", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                     groups_width=4), image(), "logits"),
    # With more values some lie so close to a bound of ReLU6 that rounding decides about their gradient, in PyTorch too.
    # The rate is small because the gradient is large behind so many batch normalizations.
    "MobileNetV2": Case(
        _transformer("MobileNetV2ForImageClassification", "MobileNetV2Config", image_size=48, depth_multiplier=0.25,
                     classifier_dropout_prob=0.0), image(48, batch=8), "logits", rate=2e-8),
    "MobileViT": Case(
        _transformer("MobileViTForImageClassification", "MobileViTConfig", image_size=64, hidden_sizes=[8, 12, 16],
                     neck_hidden_sizes=[4, 4, 8, 8, 12, 16, 16], num_attention_heads=2, **NO_DROPOUT,
                     classifier_dropout_prob=0.0), image(64), "logits"),
    "SegFormer": Case(
        _transformer("SegformerForSemanticSegmentation", "SegformerConfig", num_encoder_blocks=4, depths=[1, 1, 1, 1],
                     sr_ratios=[4, 2, 1, 1], hidden_sizes=[8, 8, 16, 16],
                     patch_sizes=[7, 3, 3, 3], strides=[4, 2, 2, 2], num_attention_heads=[1, 2, 2, 2],
                     mlp_ratios=[2, 2, 2, 2], decoder_hidden_size=8, drop_path_rate=0.0, classifier_dropout_prob=0.0,
                     **NO_DROPOUT), image(64), "logits"),
    "CLIP vision": Case(
        _transformer("CLIPVisionModel", "CLIPVisionConfig", hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                     num_attention_heads=2, image_size=32, patch_size=8), image(), "last_hidden_state"),
    "DINOv2": Case(
        _transformer("Dinov2ForImageClassification", "Dinov2Config", hidden_size=16, num_hidden_layers=2,
                     num_attention_heads=2, mlp_ratio=2, image_size=32, patch_size=8, **NO_DROPOUT), image(), "logits"),
    "Whisper": Case(
        _transformer("WhisperForConditionalGeneration", "WhisperConfig", vocab_size=50, d_model=16, encoder_layers=2,
                     decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
                     decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=10, max_target_positions=16, pad_token_id=0,
                     bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, dropout=0.0),
        lambda: {"input_features": torch.randn(BATCH, 8, 20), "decoder_input_ids": torch.randint(3, 50, (BATCH, 4))},
        "logits"),
    "Wav2Vec2": Case(
        _transformer("Wav2Vec2ForCTC", "Wav2Vec2Config", **{**SMALL, "vocab_size": 12}, conv_dim=[8, 8], conv_kernel=[5, 3],
                     conv_stride=[3, 2], num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                     num_conv_pos_embedding_groups=2, hidden_dropout=0.0, activation_dropout=0.0, attention_dropout=0.0,
                     feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, apply_spec_augment=False, mask_time_prob=0.0),
        values(120, name="input_values"), "logits"),
    "RWKV": Case(TimeMix, ids()),
    "LSTM": Case(lambda: Recurrent(nn.LSTM, True), ids(20)),
    "GRU": Case(lambda: Recurrent(nn.GRU, False), ids(20)),
    "U-Net": Case(UNet, image(16, "x")),
    "MLP": Case(mlp, values(8, name="input")),
    "depthwise convolutions": Case(depthwise, image(16, "input")),
    "tied language model": Case(Tied, ids()),
    "weight normalization": Case(weight_normed, values(8, name="input")),
    "group normalization": Case(group_normed, image(12, "input")),
    "detached values": Case(Detached, values(8)),
    "frozen trunk": Case(frozen_trunk, image(16, "input")),
}  # fmt: skip
