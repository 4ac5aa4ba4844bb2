"""FusedAdam of the older Python API, which updates tensors of PyTorch on a GPU. ortrain does not implement it."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

__all__ = ["AdamWMode", "FusedAdam"]


class AdamWMode(IntEnum):
    """Which form of Adam ``FusedAdam`` computes."""

    ADAM_L2_REGULARIZATION = 0
    ADAMW_TRANSFORMERS = 1
    ADAMW_TORCH = 2


class FusedAdam:
    """Adam over tensors of PyTorch on a GPU. Not implemented."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Raise an error that says what to use instead.

        Raises
        ------
        NotImplementedError
            Always.
        """
        raise NotImplementedError(
            "FusedAdam updates tensors of PyTorch on a GPU, which ortrain does not; "
            "use torch.optim.AdamW, or ortrain.onnxblock.optim.AdamW to train a model with ortrain"
        )
