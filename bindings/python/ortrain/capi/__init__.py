"""Classes under the names by which programs for onnxruntime import them from its inner module."""
