"""Settings of optimizers and learning rate schedules, under the names of ``onnxruntime.training.optim``.

A configuration holds hyperparameters, and a schedule computes learning rates; neither needs a trainer:
``Optimizer.set_learning_rate`` takes the rate that a schedule returns. ``FusedAdam`` and ``FP16_Optimizer`` update tensors of
PyTorch on a GPU and are not part of ortrain; they raise an error that says what to use.
"""

from __future__ import annotations

from ortrain.training.optim.config import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig
from ortrain.training.optim.fp16_optimizer import FP16_Optimizer
from ortrain.training.optim.fused_adam import AdamWMode, FusedAdam
from ortrain.training.optim.lr_scheduler import (
    ConstantWarmupLRScheduler,
    CosineWarmupLRScheduler,
    LinearWarmupLRScheduler,
    PolyWarmupLRScheduler,
    _LRScheduler,
)

__all__ = [
    "AdamConfig",
    "AdamWMode",
    "ConstantWarmupLRScheduler",
    "CosineWarmupLRScheduler",
    "FP16_Optimizer",
    "FusedAdam",
    "LambConfig",
    "LinearWarmupLRScheduler",
    "PolyWarmupLRScheduler",
    "SGDConfig",
    "_LRScheduler",
    "_OptimizerConfig",
]
