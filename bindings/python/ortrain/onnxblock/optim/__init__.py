"""Optimizers, as blocks that build the optimizer model.

:class:`AdamW` and :class:`SGD` are also optimizers of onnxruntime. The other classes follow from the list of the library:
``Adam``, ``Lion`` and so on, one for each optimizer that it declares. Their settings are keyword arguments with the names of
the table in the documentation, but ``betas`` for beta1 and those that follow, and ``eps`` for epsilon.
"""

from __future__ import annotations

from ortrain.onnxblock.optim.declarations import declared
from ortrain.onnxblock.optim.groups import ParamGroup, ParamGroups, no_decay
from ortrain.onnxblock.optim.models import (
    SGD,
    AdamW,
    DeclaredOptimizer,
    OptimizerModel,
    TorchAdamW,
    class_of,
)
from ortrain.onnxblock.optim.nodes import (
    AdamWOptimizer,
    ClipAdaptive,
    ClipGradNorm,
    ClipGradValue,
    ClipGroupNorm,
    OptimizerNode,
    SGDOptimizer,
    WeightAverage,
)

__all__ = [
    "SGD",
    "AdamW",
    "AdamWOptimizer",
    "ClipAdaptive",
    "ClipGradNorm",
    "ClipGradValue",
    "ClipGroupNorm",
    "DeclaredOptimizer",
    "OptimizerNode",
    "ParamGroup",
    "ParamGroups",
    "SGDOptimizer",
    "TorchAdamW",
    "WeightAverage",
    "no_decay",
]

#: The class of each optimizer by the name that the command line and the trainer take.
BLOCKS: dict[str, type[OptimizerModel]] = {"adamw": AdamW, "adamw_torch": TorchAdamW, "sgd": SGD}
BLOCKS |= {name: class_of(declared()[name]) for name in declared() if name not in BLOCKS}

_BY_TITLE = {block.__name__: block for block in BLOCKS.values()}
__all__ += sorted(_BY_TITLE.keys() - set(__all__))


def __getattr__(name: str) -> type[DeclaredOptimizer]:
    """Return the class of an optimizer by its title, such as ``Lion``."""
    if name in _BY_TITLE:
        return _BY_TITLE[name]  # type: ignore[return-value]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
