"""Name of ``onnxruntime.training.optim.fp16_optimizer``; :mod:`ortrain.legacy` has the function."""

from ortrain.legacy.fp16_optimizer import FP16_Optimizer

__all__ = ["FP16_Optimizer"]
