"""The choice among the ways to divide training among several processes."""

from __future__ import annotations

from ortrain.legacy.horizontal import HorizontalTraining
from ortrain.legacy.joining import Job
from ortrain.legacy.pipeline import PipelineTraining
from ortrain.legacy.shared_training import SharedTraining


def share_training(job: Job) -> SharedTraining:
    """Return the object that runs a session whose parameters name several processes."""
    if job.parameters.pipeline_parallel_size > 1:
        return PipelineTraining(job)
    if job.parameters.horizontal_parallel_size > 1:
        return HorizontalTraining(job)
    return SharedTraining(job)
