"""Networks to start from, as ONNX models with initial weights. ``ortrain new`` writes them to files. This package needs onnx."""

from ortrain.models.images import cnn, resnet
from ortrain.models.language import gpt
from ortrain.models.rows import mlp
from ortrain.models.sequences import gru, transformer

__all__ = ["cnn", "gpt", "gru", "mlp", "resnet", "transformer"]
