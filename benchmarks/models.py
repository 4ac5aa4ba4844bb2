# mypy: allow-subclassing-any
"""The models in PyTorch, and their export to ONNX: `python -m benchmarks.models CACHE MODEL`.

No model has dropout: every contestant must compute the same losses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.cases import CASES, Case, example_input, model_files

OPSET = 17


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 500), nn.ReLU(), nn.Linear(500, 10))


def lenet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., 2016, https://arxiv.org/abs/1512.03385)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """Build ResNet-18 in its form for 32x32 images: a 3x3 stem without pooling."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    width = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(width, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        width = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection (https://arxiv.org/abs/1801.04381)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += convolution(inputs, width, 1)
        layers += convolution(width, width, 3, stride, groups=width)
        layers += [nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """Build a convolution with batch normalization and ReLU6."""
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU6()]


class MobileNetV2Head(nn.Module):
    """MobileNetV2 for 10 classes, personalized: the backbone is frozen and in eval mode, the head is trained."""

    def __init__(self) -> None:
        super().__init__()
        layers = convolution(3, 32, 3, 2)
        width = 32
        for expansion, outputs, count, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for i in range(count):
                layers.append(InvertedResidual(width, outputs, stride if i == 0 else 1, expansion))
                width = outputs
        layers += [*convolution(width, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.backbone = nn.Sequential(*layers)
        self.head = nn.Linear(1280, 10)
        self.backbone.requires_grad_(False)
        for module in self.backbone.modules():  # statistics and scales as after training, not 0 and 1
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, 0.0, 0.1)
                nn.init.normal_(module.running_mean, 0.0, 0.1)
                nn.init.uniform_(module.running_var, 0.5, 1.5)

    def train(self, mode: bool = True) -> MobileNetV2Head:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, normalized after each (https://arxiv.org/abs/1810.04805)."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.split = (-1, length, heads, width // heads)
        self.merged = (-1, length, width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).reshape(self.split).transpose(1, 2) for f in (self.query, self.key, self.value))
        if (
            torch.onnx.is_in_onnx_export()
        ):  # the same formula in plain operators; PyTorch itself runs its fused one
            scores = q @ k.transpose(2, 3) / self.split[-1] ** 0.5
            attended = torch.softmax(scores, -1) @ v
        else:
            attended = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.out(attended.transpose(1, 2).reshape(self.merged)))
        return self.norm2(x + self.feed_forward(x))


class BertMini(nn.Module):
    """BERT-mini as a classifier: 4 layers, width 256, 4 heads, 128 tokens out of 8000, 4 classes."""

    def __init__(self, width: int = 256, heads: int = 4, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.tokens = nn.Embedding(8000, width)
        self.positions = nn.Parameter(torch.randn(length, width))
        self.norm = nn.LayerNorm(width)
        self.encoder = nn.Sequential(*(EncoderLayer(width, heads, length) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.encoder(self.norm(self.tokens(ids) + self.positions))
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "lenet": lenet,
    "resnet18": resnet18,
    "bert-mini": BertMini,
    "mobilenet-v2": MobileNetV2Head,
}


def build(model: str) -> nn.Module:
    """Build a model of the benchmark."""
    from benchmarks.more_models import MORE_MODELS  # which is made of these

    return {**MODELS, **MORE_MODELS}[model]()


def export(case: Case, cache: Path) -> None:
    """Write the files of `benchmarks.cases.ModelFiles` for the model of `case`.

    The ONNX model is the plain inference graph as training needs it: in training mode, nothing folded,
    weights inside under PyTorch's names, the batch dimension free.

    Raises
    ------
    RuntimeError
        The exporter renamed or dropped a weight.
    """
    import onnx
    from onnx import numpy_helper

    torch.manual_seed(0)
    model = build(case.model).train()
    files = model_files(cache, case)
    files.folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.onnx.export(
        model,
        (torch.from_numpy(example_input(case, 2, np.random.default_rng(0))),),
        str(files.onnx),
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": {0: "batch"}, "logits": {0: "batch"}},
        opset_version=OPSET,
        training=torch.onnx.TrainingMode.PRESERVE,
        do_constant_folding=False,
        dynamo=False,
    )
    written = onnx.load(str(files.onnx))
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in written.graph.initializer}
    # num_batches_tracked only counts steps for PyTorch; it is not part of the computation.
    wanted = {name for name in state if not name.endswith("num_batches_tracked")}
    if missing := sorted(wanted - weights.keys()):
        raise RuntimeError(f"{case.model}: the export to ONNX lost the weights {missing}")
    # Tracing ran the model once, which updated the running statistics of its normalizations; undo that.
    for tensor in written.graph.initializer:
        if tensor.name in wanted:
            weights[tensor.name] = state[tensor.name].numpy()
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))
    for node in written.graph.node:
        # onnxruntime 1.19.2 can only train a LayerNormalization that has its optional outputs.
        if node.op_type == "LayerNormalization" and len(node.output) == 1:
            node.output.extend(f"{node.output[0]}_{statistic}" for statistic in ("mean", "inv_std_dev"))
    onnx.checker.check_model(written, full_check=True)
    onnx.save(written, str(files.onnx))
    np.savez(files.weights, **{name: weights[name] for name in wanted})  # type: ignore[arg-type]
    for requires_grad, path in ((True, files.trainable), (False, files.frozen)):
        names = [name for name, p in model.named_parameters() if p.requires_grad == requires_grad]
        path.write_text(json.dumps(names))


if __name__ == "__main__":
    cache_folder, model_name = sys.argv[1:]
    export(next(case for case in CASES if case.model == model_name), Path(cache_folder))
