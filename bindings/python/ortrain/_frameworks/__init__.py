"""Shared code of the exports of PyTorch, Keras and JAX."""
