"""Helpers for training loops: samplers, in :mod:`ortrain.training.utils.data`."""

from ortrain.training.utils import data

__all__ = ["data"]
