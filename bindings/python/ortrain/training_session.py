"""TrainingSession under its public name; :mod:`ortrain.legacy` has the class."""

from ortrain.legacy.training_session import TrainingSession

__all__ = ["TrainingSession"]
