"""Keras 3 models: exported for training, and their weights back.

Needs Keras 3 with TensorFlow as its backend, and tf2onnx: ``pip install 'ortrain[keras]'``.
"""

from __future__ import annotations

try:
    import keras
    import onnx
except ImportError as error:
    raise ImportError("ortrain.keras needs Keras and onnx: pip install 'ortrain[keras]'") from error

from ortrain._frameworks.weights import UnmatchedNames
from ortrain._frameworks.weights_as_inputs import ExportReport
from ortrain.keras._export import export
from ortrain.keras._weights import load_into, update_checkpoint

del keras, onnx

__all__ = ["ExportReport", "UnmatchedNames", "export", "load_into", "update_checkpoint"]
