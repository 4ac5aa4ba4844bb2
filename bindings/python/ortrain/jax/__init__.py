"""JAX and Flax: networks to models for training, and trained weights back.

Needs JAX, Flax and jax2onnx: ``pip install 'ortrain[jax]'``.
"""

from __future__ import annotations

try:
    import flax
    import jax
    import jax2onnx
    import onnx
except ImportError as error:
    raise ImportError(
        f"ortrain.jax needs jax, flax, jax2onnx and onnx: pip install 'ortrain[jax]' ({error})"
    ) from error

from ortrain._frameworks.weights import UnmatchedNames
from ortrain._frameworks.weights_as_inputs import ExportReport
from ortrain.jax._export import export
from ortrain.jax._weights import load_into, load_params, update_checkpoint

del flax, jax, jax2onnx, onnx

__all__ = ["ExportReport", "UnmatchedNames", "export", "load_into", "load_params", "update_checkpoint"]
