"""Settings of optimizers and learning rate schedules, under the names of ``onnxruntime.training.optim``.

A configuration holds hyperparameters, and a schedule computes learning rates; neither needs a trainer:
``Optimizer.set_learning_rate`` takes what a schedule gives. ``FusedAdam`` and ``FP16_Optimizer`` update tensors of
PyTorch on a GPU and are not part of ortrain; they raise an error that says what to use.
"""

from __future__ import annotations

from typing import Any

from ortrain.training.optim.config import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig
from ortrain.training.optim.lr_scheduler import (
    ConstantWarmupLRScheduler,
    CosineWarmupLRScheduler,
    LinearWarmupLRScheduler,
    PolyWarmupLRScheduler,
    _LRScheduler,
)

__all__ = [
    "AdamConfig",
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


class FusedAdam:
    """Adam over tensors of PyTorch on a GPU. Not implemented."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Say what to use instead.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "FusedAdam updates tensors of PyTorch on a GPU, which ortrain does not; "
            "use torch.optim.AdamW, or ortrain.onnxblock.optim.AdamW to train a model with ortrain"
        )


def FP16_Optimizer(optimizer: Any, **kwargs: Any) -> Any:
    """Wrap an optimizer of PyTorch for float16. Not implemented.

    Raises
    ------
    NotImplementedError
        Always.
    """
    raise NotImplementedError(
        f"FP16_Optimizer changes an optimizer of PyTorch, found {type(optimizer).__name__}, which ortrain does not; "
        "the session option ortrain.mixed_precision trains a model in bfloat16"
    )
