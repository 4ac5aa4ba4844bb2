"""The training loop: checkpoint state, module, optimizer and learning rate schedule."""

from ortrain.api.generated.checkpoint_state import CheckpointState
from ortrain.api.generated.linear_lr_scheduler import LinearLRScheduler
from ortrain.api.generated.lr_scheduler import LRScheduler
from ortrain.api.generated.module import Module
from ortrain.api.generated.optimizer import Optimizer
from ortrain.api.generated.parameter import Parameter
from ortrain.api.generated.parameters import Parameters
from ortrain.api.generated.properties import Properties

__all__ = [
    "CheckpointState",
    "LRScheduler",
    "LinearLRScheduler",
    "Module",
    "Optimizer",
    "Parameter",
    "Parameters",
    "Properties",
]
