"""What the exports of PyTorch, Keras and JAX have in common."""
