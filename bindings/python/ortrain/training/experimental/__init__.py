"""Gradients of a PyTorch model as an ONNX model."""

from ortrain.training.experimental.gradient_graph import export_gradient_graph

__all__ = ["export_gradient_graph"]
