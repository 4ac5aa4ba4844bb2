"""Name of ``onnxruntime.training.utils.data.sampler``; :mod:`ortrain.legacy` has the classes."""

from ortrain.legacy.sampler import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
    _Generator,
    shard_wrapped_indices_for_worker,
)

__all__ = [
    "LoadBalancingDistributedBatchSampler",
    "LoadBalancingDistributedSampler",
    "_Generator",
    "shard_wrapped_indices_for_worker",
]
