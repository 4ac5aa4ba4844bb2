"""Name of ``onnxruntime.training.experimental.gradient_graph``; :mod:`ortrain.legacy` has the function."""

from ortrain.legacy.gradient_graph import export_gradient_graph

__all__ = ["export_gradient_graph"]
