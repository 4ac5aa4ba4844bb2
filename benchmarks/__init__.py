"""Side-by-side benchmark of ortrain against the last ONNX Runtime training release and PyTorch."""
