"""Small but structurally complete networks in PyTorch, and what each is trained on.

Only ``export.py`` reads this file; neither the project nor its tests need PyTorch. A network has a few thousand
parameters and the complete structure of its larger namesake.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# ---------------------------------------------------------------------------------------------------------------
# Images


def conv_bn(cin: int, cout: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(cout)]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*conv_bn(cin, cout, 3, stride), nn.ReLU(), *conv_bn(cout, cout))
        changes = stride != 1 or cin != cout
        self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 around a shortcut."""

    def __init__(self, cin: int, inner: int, cout: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_bn(cin, inner, 1), nn.ReLU(), *conv_bn(inner, inner, 3, stride), nn.ReLU(), *conv_bn(inner, cout, 1)
        )  # fmt: skip
        changes = stride != 1 or cin != cout
        self.shortcut = nn.Sequential(*conv_bn(cin, cout, 1, stride)) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Residual network of both kinds of block."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 8, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        self.layers = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 12, 2), Bottleneck(12, 6, 20, 2))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(20, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(images))), 1))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection without activation."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = cin * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [*conv_bn(cin, inner, 1), nn.ReLU6()]
        layers += [*conv_bn(inner, inner, 3, stride, inner), nn.ReLU6(), *conv_bn(inner, cout, 1)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV2(nn.Module):
    """Inverted residuals with ReLU6."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, 8, 3, 2), nn.ReLU6(), InvertedResidual(8, 6, 1, 1), InvertedResidual(6, 8, 2, 4),
            InvertedResidual(8, 8, 1, 4), *conv_bn(8, 24, 1), nn.ReLU6(),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(24, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).mean([2, 3]))


class SqueezeExcitation(nn.Module):
    """Channels weighted by a function of the whole image."""

    def __init__(self, channels: int, squeezed: int, activation: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.activation, self.gate = activation, gate

    def forward(self, x: Tensor) -> Tensor:
        scale = F.adaptive_avg_pool2d(x, 1)
        return x * self.gate(self.fc2(self.activation(self.fc1(scale))))


class MobileNetV3Block(nn.Module):
    """Inverted residual with squeeze and excitation and either activation."""

    def __init__(
        self, cin: int, inner: int, cout: int, kernel: int, stride: int, squeeze: bool, hard: bool
    ) -> None:
        super().__init__()
        act: Callable[[], nn.Module] = nn.Hardswish if hard else nn.ReLU
        layers = [*conv_bn(cin, inner, 1), act(), *conv_bn(inner, inner, kernel, stride, inner), act()]
        if squeeze:
            layers.append(SqueezeExcitation(inner, 4, nn.ReLU(), nn.Hardsigmoid()))
        self.body = nn.Sequential(*layers, *conv_bn(inner, cout, 1))
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class MobileNetV3(nn.Module):
    """Hardswish, squeeze and excitation, 5x5 depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, 8, 3, 2), nn.Hardswish(), MobileNetV3Block(8, 16, 8, 3, 1, True, False),
            MobileNetV3Block(8, 24, 12, 5, 2, True, True), MobileNetV3Block(12, 24, 12, 5, 1, False, True),
            *conv_bn(12, 24, 1), nn.Hardswish(),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Linear(24, 16), nn.Hardswish(), nn.Dropout(0.0), nn.Linear(16, 5))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.pool(self.features(images)).flatten(1))


