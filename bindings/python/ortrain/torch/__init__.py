"""PyTorch: networks to models for training, and trained weights back.

Needs PyTorch and its exporters: ``pip install 'ortrain[torch]'``.
"""

from __future__ import annotations

try:
    import onnx
    import onnxscript
    import torch
except ImportError as error:
    raise ImportError(
        f"ortrain.torch needs torch, onnx and onnxscript: pip install 'ortrain[torch]' ({error})"
    ) from error

from ortrain._frameworks.weights import UnmatchedNames
from ortrain.torch._export import ExportReport, export
from ortrain.torch._weights import load_into, update_checkpoint

__all__ = ["ExportReport", "UnmatchedNames", "export", "load_into", "update_checkpoint"]

del onnx, onnxscript, torch
