"""What training loops need beside models: samplers, in :mod:`ortrain.training.utils.data`."""

from ortrain.training.utils import data

__all__ = ["data"]
