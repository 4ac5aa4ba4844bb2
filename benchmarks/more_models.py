# mypy: allow-subclassing-any
"""More models in PyTorch, of kinds that `benchmarks.models` lacks: recurrent, one-dimensional, images to images, sparse."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.models import EncoderLayer, MobileNetV2Head


def mobilenet_v2_all() -> nn.Module:
    """Build MobileNetV2 for 10 classes, all of whose weights are trained, with the statistics of the batch."""
    model = MobileNetV2Head()
    model.backbone.requires_grad_(True)
    return nn.Sequential(model.backbone, model.head)


class Recurrent(nn.Module):
    """One recurrent layer of 128 units over 64 steps of 32 numbers; the last state is classified."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(32, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def conv1d() -> nn.Module:
    """Build a network for signals of three channels and 1024 samples."""
    return nn.Sequential(
        nn.Conv1d(3, 32, 7, 2, 3),
        nn.ReLU(),
        nn.Conv1d(32, 64, 5, 2, 2),
        nn.ReLU(),
        nn.Conv1d(64, 128, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def twice(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1), nn.ReLU()
    )


class UNet(nn.Module):
    """U-Net with three scales and 16 to 64 channels (Ronneberger et al., 2015); a class for each pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = twice(3, 16), twice(16, 32), twice(32, 64)
        self.pool = nn.MaxPool2d(2)
        self.up2, self.up1 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
        self.join2, self.join1 = twice(64, 32), twice(32, 16)
        self.classes = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.up2(self.bottom(self.pool(second)))
        x = self.up1(self.join2(torch.cat((x, second), 1)))
        return self.classes(self.join1(torch.cat((x, first), 1)))


class SmallViT(nn.Module):
    """Vision transformer: 64 patches of 4x4 pixels, width 192, 3 heads, 4 layers (https://arxiv.org/abs/2010.11929)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 192, 4, 4)
        self.positions = nn.Parameter(torch.randn(64, 192) * 0.02)
        self.encoder = nn.Sequential(*(EncoderLayer(192, 3, 64) for _ in range(4)))
        self.head = nn.Linear(192, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.encoder(tokens).mean(1))


class Recommender(nn.Module):
    """Eight categories of 50,000 values in one table of embeddings, and three dense layers on them."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Embedding(50_000, 32)
        self.dense = nn.Sequential(
            nn.Flatten(), nn.Linear(8 * 32, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.dense(self.values(ids))


MORE_MODELS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet-v2-all": mobilenet_v2_all,
    "lstm": lambda: Recurrent(nn.LSTM),
    "gru": lambda: Recurrent(nn.GRU),
    "conv1d": conv1d,
    "unet": UNet,
    "vit": SmallViT,
    "recommender": Recommender,
}
