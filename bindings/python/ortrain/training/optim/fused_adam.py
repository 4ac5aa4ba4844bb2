"""Name of ``onnxruntime.training.optim.fused_adam``; :mod:`ortrain.legacy` has the classes."""

from ortrain.legacy.fused_adam import AdamWMode, FusedAdam

__all__ = ["AdamWMode", "FusedAdam"]
