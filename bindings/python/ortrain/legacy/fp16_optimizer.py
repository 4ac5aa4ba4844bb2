"""FP16_Optimizer of the older Python API, which changes optimizers of PyTorch. ortrain does not implement it."""

from __future__ import annotations

from typing import Any

__all__ = ["FP16_Optimizer"]


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
