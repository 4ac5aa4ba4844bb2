"""Benchmarks that compare ortrain with the last release of onnxruntime-training, PyTorch and JAX."""