class MBConv(nn.Module):
    """EfficientNet's block: SiLU, squeeze and excitation with a sigmoid."""

    def __init__(self, cin: int, cout: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = cin * expansion
        layers = [] if expansion == 1 else [*conv_bn(cin, inner, 1), nn.SiLU()]
        layers += [*conv_bn(inner, inner, kernel, stride, inner), nn.SiLU()]
        layers += [SqueezeExcitation(inner, 3, nn.SiLU(), nn.Sigmoid()), *conv_bn(inner, cout, 1)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


class EfficientNet(nn.Module):
    """A few MBConv blocks with active dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_bn(3, 8, 3, 2), nn.SiLU(), MBConv(8, 6, 3, 1, 1), MBConv(6, 8, 5, 2, 4), MBConv(8, 8, 3, 1, 4),
            *conv_bn(8, 24, 1), nn.SiLU(),
        )  # fmt: skip
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(24, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.dropout(F.adaptive_avg_pool2d(self.features(images), (1, 1)).flatten(1)))


def double_conv(cin: int, cout: int) -> nn.Sequential:
    return nn.Sequential(*conv_bn(cin, cout), nn.ReLU(), *conv_bn(cout, cout), nn.ReLU())


class UNet(nn.Module):
    """Two kinds of upsampling: a transposed convolution, and a bilinear resize to the size of the skipped image."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = double_conv(3, 6), double_conv(6, 8), double_conv(8, 12)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(12, 8, 2, 2)
        self.merge2, self.merge1 = double_conv(16, 8), double_conv(14, 6)
        self.head = nn.Conv2d(6, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.down1(images)
        second = self.down2(self.pool(first))
        up = self.up2(self.bottom(self.pool(second)))
        up = self.merge2(torch.cat([second, up], 1))
        up = F.interpolate(up, size=first.shape[2:], mode="bilinear", align_corners=False)
        return self.head(self.merge1(torch.cat([first, up], 1)))


class UNetNearest(nn.Module):
    """Upsampling by a factor, group and instance normalization, reflecting borders."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.LeakyReLU(0.1)
        )
        self.second = nn.Sequential(
            nn.AvgPool2d(2), nn.Conv2d(8, 12, 3, padding=1), nn.InstanceNorm2d(12, affine=True)
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.last = nn.Sequential(nn.Conv2d(20, 8, 3, padding=1), nn.PReLU(8), nn.Conv2d(8, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        return self.last(torch.cat([first, self.up(F.elu(self.second(first)))], dim=1))


class Autoencoder(nn.Module):
    """Convolutions down to a code, transposed convolutions back."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(192, 16)
        )  # fmt: skip
        self.widen = nn.Linear(16, 192)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(12, 8, 3, 2, 1, output_padding=1), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 3, 2, 1, output_padding=1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        code = F.relu(self.widen(self.encoder(images)))
        return self.decoder(code.reshape(-1, 12, 4, 4))


# ---------------------------------------------------------------------------------------------------------------
# Transformers


class ViT(nn.Module):
    """Patches, a class token, learned positions, PyTorch's own attention module."""

    def __init__(self, width: int = 24, heads: int = 3, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(ViTBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ViTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.attention_output, self.attention_norm = nn.Linear(width, width), nn.LayerNorm(width, eps=1e-12)
        self.intermediate, self.output = nn.Linear(width, inner), nn.Linear(inner, width)
        self.output_norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        context = join_heads(self.dropout(scores.softmax(-1)) @ v)
        x = self.attention_norm(self.dropout(self.attention_output(context)) + x)
        return self.output_norm(self.dropout(self.output(F.gelu(self.intermediate(x)))) + x)


class Bert(nn.Module):
    """Token, position and type embeddings; an additive mask; pooler and classifier."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.word, self.position, self.kind = (
            nn.Embedding(60, width, padding_idx=0),
            nn.Embedding(16, width),
            nn.Embedding(2, width),
        )
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-12), nn.Dropout(0.0)
        self.register_buffer("position_ids", torch.arange(16).expand(1, -1))
        self.layers = nn.ModuleList(BertLayer(width, heads, 2 * width) for _ in range(2))
        self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        positions = self.position_ids[:, : input_ids.shape[1]]
        x = self.word(input_ids) + self.position(positions) + self.kind(token_type_ids)
        x = self.dropout(self.norm(x))
        mask = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, mask)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class DistilBertLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(width, width) for _ in range(4))
        self.sa_layer_norm, self.output_layer_norm = (
            nn.LayerNorm(width, eps=1e-12),
            nn.LayerNorm(width, eps=1e-12),
        )
        self.lin1, self.lin2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (split_heads(part(x), self.heads) for part in (self.q_lin, self.k_lin, self.v_lin))
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(2, 3))
        hidden = (mask == 0).view(mask.shape[0], 1, 1, mask.shape[1]).expand_as(scores)
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1)
        x = self.sa_layer_norm(self.out_lin(join_heads(weights @ v)) + x)
        return self.output_layer_norm(self.lin2(F.gelu(self.lin1(x))) + x)


class DistilBert(nn.Module):
    """Predicts where a span begins and ends; masks by masked_fill; sinusoidal positions that are not trained."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(60, width), nn.Embedding(16, width)
        angles = torch.arange(16)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
        self.position.weight = nn.Parameter(torch.cat([angles.sin(), angles.cos()], 1), requires_grad=False)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(DistilBertLayer(width, heads) for _ in range(2))
        self.qa_outputs = nn.Linear(width, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = (
            torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0).expand_as(input_ids)
        )
        x = self.norm(self.word(input_ids) + self.position(positions))
        for layer in self.layers:
            x = layer(x, attention_mask)
        start, end = self.qa_outputs(x).split(1, dim=-1)
        return torch.stack([start.squeeze(-1), end.squeeze(-1)], dim=2)


class GPT2Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn_weight = nn.Parameter(torch.randn(width, 3 * width) * 0.2)
        self.c_attn_bias = nn.Parameter(torch.zeros(3 * width))
        self.c_proj, self.c_fc, self.mlp_proj = (
            nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        )  # fmt: skip
        self.register_buffer("bias", torch.tril(torch.ones(16, 16, dtype=torch.bool)).view(1, 1, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        h = self.ln_1(x)
        qkv = torch.addmm(self.c_attn_bias, h.view(-1, self.width), self.c_attn_weight)
        qkv = qkv.view(h.shape[0], h.shape[1], 3 * self.width)
        q, k, v = (split_heads(part, self.heads) for part in qkv.split(self.width, dim=2))
        scores = (q @ k.transpose(-1, -2)) / (q.shape[-1] ** 0.5)
        length = scores.shape[-1]
        least = torch.full([], torch.finfo(scores.dtype).min, dtype=scores.dtype)
        scores = torch.where(self.bias[:, :, :length, :length], scores, least)
        x = x + self.c_proj(join_heads(scores.softmax(-1) @ v))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Causal mask, weights in GPT-2's transposed order, output layer tied to the embedding."""

    def __init__(self, width: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(60, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(GPT2Block(width, heads) for _ in range(2))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 60, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.ln_f(x)).flatten(0, 1)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate_half(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary positions, SwiGLU; all linear layers without bias."""

    def __init__(self, width: int, heads: int, groups: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.heads, self.groups, size = heads, groups, width // heads
        self.input_norm, self.post_norm = norm(width), norm(width)
        self.q_proj, self.o_proj = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(width, groups * size, bias=False) for _ in range(2))
        self.gate_proj, self.up_proj = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_norm(x)
        q = split_heads(self.q_proj(h), self.heads)
        k, v = split_heads(self.k_proj(h), self.groups), split_heads(self.v_proj(h), self.groups)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        k, v = (self.repeat(part) for part in (k, v))
        x = x + self.o_proj(join_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
        h = self.post_norm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))

    def repeat(self, part: Tensor) -> Tensor:
        batch, groups, length, size = part.shape
        part = part[:, :, None].expand(batch, groups, self.heads // groups, length, size)
        return part.reshape(batch, self.heads, length, size)


class Llama(nn.Module):
    """Two blocks; the rotary angles are computed from the positions."""

    def __init__(self, width: int = 24, heads: int = 4, norm: Callable[[int], nn.Module] = RMSNorm) -> None:
        super().__init__()
        self.embed, size = nn.Embedding(60, width), width // heads
        self.register_buffer("frequencies", 1.0 / 10000 ** (torch.arange(0, size, 2) / size))
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, heads // 2, norm) for _ in range(2))
        self.norm, self.lm_head = norm(width), nn.Linear(width, 60, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        positions = torch.arange(input_ids.shape[1])[:, None].float()
        angles = positions * self.frequencies[None, :]
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.lm_head(self.norm(x)).transpose(1, 2)


def llama_builtin_norm() -> nn.Module:
    return Llama(norm=lambda width: nn.RMSNorm(width, eps=1e-6))


class T5Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, two_sided: bool) -> None:
        super().__init__()
        self.heads, self.two_sided = heads, two_sided
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.relative = nn.Embedding(8, heads) if bias else None

    def bias(self, queries: int, keys: int) -> Tensor:
        """T5's buckets: near distances have one each, far ones share them logarithmically."""
        assert self.relative is not None
        distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        buckets = 8
        start = torch.zeros_like(distance)
        if self.two_sided:
            buckets //= 2
            start = start + (distance > 0).to(torch.long) * buckets
            distance = torch.abs(distance)
        else:
            distance = -torch.min(distance, torch.zeros_like(distance))
        exact = buckets // 2
        far = exact + (torch.log(distance.float() / exact) / math.log(16 / exact) * (buckets - exact)).to(
            torch.long
        )
        far = torch.min(far, torch.full_like(far, buckets - 1))
        table = start + torch.where(distance < exact, distance, far)
        return self.relative(table).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor, source: Tensor, bias: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in (self.q(x), self.k(source), self.v(source)))
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        return self.o(join_heads(F.softmax(scores.float(), dim=-1).type_as(scores) @ v))


class T5Block(nn.Module):
    def __init__(self, width: int, heads: int, decoder: bool) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(width), T5Attention(width, heads, True, not decoder)
        if decoder:
            self.norm2, self.cross = RMSNorm(width), T5Attention(width, heads, False, False)
        self.norm3 = RMSNorm(width)
        self.wi_0, self.wi_1, self.wo = (
            nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False),
            nn.Linear(2 * width, width, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor, mask: Tensor, source: Tensor | None, source_mask: Tensor | None) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, self.attention.bias(x.shape[1], x.shape[1]) + mask)
        if source is not None and source_mask is not None:
            x = x + self.cross(self.norm2(x), source, source_mask)
        h = self.norm3(x)
        return x + self.wo(F.gelu(self.wi_0(h), approximate="tanh") * self.wi_1(h))


class T5(nn.Module):
    """An encoder and a decoder block with relative position bias, cross attention, gated feed-forward."""

    def __init__(self, width: int = 24, heads: int = 4) -> None:
        super().__init__()
        self.shared = nn.Embedding(60, width)
        self.encoder, self.decoder = T5Block(width, heads, False), T5Block(width, heads, True)
        self.encoder_norm, self.decoder_norm = RMSNorm(width), RMSNorm(width)
        self.lm_head = nn.Linear(width, 60, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor) -> Tensor:
        least = torch.finfo(torch.float32).min
        padding = (1.0 - attention_mask[:, None, None, :].float()) * least
        source = self.encoder_norm(self.encoder(self.shared(input_ids), padding, None, None))
        steps = torch.arange(decoder_input_ids.shape[1])
        causal = (1.0 - (steps[None, :] <= steps[:, None]).float())[None, None] * least
        x = self.decoder(self.shared(decoder_input_ids), causal, source, padding)
        return self.lm_head(self.decoder_norm(x)).transpose(1, 2)


# ---------------------------------------------------------------------------------------------------------------
# Sequences and tables


class Recurrent(nn.Module):
    """A bidirectional recurrent classifier on its last states."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 12)
        self.rnn = kind(12, 10, num_layers=layers, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(20, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        states, last = self.rnn(self.embed(tokens))
        last = last[0] if isinstance(last, tuple) else last
        both = torch.cat([last[-2], last[-1]], dim=1)
        return self.fc(torch.tanh(both) + states.mean(1))


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates, residual and skip paths; one class per time step."""

    def __init__(self, channels: int = 10) -> None:
        super().__init__()
        self.input = nn.Conv1d(1, channels, 1)
        self.dilations = (1, 2, 4, 8)
        self.filters, self.gates = (
            nn.ModuleList(nn.Conv1d(channels, channels, 2, dilation=d) for d in self.dilations)
            for _ in range(2)
        )
        self.residuals = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in self.dilations[1:])
        self.skips = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in self.dilations)
        self.head1, self.head2 = (
            nn.utils.parametrizations.weight_norm(nn.Conv1d(channels, 16, 1)),
            nn.Conv1d(16, 8, 1),
        )

    def forward(self, wave: Tensor) -> Tensor:
        x, total = self.input(wave), None
        residuals = [*self.residuals, None]
        parts = zip(self.dilations, self.filters, self.gates, residuals, self.skips, strict=True)
        for dilation, filters, gates, residual, skip in parts:
            padded = F.pad(x, (dilation, 0))
            h = torch.tanh(filters(padded)) * torch.sigmoid(gates(padded))
            total = skip(h) if total is None else total + skip(h)
            if residual is not None:
                x = x + residual(h)
        return self.head2(F.relu(self.head1(F.relu(total))))


class DLRM(nn.Module):
    """Dense features, summed embeddings of several categories, and all products of pairs of them."""

    def __init__(self, width: int = 8, bags: bool = False) -> None:
        super().__init__()
        self.bags = bags
        kind = (
            (lambda n: nn.EmbeddingBag(n, width, mode="sum")) if bags else (lambda n: nn.Embedding(n, width))
        )
        self.tables = nn.ModuleList(kind(n) for n in (20, 30, 10))
        self.bottom = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 12), nn.ReLU(), nn.Linear(12, 1))
        rows, columns = torch.tril_indices(4, 4, -1)
        self.register_buffer("rows", rows)
        self.register_buffer("columns", columns)

    def forward(self, dense: Tensor, categories: Tensor) -> Tensor:
        x = self.bottom(dense)
        looked_up = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        if not self.bags:
            looked_up = [rows.sum(dim=1) for rows in looked_up]
        vectors = torch.stack([x, *looked_up], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        pairs = products[:, self.rows, self.columns]
        return self.top(torch.cat([x, pairs], dim=1))


class MaskedTokens(nn.Module):
    """Predicts only the tokens that a boolean mask selects: the number of rows follows from the data."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(40, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 40)

    def forward(self, input_ids: Tensor, selected: Tensor) -> Tensor:
        x = self.embed(input_ids)
        x = torch.tanh(self.mix(x + x.mean(1, keepdim=True)))
        return self.head(x[selected])


class SparseExperts(nn.Module):
    """A mixture of experts: the tokens of an expert are found with nonzero and added back with index_add."""

    def __init__(self, width: int = 16, experts: int = 3) -> None:
        super().__init__()
        self.router, self.input = nn.Linear(width, experts), nn.Linear(6, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))
        self.head = nn.Linear(width, 1)

    def forward(self, rows: Tensor) -> Tensor:
        x = torch.tanh(self.input(rows))
        weights, chosen = self.router(x).softmax(-1).max(-1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            where = torch.nonzero(chosen == number).squeeze(1)
            y = y.index_add(0, where, F.relu(expert(x[where])) * weights[where].unsqueeze(1))
        return self.head(x + y)


# ---------------------------------------------------------------------------------------------------------------
# What each is trained on


@dataclass(frozen=True)
class Sizes:
    """Dimensions of one batch."""

    batch: int = 4
    length: int = 10  # of a sequence
    image: int = 16  # height; the width is larger if both are free


@dataclass(frozen=True)
class Architecture:
    """A network, its loss, its inputs, and how it is exported.

    Parameters
    ----------
    inputs
        Creates the inputs, by name, and the target (class indices for ``cross_entropy``).
    free
        The dynamic dimensions: for each input its axes and their names.
    exports
        Pairs of exporter and opset. ``dynamo`` is what users get by default: batch normalization and weight
        normalization are folded into the weights. ``dynamo_plain`` is the same without
        optimization, which keeps batch normalization.
    loss
        ``cross_entropy``, ``bce``, ``mse``; ``reconstruction`` is the mean squared error to the input.
    optimizer
        ``sgd`` or ``adamw``.
    random
        The loss differs from run to run (dropout): its mean and standard deviation are recorded.
    renamed
        Initializers of the newer exporter that have the name of another parameter, and the parameter whose value they
        have.
    other
        Sizes of a second batch, of another shape.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[Sizes, torch.Generator], tuple[dict[str, Tensor], Tensor]]
    free: dict[str, dict[int, str]]
    exports: tuple[tuple[str, int], ...]
    loss: str = "cross_entropy"
    lr: float = 0.1
    optimizer: str = "sgd"
    random: bool = False
    renamed: dict[str, str] = field(default_factory=dict)
    sizes: Sizes = field(default_factory=Sizes)
    other: Sizes = field(default_factory=lambda: Sizes(batch=3, length=7, image=24))


def _random(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _ids(generator: torch.Generator, most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=generator)


def images(size: int | None = None) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    def make(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        side = size or sizes.image
        return {"images": _random(g, sizes.batch, 3, side, side)}, _ids(g, 5, sizes.batch)

    return make


def segments(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    height, width = sizes.image, sizes.image + 4
    target = (torch.rand(sizes.batch, 1, height, width, generator=g) > 0.6).float()
    return {"images": _random(g, sizes.batch, 3, height, width)}, target


def pictures(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    x = torch.rand(sizes.batch, 1, 16, 16, generator=g)
    return {"images": x}, x


def _mask(sizes: Sizes) -> Tensor:
    lengths = torch.arange(sizes.batch) % 3 + sizes.length - 3
    return (torch.arange(sizes.length)[None, :] <= lengths[:, None]).long()


def sentences(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    mask = _mask(sizes)
    ids, types = 1 + _ids(g, 59, sizes.batch, sizes.length), _ids(g, 2, sizes.batch, sizes.length)
    inputs = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": types * mask}
    return inputs, _ids(g, 3, sizes.batch)


def questions(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    ids = _ids(g, 60, sizes.batch, sizes.length)
    return {"input_ids": ids, "attention_mask": _mask(sizes)}, _ids(g, sizes.length - 3, sizes.batch, 2)


def text(flat: bool) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
    def make(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
        ids = _ids(g, 60, sizes.batch, sizes.length + 1)
        target = ids[:, 1:].contiguous()
        return {"input_ids": ids[:, :-1].contiguous()}, target.flatten() if flat else target

    return make


def translations(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    source, target = _ids(g, 60, sizes.batch, sizes.length), _ids(g, 60, sizes.batch, sizes.length)
    inputs = {
        "input_ids": source,
        "attention_mask": _mask(sizes),
        "decoder_input_ids": target[:, :-1].contiguous(),
    }
    return inputs, target[:, 1:].contiguous()


def tokens(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    return {"tokens": _ids(g, 40, sizes.batch, sizes.length)}, _ids(g, 4, sizes.batch)


def waves(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    steps = 2 * sizes.length
    return {"wave": _random(g, sizes.batch, 1, steps)}, _ids(g, 8, sizes.batch, steps)


def clicks(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    inputs = {"dense": _random(g, sizes.batch, 6), "categories": _ids(g, 10, sizes.batch, 3, 4)}
    return inputs, (torch.rand(sizes.batch, 1, generator=g) > 0.5).float()


def masked(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    ids = _ids(g, 40, sizes.batch, sizes.length)
    selected = torch.rand(sizes.batch, sizes.length, generator=g) > 0.6
    return {"input_ids": ids, "selected": selected}, ids[selected]


def rows(sizes: Sizes, g: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    return {"rows": _random(g, 4 * sizes.batch, 6)}, _random(g, 4 * sizes.batch, 1)


_IMAGE = {"images": {0: "batch"}}
_SAME_IMAGE = Sizes(batch=3)
_SEQUENCE = {0: "batch", 1: "sequence"}

ARCHITECTURES: dict[str, Architecture] = {
    "resnet": Architecture(
        ResNet, images(), {"images": {0: "batch", 2: "height", 3: "width"}},
        (("torchscript", 14), ("torchscript", 20), ("dynamo_plain", 18), ("dynamo", 23)), sizes=Sizes(image=32),
    ),
    "mobilenet_v2": Architecture(
        MobileNetV2, images(), _IMAGE, (("torchscript", 17), ("dynamo", 20)), other=_SAME_IMAGE
    ),
    "mobilenet_v2_dropout": Architecture(
        lambda: MobileNetV2(dropout=0.4), images(), _IMAGE, (("torchscript", 18), ("dynamo_plain", 20)), random=True,
        other=_SAME_IMAGE,
    ),
    "mobilenet_v3": Architecture(
        MobileNetV3, images(), _IMAGE, (("torchscript", 14), ("dynamo_plain", 23)), other=_SAME_IMAGE
    ),
    "efficientnet": Architecture(
        EfficientNet, images(), _IMAGE, (("torchscript", 18), ("dynamo_plain", 18)), other=_SAME_IMAGE
    ),
    "unet": Architecture(
        UNet, segments, {"images": {0: "batch", 2: "height", 3: "width"}},
        (("torchscript", 14), ("torchscript", 18), ("dynamo_plain", 18), ("dynamo", 20)), loss="bce",
    ),
    "unet_nearest": Architecture(
        UNetNearest, segments, {"images": {0: "batch"}},
        (("torchscript", 17), ("torchscript", 20), ("dynamo", 23)), loss="bce", other=_SAME_IMAGE,
    ),
    "autoencoder": Architecture(
        Autoencoder, pictures, _IMAGE, (("torchscript", 14), ("dynamo", 17)), loss="reconstruction", lr=1.0
    ),
    "vit": Architecture(ViT, images(16), _IMAGE, (("torchscript", 17), ("dynamo", 20), ("dynamo", 23)),
        optimizer="adamw", lr=0.01),
    "bert": Architecture(
        Bert, sentences, {name: _SEQUENCE for name in ("input_ids", "attention_mask", "token_type_ids")},
        (("torchscript", 14), ("torchscript", 20), ("dynamo", 18)),
    ),
    "distilbert": Architecture(
        DistilBert, questions, {name: _SEQUENCE for name in ("input_ids", "attention_mask")},
        (("torchscript", 17), ("dynamo", 23)),
    ),
    "gpt2": Architecture(
        GPT2, text(True), {"input_ids": _SEQUENCE}, (("torchscript", 14), ("torchscript", 18), ("dynamo", 20)),
        renamed={"lm_head.weight": "wte.weight"},
    ),
    "llama": Architecture(
        Llama, text(False), {"input_ids": _SEQUENCE}, (("torchscript", 17), ("dynamo", 18)), lr=0.5
    ),
    "llama_builtin_norm": Architecture(
        llama_builtin_norm, text(False), {"input_ids": _SEQUENCE}, (("dynamo", 18), ("dynamo", 23)), lr=0.5
    ),
    "t5": Architecture(
        T5, translations,
        {"input_ids": _SEQUENCE, "attention_mask": _SEQUENCE, "decoder_input_ids": {0: "batch", 1: "target"}},
        (("torchscript", 18), ("dynamo", 20)),
    ),
    "lstm": Architecture(
        lambda: Recurrent(nn.LSTM, 2), tokens, {"tokens": {0: "batch", 1: "sequence"}},
        (("torchscript", 14), ("torchscript", 17), ("dynamo", 18)), lr=0.02, optimizer="adamw",
    ),
    "gru": Architecture(
        lambda: Recurrent(nn.GRU, 1), tokens, {"tokens": {0: "batch", 1: "sequence"}},
        (("torchscript", 17), ("torchscript", 20), ("dynamo", 23)), lr=0.5,
    ),
    "wavenet": Architecture(
        WaveNet, waves, {"wave": {0: "batch", 2: "time"}}, (("torchscript", 14), ("dynamo", 20)), lr=0.5
    ),
    "dlrm": Architecture(
        DLRM, clicks, {"dense": {0: "batch"}, "categories": {0: "batch"}},
        (("torchscript", 17), ("dynamo", 17), ("dynamo", 18)), loss="bce", sizes=Sizes(batch=8), optimizer="adamw", lr=0.02,
    ),
    "dlrm_bags": Architecture(
        lambda: DLRM(bags=True), clicks, {"dense": {0: "batch"}, "categories": {0: "batch"}},
        (("torchscript", 18), ("dynamo", 20)), loss="bce", sizes=Sizes(batch=8),
    ),
    "masked_tokens": Architecture(
        MaskedTokens, masked, {"input_ids": _SEQUENCE, "selected": _SEQUENCE},
        (("torchscript", 17), ("dynamo", 18)), lr=0.5,
    ),
    "sparse_experts": Architecture(
        SparseExperts, rows, {"rows": {0: "batch"}}, (("torchscript", 18), ("dynamo", 23)), loss="mse"
    ),
}  # fmt: skip


def loss_of(kind: str, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of that name."""
    if kind == "cross_entropy":
        return F.cross_entropy(output, target)
    if kind == "bce":
        return F.binary_cross_entropy_with_logits(output, target)
    return F.mse_loss(output, target)


def example(architecture: Architecture, sizes: Sizes, seed: int) -> tuple[dict[str, Any], Tensor]:
    """Return inputs by name and target of one batch."""
    return architecture.inputs(sizes, torch.Generator().manual_seed(seed))
