"""Name of ``onnxruntime.training.optim.config``; :mod:`ortrain.legacy` has the classes."""

from ortrain.legacy.optimizer_config import AdamConfig, LambConfig, SGDConfig, _OptimizerConfig

__all__ = ["AdamConfig", "LambConfig", "SGDConfig", "_OptimizerConfig"]
